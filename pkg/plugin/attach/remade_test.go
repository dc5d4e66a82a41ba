// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/flock/flocktest"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/tool/repair"
)

// reset makes the device of ens1 again: the entries of its table come back in order,
// without the holes of pods that have gone. Those of fillers may be the last.
func (w *world) reset(fillersLast bool) {
	w.hca.remade = 77
	t := w.hca.tables.tables["ens1"]
	if fillersLast {
		slices.SortStableFunc(t.entries, func(a, b gidEntry) int { return strings.Compare(a.of.netns, b.of.netns) })
	}
	used := slices.DeleteFunc(slices.Clone(t.entries), func(e gidEntry) bool { return e == (gidEntry{}) })
	t.entries = append(used, make([]gidEntry, len(t.entries)-len(used))...)
}

// TestPodsOfADeviceThatWasMadeAgainGetTheirIndexesBack has two pods of which one is at the
// index of the other, so that neither can be repaired alone, or fillers at the indexes of both.
func TestPodsOfADeviceThatWasMadeAgainGetTheirIndexesBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tables      *gidTables
		fillersLast bool
	}{
		"a pod at the index of another": {newGIDTables(64, 1, 2, 0, 1), false},
		"fillers at those of pods":      {newGIDTables(64, 1, 1, 4, 1), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			promising(t, `"equal"`, c.tables).repairsAfterReset(c.fillersLast)
		})
	}
}

