// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package foreign

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent/pace"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
)

// The lines are those of Linux 7.3 and 6.1. The program of the second one has the name of a
// line that is made up, as far as a name can be.
const text = ` ibv_rc_pingpong-165     [000] .....    32.899836: gid: (rdma_get_gid_attr+0x4/0xf0 [ib_core]) dev=0xffff888007312000 port=1 index=1 from=0xffffffffc045dd4d caller=rdma_fill_sgid_attr+0x9d/0xc0 [ib_core]
a
-9 [0] . 1.1: g-168     [001] d..1.    44.521242: gid: (rdma_get_gid_attr+0x0/0xf0 [ib_core]) dev=0xffff888006ad4000 port=2 index=7 from=0xffffffffc0324480 caller=rdma_fill_sgid_attr.isra.0+0xa0/0xc0 [ib_core]
CPU:1 [LOST 17 EVENTS]
    kworker/u8:1-14      [001] .....    33.116061: gid: (rdma_get_gid_attr+0x4/0xf0 [ib_core]) dev=0xffff888007312000 port=1 index=1 from=0xffffffffc04e9cc4 caller=rxe_init_packet+0x34/0x150 [rdma_rxe]
CPU:0 [LOST EVENTS]
`

func TestLinesOfTheKernelAreRead(t *testing.T) {
	t.Parallel()
	uses, lost := parse([]byte(text))
	want := []use{
		{165, 0xffff888007312000, 1, 1, 0xffffffffc045dd4d, "rdma_fill_sgid_attr"},
		{168, 0xffff888006ad4000, 2, 7, 0xffffffffc0324480, "rdma_fill_sgid_attr"},
		{14, 0xffff888007312000, 1, 1, 0xffffffffc04e9cc4, "rxe_init_packet"},
	}
	if diff := cmp.Diff(want, uses, cmp.AllowUnexported(use{})); diff != "" {
		t.Errorf("uses (-want +got)\n%s", diff)
	}
	if lost != 18 {
		t.Errorf("%d are lost, want 18", lost)
	}
	for i, is := range []bool{true, true, false} {
		if uses[i].setsGID() != is {
			t.Errorf("%+v: want %v", uses[i], is)
		}
	}
}

func TestOnlyTheGIDOfAnotherPodIsForeign(t *testing.T) {
	t.Parallel()
	of := func(ino uint64) gids.Owner { return gids.Owner{ContainerID: "c", ID: netns.ID{Ino: ino}} }
	entry := func(index int, owners ...gids.Owner) gids.Entry { return gids.Entry{Index: index, Owners: owners} }
	tables := []gids.Table{
		{Device: "rxe0", Port: 1, Entries: []gids.Entry{
			entry(0, gids.Owner{Link: "r0"}), entry(1, of(77)), entry(2, of(88)), entry(3), entry(4, of(88), of(77)), entry(5, of(88), gids.Owner{Link: "r0"}),
		}},
		{Device: "rxe1", Port: 1, Entries: []gids.Entry{entry(1, of(88))}},
		{Device: "rxe0", Port: 1, Holder: &gids.Owner{}, Entries: []gids.Entry{entry(1, of(88)), entry(9, of(88))}}, // its pod has it alone
	}
	for index := range 10 {
		if other := (place{77, "rxe0", 1, index}).owner(tables); (other != nil) != (index == 2) {
			t.Errorf("index %d: owner %v, want one of index 2 alone", index, other)
		}
	}
}

// A pod is told once for each NIC, and again later each time. The programs without a record
// are one.
func TestAlarmsOfAPodBackOff(t *testing.T) {
	t.Parallel()
	var now time.Duration
	w := New(Config{
		Proc: fstest.MapFS{"5/comm": {Data: []byte("a\x1bb\n")}}, Calls: calls.File{Dir: t.TempDir()},
		Clock: pace.Clock{Now: func() time.Duration { return now }, Rand: func() float64 { return .5 }}, Log: slog.New(slog.DiscardHandler),
	})
	rec := record.Record{
		Network: "n", Attachment: conf.Attachment{ContainerID: "c1", IfName: "net1"}, Pod: conf.Pod{Namespace: "ml", Name: "p1", UID: "u"}, NetnsID: netns.ID{Ino: 77},
		Plan: plan.Plan{Ops: plan.OnHost(plan.GID{Device: plan.RDMADevice{Name: "rxe0"}, Targets: []plan.GIDTarget{{Link: "net1"}}})},
	}
	victim := gids.Owner{Pod: conf.Pod{Namespace: "ml", Name: "p2"}, ContainerID: "c2", Addr: netip.MustParseAddr("172.16.0.2")}
	for ; now < time.Hour; now += time.Second {
		for index := range 3 {
			for _, device := range []string{"rxe0", "rxe1"} {
				w.tell([]record.Record{rec}, place{77, device, 1, index}, 5, victim)
			}
			w.tell([]record.Record{rec}, place{uint64(1000 + now/time.Second), "rxe0", 1, index}, 5, victim)
		}
	}
	all, _, err := w.Calls.After("")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(all); n < 3*10 || n > 3*20 {
		t.Errorf("%d alarms in an hour, want some for each of three", n)
	}
	first := all[0]
	if first.Attachment != rec.Attachment || first.Pod != "ml/p1" || first.UID != "u" || first.Network != "n" || first.Verb != calls.Alarm || first.Steps[0].Name != calls.ForeignGID {
		t.Errorf("the alarm is %+v", first)
	}
	if want := "process 5 (a?b) uses index 0 of the GID table of rxe0/1, which is 172.16.0.2 of ml/p2: "; !strings.HasPrefix(first.Error, want) {
		t.Errorf("it says %q, want %q", first.Error, want)
	}
	if len(w.told) > 3 {
		t.Errorf("%d subjects are kept", len(w.told))
	}
}
