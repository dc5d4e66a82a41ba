// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/flock/flocktest"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// TestOneAttachmentAtATimeFillsTheGIDTables has another attachment at work on
// the tables: an ADD of several rails waits before its first address, a DEL
// before it removes anything. Then each holds the lock while it sets or removes addresses.
func TestOneAttachmentAtATimeFillsTheGIDTables(t *testing.T) {
	t.Parallel()
	w := newRailsWorld(t)
	w.mode, w.hca.each = conf.RDMAShared, true
	w.fake.Pod(podPath("c1"))
	w.before = func(op plan.Op, undo bool) error {
		if _, sets := op.Kind.(plan.Address); sets || undo {
			soon, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			if release, err := w.node().Records.LockGIDs(soon); err == nil {
				release()
				t.Errorf("%T without the lock, undo %v", op.Kind, undo)
			}
		}
		return nil
	}
	whole := ""
	for _, call := range []struct {
		name   string
		do     func() error
		before func(state string) bool // what the pod may have while the call waits
	}{
		{
			"ADD", func() error { _, err := w.node().Add(ctx, w.request("c1", "net1", "")); return err },
			func(state string) bool { return !strings.Contains(state, "addr ") },
		},
		{
			"DEL", func() error { return w.node().Del(ctx, w.del("c1", "net1")) },
			func(state string) bool { return state == whole },
		},
	} {
		release, err := w.node().Records.LockGIDs(ctx)
		must(t, err)
		done := make(chan error, 1)
		go func() { done <- call.do() }()
		flocktest.UntilBlocked(t, filepath.Join(w.dir, "gids.lock"), done)
		if state := w.fake.String(); !call.before(state) {
			t.Errorf("%s does not wait with:\n%s", call.name, state)
		}
		release()
		if err := <-done; err != nil {
			t.Fatalf("%s: %v", call.name, err)
		}
		whole = w.fake.String()
	}
	w.mustBeEmpty("in the end")
}

// TestTheUndoOfAnADDHasAnEnd has a call that keeps the lock of the GIDs for longer than ADD
// can wait. The undo goes on without the lock after half of its time, so it must have an end.
func TestTheUndoOfAnADDHasAnEnd(t *testing.T) {
	t.Parallel()
	w := newRailsWorld(t)
	w.wire.silent = true
	w.fake.Pod(podPath("c1"))
	n, undone := w.node(), 0
	n.Machine = watched{machine{w}, func(ctx context.Context) {
		undone++
		if _, ends := ctx.Deadline(); !ends {
			t.Error("the undo has no end")
		}
	}}
	if _, err := n.Add(ctx, w.request("c1", "net1", "")); cnierr.CodeOf(err) != cnierr.GatewaySilent || undone == 0 {
		t.Errorf("ADD with a silent gateway, with %d undos: %v", undone, err)
	}
	w.mustBeEmpty("in the end")
}

// watched is a machine that tells with which context something is undone.
type watched struct {
	machine
	undo func(context.Context)
}

func (m watched) Open(netns string) (attach.Kernel, error) {
	k, err := m.machine.Open(netns)
	return watchedKernel{k, m.undo}, err
}

type watchedKernel struct {
	attach.Kernel
	undo func(context.Context)
}

func (k watchedKernel) Undo(ctx context.Context, run ...plan.Op) error {
	k.undo(ctx)
	return k.Kernel.Undo(ctx, run...)
}

// TestDELEndsWithoutTheLockOfTheGIDs has a call that keeps the lock for longer than DEL
// can wait.
func TestDELEndsWithoutTheLockOfTheGIDs(t *testing.T) {
	t.Parallel()
	w := newRailsWorld(t)
	w.mode, w.hca.each = conf.RDMAShared, true
	w.mustCome("c1")
	release, err := w.node().Records.LockGIDs(ctx)
	must(t, err)
	defer release()
	call, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := w.node().Del(call, w.del("c1", "net1")); err != nil {
		t.Error(err)
	}
	w.mustBeEmpty("in the end")
}