func (w *world) repairsAfterReset(fillersLast bool) {
	t := w.t
	w.comeEqual("c0", "c1", "c2")
	w.mustLeave("c0")
	before, pods := [][][]int{w.indexes("c1"), w.indexes("c2")}, w.fake.String()
	if r := w.repairs().Remade(ctx); len(r) > 0 {
		t.Errorf("before the reset: %v", r)
	}
	w.reset(fillersLast)
	if lost, err := w.repairs().Lost(ctx, c1); err == nil || len(lost) > 0 {
		t.Errorf("a repair of the pod alone is promised: %v, %v", lost.Commands("pod"), err)
	}
	remade := w.repairs().Remade(ctx)
	if len(remade) != 1 || remade[0].String() != "mlx5_0/1" || len(remade[0].Pods) != 2 {
		t.Fatalf("got %v, want one port with two pods", remade)
	}
	w.hca.users = []string{"process 9 (server) uses mlx5_0/1"}
	if err := w.repairs().Reset(ctx, remade, w.repairEach); cnierr.CodeOf(err) != cnierr.RDMAHeld || w.fake.String() != pods {
		t.Errorf("under a program: got %v, want code %d and no change", err, cnierr.RDMAHeld)
	}
	w.hca.users = nil
	must(t, w.repairs().Reset(ctx, remade, w.repairEach))
	if diff := cmp.Diff(before, [][][]int{w.indexes("c1"), w.indexes("c2")}); diff != "" {
		t.Errorf("indexes (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(lines(pods), lines(w.fake.String())); diff != "" && !fillersLast {
		t.Errorf("the pods (-before +after):\n%s", diff)
	}
	w.reset(fillersLast) // the record has the new index now: what moves later is no reset
	if r := w.repairs().Remade(ctx); len(r) > 0 {
		t.Errorf("after the repair: %v", r)
	}
	w.comeEqual("c3")
}

// repairEach is what a caller of Reset has done: the last pod is the first.
func (w *world) repairEach(pods []conf.Attachment) error {
	var errs []error
	for _, at := range slices.Backward(pods) {
		done, err := w.repairs().Repair(ctx, at)
		if slices.ContainsFunc(done, func(op plan.Op) bool { _, looks := op.Kind.(plan.GID); return looks }) {
			w.t.Errorf("repair of %s: %v", at.ContainerID, done.Commands("pod"))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// TestAResetThatFailsLeavesNoPodWithoutAddresses has calls of the kernel fail, another host
// with an address, and a caller that ends. The next reset gives all pods their indexes.
func TestAResetThatFailsLeavesNoPodWithoutAddresses(t *testing.T) {
	t.Parallel()
	try := func(spoil func(*world) context.Context) (calls int) {
		w := promising(t, `"equal"`, newGIDTables(64, 1, 2, 0, 1))
		w.comeEqual("c0", "c1", "c2")
		w.mustLeave("c0")
		was, pods := [][][]int{w.indexes("c1"), w.indexes("c2")}, w.fake.String()
		w.reset(false)
		ports := w.repairs().Remade(ctx)
		before, called := w.fake.Calls(), spoil(w)
		err := w.repairs().Reset(called, ports, func(pods []conf.Attachment) error {
			if called.Err() != nil {
				return called.Err()
			}
			err := w.repairEach(pods)
			calls = w.fake.Calls() - before
			return err
		})
		w.fake.Heal()
		left := slices.DeleteFunc(lines(w.fake.String()), func(line string) bool { // the one that could not be removed
			return strings.HasPrefix(line, "\taddr 169.254.") && strings.HasSuffix(line, "dev net1\n")
		})
		if diff := cmp.Diff(lines(pods), left); diff != "" {
			t.Errorf("after %v the pods have (-before +after):\n%s", err, diff)
		}
		if err := w.repairs().Reset(ctx, w.repairs().Remade(ctx), w.repairEach); err != nil {
			t.Errorf("the next reset: %v", err)
		}
		if diff := cmp.Diff(was, [][][]int{w.indexes("c1"), w.indexes("c2")}); diff != "" {
			t.Errorf("indexes after %v, and the next reset (-before +after):\n%s", err, diff)
		}
		return calls
	}
	for i := 1; try(func(w *world) context.Context { w.fake.FailAt(i, errFault); return ctx }) >= i; i += 1 + i/8 {
	}
	try(func(w *world) context.Context { w.wire.refuse = 1; return ctx })
	try(func(w *world) context.Context {
		ends, end := context.WithCancel(ctx)
		w.before = func(op plan.Op, undo bool) error {
			if undo {
				end()
			}
			return nil
		}
		return ends
	})
}

// TestResetDoesNotStopAnADD has an ADD that holds the lock of a container, and needs that of
// the GID tables.
func TestResetDoesNotStopAnADD(t *testing.T) {
	t.Parallel()
	w := promising(t, `"equal"`, newGIDTables(64, 1, 2, 0, 1))
	w.comeEqual("c0", "c1")
	w.mustLeave("c0")
	w.reset(false)
	records := w.node().Records
	unlock, err := records.Lock(ctx, c1.ContainerID)
	must(t, err)
	cleared := make(chan error, 1)
	port := repair.Remade{Device: device, Pods: []conf.Attachment{c1}}
	go func() {
		cleared <- w.repairs().Reset(ctx, []repair.Remade{port}, func([]conf.Attachment) error { return nil })
	}()
	flocktest.UntilBlocked(t, w.file("c1", "lock"), cleared)
	soon, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if release, err := records.LockGIDs(soon); err != nil {
		t.Error(err)
	} else {
		release()
	}
	unlock()
	if err := <-cleared; err != nil {
		t.Error(err)
	}
}

// TestResetLeavesOutAPodThatHasGone has one pod deleted, and one without namespace, since the
// look at the port.
func TestResetLeavesOutAPodThatHasGone(t *testing.T) {
	t.Parallel()
	w := promising(t, `"equal"`, newGIDTables(64, 1, 2, 0, 1))
	w.comeEqual("c0", "c1", "c2", "c3")
	w.mustLeave("c0")
	w.reset(false)
	remade := w.repairs().Remade(ctx)
	if len(remade) != 1 || len(remade[0].Pods) != 3 {
		t.Fatalf("got %v, want one port with three pods", remade)
	}
	w.mustLeave("c2")
	w.fake.RemovePod(podPath("c3"))
	if err := w.repairs().Reset(ctx, remade, w.repairEach); err != nil {
		t.Error(err)
	}
}
