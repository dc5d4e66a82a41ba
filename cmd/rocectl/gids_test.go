// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
	"github.com/roce-cni/roce-cni/pkg/tool/usage"
)

// TestNamesOfPodsCannotChangeTheTableOfGIDs has names that a terminal would obey, and that
// would be a line of their own.
func TestNamesOfPodsCannotChangeTheTableOfGIDs(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := writeTables(cli.Format{}, &out, []gids.Table{
		{Device: "mlx5_0", Port: 1, Netdev: "eth0", Size: 256, Entries: []gids.Entry{{GID: "::1", Type: "RoCE v2", Netdev: "\x1b[2J"}}},
		{Device: "mlx5_1\nmlx5_9", Port: 1, Holder: &gids.Owner{ContainerID: "c1"}, Size: 256, Entries: []gids.Entry{{GID: "::2", Type: "RoCE v2", Netdev: "net1"}}},
	}); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Contains(got, "\x1b") || strings.Count(got, "\n") != 5 {
		t.Errorf("want 5 lines of printable text, got\n%q", got)
	}
}

func TestTheTableOfGIDsSaysWhatFillersTake(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	entry := gids.Entry{Index: 1, GID: "0000:0000:0000:0000:0000:ffff:a9fe:4000", Type: "RoCE v2", Netdev: "gids-0a1b2c3d", Filler: true}
	if err := writeTables(cli.Format{}, &out, []gids.Table{{Device: "mlx5_0", Port: 1, Size: 256, Entries: []gids.Entry{{GID: "::1", Type: "RoCE v2"}, entry}}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"filler of roce  gids-0a1b2c3d", "mlx5_0/1: 2 of 256 entries used, 254 free", "1 of them are fillers", "ip netns del roce-gids"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("lacks %q:\n%s", want, out.String())
		}
	}
}

func TestTheTableOfGIDsSaysWhatProgramsOfDeletedPodsHold(t *testing.T) {
	t.Parallel()
	got := gidSummary(gids.Table{Device: "rxe0", Port: 1, Size: 16, Entries: make([]gids.Entry, 3), Held: []gids.Held{
		{Index: 5, Pod: conf.Pod{Namespace: "ml", Name: "p1"}, Processes: []rdma.Process{{PID: 7, Comm: "\x1bx"}}},
	}})
	want := "# rxe0/1: 3 of 16 entries used, 1 perhaps held, 12 free: " + gidtable.Room(12, 1) + "\n" +
		"# rxe0/1: index 5, which ml/p1 has lost, stays taken while a queue pair uses it: process 7 (?x)\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestStrangersAreTheProgramsWithQueuePairsInNamespacesWithoutARecord: each of them.
func TestStrangersAreTheProgramsWithQueuePairsInNamespacesWithoutARecord(t *testing.T) {
	t.Parallel()
	some, program := map[string]int{"RC": 1}, func(pid uint32, ns uint64) rdma.Process { return rdma.Process{PID: pid, Comm: "x", Netns: ns} }
	var out strings.Builder
	writeStrangers(&out, []usage.Use{
		{Device: "rxe0", User: usage.User{Kind: usage.Pod}, QueuePairs: some, Processes: []rdma.Process{program(1, 7)}},
		{Device: "rxe0", User: usage.User{Kind: usage.Unknown}, Processes: []rdma.Process{program(2, 7)}},
		{Device: "rxe0", User: usage.User{Kind: usage.Unknown}, QueuePairs: some, Processes: []rdma.Process{program(3, 0), program(4, 7), program(5, 8)}},
	})
	if got := strings.Count(out.String(), "\n"); got != 2 || !strings.Contains(out.String(), "process 4 (x)") || !strings.Contains(out.String(), "process 5 (x)") {
		t.Errorf("got\n%s", out.String())
	}
}

// The driver hides the entry at index 4 from the host, and shows it to its pod.
func TestAnIndexWithAnEntryIsNotHeld(t *testing.T) {
	t.Parallel()
	tables := []gids.Table{{Device: "rxe0", Port: 1, Entries: []gids.Entry{{Index: 4}}}, {Device: "rxe0", Port: 2}, {Device: "rxe0", Port: 1, Holder: &gids.Owner{}}}
	pod, programs := conf.Pod{Namespace: "ml", Name: "p1"}, []rdma.Process{{PID: 7, Comm: "x"}}
	addHeld(tables, []usage.Use{
		{User: usage.User{Pod: pod, ContainerID: "c1"}, Processes: programs, Held: []calls.Held{{Device: "rxe0", Port: 1, Index: 4}, {Device: "rxe0", Port: 1, Index: 5}}},
		{User: usage.User{ContainerID: "c2"}, Held: []calls.Held{{Device: "rxe0", Port: 2, Index: 4}, {Device: "rxe0", Port: 1, Index: 6}, {Device: "rxe1", Port: 1, Index: 7}}},
	})
	want := [][]gids.Held{{{Index: 5, Pod: pod, ContainerID: "c1", Processes: programs}, {Index: 6, ContainerID: "c2"}}, {{Index: 4, ContainerID: "c2"}}, nil}
	for i, table := range tables {
		if diff := cmp.Diff(want[i], table.Held); diff != "" {
			t.Errorf("table %d (-want +got)\n%s", i, diff)
		}
	}
}
