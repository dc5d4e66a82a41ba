// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package usage

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/cluster/counts"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// A look takes two seconds, then five looks fail, and then one takes no time. A reader may use
// what was written until two more looks would have replaced it.
func TestACountStaysWhileLooksFailAndTakesATwentiethOfTheTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		file := counts.File{Dir: t.TempDir()}
		var log strings.Builder
		var pauses, valid []time.Duration
		looks := 0
		look := func(context.Context) ([]Use, error) {
			switch looks++; {
			case looks == 1:
				time.Sleep(2 * time.Second)
			case looks <= 6:
				return nil, errors.New("netlink is away")
			}
			if looks == 7 {
				return []Use{{Device: "rxe0", User: User{Kind: Host}}}, errors.New("netlink is away") // beside the uses
			}
			return []Use{{Device: "rxe0", User: User{Kind: Host}}}, nil
		}
		Count(ctx, file, slog.New(slog.NewTextHandler(&log, nil)), look, func(_ context.Context, d time.Duration) error {
			written, err := file.Read()
			if err != nil {
				t.Fatal(err)
			}
			pauses, valid = append(pauses, d/time.Second), append(valid, time.Until(written.Until)/time.Second)
			if time.Sleep(d); len(pauses) == 8 {
				stop()
			}
			return ctx.Err()
		})
		if diff := cmp.Diff([]time.Duration{40, 15, 15, 15, 15, 15, 15, 15}, pauses); diff != "" {
			t.Errorf("pauses (-want +got)\n%s", diff)
		}
		if diff := cmp.Diff([]time.Duration{120, 80, 65, 50, 35, 20, 45, 45}, valid); diff != "" {
			t.Errorf("what was written is valid for (-want +got)\n%s", diff)
		}
		if got := strings.Count(log.String(), "netlink is away"); got != 1 {
			t.Errorf("the fault is logged %d times, want once\n%s", got, log.String())
		}
		if lines := strings.Count(log.String(), "\n"); lines != 1 {
			t.Errorf("what works again is logged:\n%s", log.String())
		}
		if written, err := file.Read(); err != nil || len(written.Rows) != 1 || written.Rows[0].Device != "rxe0" {
			t.Errorf("%+v was written, error %v", written, err)
		}
	})
}

func TestCountsThatCannotBeWrittenAreAFault(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	var log strings.Builder
	look := func(context.Context) ([]Use, error) { return []Use{}, nil }
	Count(ctx, counts.File{Dir: filepath.Join(t.TempDir(), "none")}, slog.New(slog.NewTextHandler(&log, nil)), look, func(context.Context, time.Duration) error {
		stop()
		return nil
	})
	if !strings.Contains(log.String(), "no such file") {
		t.Errorf("the log is %q", &log)
	}
}

// TestRowsHaveTheNumbersOfTheirUses has another number of each thing. The name of a pod is the ID
// of its container if nothing else is known.
func TestRowsHaveTheNumbersOfTheirUses(t *testing.T) {
	t.Parallel()
	full := Use{
		Device: "rxe0", User: User{Kind: Pod, Pod: conf.Pod{Namespace: "ml", Name: "p1"}, ContainerID: "c1"}, Interface: "net1", QueuePairs: map[string]int{"RC": 1, "UD": 2},
		Held: make([]calls.Held, 7),
	}
	for kind, objects := range map[nldev.Kind]int{nldev.Contexts: 3, nldev.Regions: 4, nldev.Connections: 6} {
		for range objects {
			full.count(kind, nldev.Resource{Bytes: 5})
		}
	}
	uses := []Use{
		full,
		{Device: "rxe1", User: User{Kind: Gone, Pod: conf.Pod{Name: "podman"}, ContainerID: "c2"}},
		{Device: "rxe1", User: User{Kind: Pod, ContainerID: "c3"}},
		{Device: "rxe1", User: User{Kind: Kernel, Module: "nvme_rdma"}},
		{Device: "rxe1", User: User{Kind: Host}},
	}
	want := []counts.Row{
		{Device: "rxe0", User: counts.User{Kind: "pod", Namespace: "ml", Pod: "p1"}, QueuePairs: map[string]int{"RC": 1, "UD": 2}, Contexts: 3, Regions: 4, RegionBytes: 20, Connections: 6, HeldGIDs: 7},
		{Device: "rxe1", User: counts.User{Kind: "gone", Pod: "podman"}},
		{Device: "rxe1", User: counts.User{Kind: "pod", Pod: "c3"}},
		{Device: "rxe1", User: counts.User{Kind: "kernel"}},
		{Device: "rxe1", User: counts.User{Kind: "host"}},
	}
	if diff := cmp.Diff(want, rows(uses)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
