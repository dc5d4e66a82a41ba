// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/flock/flocktest"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// logged has the world log into the text that is returned.
func (w *world) logged() *bytes.Buffer {
	var b bytes.Buffer
	w.log = slog.New(slog.NewTextHandler(&b, nil))
	return &b
}

// Rules that stay in a pod, and a VLAN that another program uses, are no reason to keep the pod.
func TestWhatStaysThatNoOtherPodSeesDoesNotStopADEL(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		where plan.Place
		why   error
		log   string // "": DEL fails
	}{
		{plan.Pod, kernel.ErrRulesLeft, "rules of the pod stay"},
		{plan.Host, kernel.ErrRulesLeft, ""},
		{plan.Host, kernel.ErrInUse, "a VLAN stays"},
		{plan.Pod, errFault, ""},
	} {
		w, add := sharers(t)
		log := w.logged()
		must(t, add("c1"))
		w.before = func(op plan.Op, undo bool) error {
			if undo && op.Place == c.where {
				return fmt.Errorf("undo: %w", c.why)
			}
			return nil
		}
		err := w.node().Del(ctx, w.del("c1", "net1"))
		if !strings.Contains(log.String(), c.log) || (err == nil) != (c.log != "") || err != nil && !errors.Is(err, c.why) {
			t.Errorf("%s, %v: got %v, log %s", c.where, c.why, err, log)
		}
		if stays := len(w.files()) > 0; stays != (err != nil) {
			t.Errorf("%s, %v: the record stays: %t", c.where, c.why, stays)
		}
		w.before = nil
		w.mustLeave("c1")
	}
}

// The next DEL finds all of it by its mark.
func TestADELWhoseRecordsBreakMeanwhileReportsIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		at   plan.Place // of the operation at which they break
		do   func(w *world)
		code cnierr.Code
		heal func(w *world)
	}{
		"the record": {plan.Host, func(w *world) { write(w.t, w.file("c1", "net1.json"), "{") }, cnierr.Unreadable, func(*world) {}},
		"the folder": {
			plan.Pod, func(w *world) {
				all := filepath.Join(w.dir, "attachments")
				must(w.t, os.Rename(all, all+".hidden"))
				write(w.t, all, "")
			}, cnierr.IO, func(w *world) {
				all := filepath.Join(w.dir, "attachments")
				remove(w.t, all)
				must(w.t, os.Rename(all+".hidden", all))
			},
		},
	} {
		w, add := sharers(t)
		must(t, add("c1"))
		broken := false
		w.before = func(op plan.Op, undo bool) error {
			if undo && op.Place == c.at && !broken {
				broken = true
				c.do(w)
			}
			return nil
		}
		if err := w.node().Del(ctx, w.del("c1", "net1")); !slices.ContainsFunc(cnierr.Each(err), func(e error) bool { return cnierr.CodeOf(e) == c.code }) {
			t.Errorf("%s: got %v, want code %d", name, err, c.code)
		}
		c.heal(w)
		w.mustLeave("c1")
		w.mustBeEmpty("after the second DEL")
	}
}

// A pod can make its link unknown to us, and must not keep the addresses that the next pod gets.
func TestDELTakesTheAddressesOffALinkThatThePodHasChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustCome("c1")
	w.pod.IP("link set net1 alias foo")
	w.pod.IP("link set net1 address 02:00:00:00:00:77")
	w.mustLeave("c1")
	w.mustBeEmpty("after DEL")
}

func TestDELOfWhatIsSharedWorksOnAFullDisk(t *testing.T) {
	t.Parallel()
	w, add := sharers(t)
	log := w.logged()
	must(t, os.MkdirAll(w.dir, 0o700))
	if err := unix.Mount("none", w.dir, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(w.dir, unix.MNT_DETACH)) })
	must(t, errors.Join(add("c1"), add("c2")))
	fill, err := os.Create(filepath.Join(w.dir, "fill"))
	for page := make([]byte, 4096); err == nil; {
		_, err = fill.Write(page)
	}
	must(t, fill.Close())
	w.mustLeave("c1")
	w.mustShare(true, "after the first DEL")
	if !strings.Contains(log.String(), "the record still names what was left to other pods") {
		t.Errorf("the log is %s", log)
	}
	w.mustLeave("c2")
	w.mustShare(false, "after the last DEL")
	w.mustBeEmpty("after the last DEL")
}

func TestAnADDThatGetsNoTurnAtTheGIDTablesLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newRailsWorld(t)
	w.mode, w.hca.each = conf.RDMAShared, true
	w.fake.Pod(podPath("c1"))
	release, err := w.node().Records.LockGIDs(ctx)
	must(t, err)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { _, err := w.node().Add(ctx, w.request("c1", "net1", "")); done <- err }()
	flocktest.UntilBlocked(t, filepath.Join(w.dir, "gids.lock"), done)
	cancel()
	if err := <-done; cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("got %v, want code %d", err, cnierr.TryAgain)
	}
	release()
	w.mustBeEmpty("after ADD")
}

func TestTablesAndDevicesThatCannotBeReadAreErrors(t *testing.T) {
	t.Parallel()
	w := newRailsWorld(t)
	w.mode, w.hca.each = conf.RDMAShared, true
	w.mustCome("c1")
	w.hca.lost = errFault
	if err := w.node().Check(ctx, w.request("c1", "net1", "")); !errors.Is(err, errFault) {
		t.Errorf("CHECK: got %v", err)
	}
	w.mustLeave("c1")
	if _, err := w.node().Add(ctx, w.request("c1", "net1", "")); !errors.Is(err, errFault) {
		t.Errorf("ADD: got %v", err)
	}
	w.mustBeEmpty("after ADD")
	w.hca.lost = nil
	w.fake.FailFrom(1, errFault)
	if err := w.node().Status(ctx, w.request("c1", "net1", "")); !errors.Is(err, errFault) || cnierr.CodeOf(err) != cnierr.NotAvailable {
		t.Errorf("STATUS: got %v", err)
	}
}

func TestEachStepOfAnADDIsMeasured(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Pod(podPath("c1"))
	n := w.node()
	n.Now = func() time.Duration { w.now += time.Second; return w.now }
	var steps []string
	n.Took = func(step string, d time.Duration) {
		if d != time.Second {
			t.Errorf("%s took %v", step, d)
		}
		steps = append(steps, step)
	}
	_, err := n.Add(ctx, w.request("c1", "net1", ""))
	must(t, err)
	rec, err := n.Records.Load(c1)
	must(t, err)
	want := []string{"lease"}
	for _, op := range rec.Plan.Ops {
		if want[len(want)-1] != op.Name() {
			want = append(want, op.Name())
		}
	}
	if diff := cmp.Diff(want, slices.Compact(steps)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A preview has the addresses that the next ADD gets, and leases nothing.
func TestPreviewIsWhatADDWouldPlan(t *testing.T) {
	t.Parallel()
	w := newLinkedWorld(t)
	w.fake.Pod(podPath("c1"))
	req := w.request("c1", "net1", "")
	preview := func() (plan.Plan, error) {
		k, err := w.node().Machine.Open(podPath("c1"))
		must(t, err)
		defer k.Close()
		facts, err := k.Facts(ctx, req)
		must(t, err)
		facts[0].Node = w.node().ID
		return w.node().Preview(ctx, req, facts)
	}
	planned, err := preview()
	must(t, err)
	w.mustBeEmpty("after Preview")
	w.mustAdd(req)
	rec, err := w.node().Records.Load(c1)
	must(t, err)
	if diff := cmp.Diff(strings.Join(rec.Plan.Ops.Commands("pod"), "\n"), strings.Join(planned.Ops.Commands("pod"), "\n")); diff != "" {
		t.Errorf("(-ADD +Preview):\n%s", diff)
	}
	w.mustLeave("c1")
	write(t, filepath.Join(w.dir, "leases.db"), "torn")
	if _, err := preview(); cnierr.CodeOf(err) != cnierr.Unreadable {
		t.Errorf("with leases that cannot be read: %v", err)
	}
	must(t, os.RemoveAll(w.dir))
	if _, err := preview(); cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("without the CIDRs of the Services: %v", err)
	}
}

func TestFillersThatCannotBeMadeOrRemoved(t *testing.T) {
	t.Parallel()
	w := newPromisedWorld(t)
	log := w.logged()
	w.fake.Pod(podPath("c1"))
	w.stuck = errFault
	if _, err := w.node().Add(ctx, w.request("c1", "net1", "")); !errors.Is(err, errFault) {
		t.Errorf("ADD: got %v", err)
	}
	w.stuck = nil
	w.mustBeEmpty("after ADD")
	w.mustAdd(w.request("c1", "net1", ""))
	w.stuck = errFault
	w.mustLeave("c1")
	if !strings.Contains(log.String(), "the fillers of the GID tables stay") || len(w.files()) > 0 {
		t.Errorf("records %v, the log is %s", w.files(), log)
	}
}

func TestTheOnlyInterfaceIsNoRail(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Pod(podPath("c1"))
	w.fake.Host().IP("link set ens1 down")
	if _, err := w.node().Add(ctx, w.request("c1", "net1", "")); cnierr.CodeOf(err) != cnierr.BadParent || strings.Contains(err.Error(), "rail ") {
		t.Errorf("got %v", err)
	}
}

func TestTheNamespaceOfFillersNeedsAFolder(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	if err := (attach.Linux{}).MakeNetns(filepath.Join(file, "folder", "fillers")); cnierr.CodeOf(err) != cnierr.IO || !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("MakeNetns: got %v", err)
	}
	if err := (attach.Linux{}).RemoveNetns(filepath.Join(file, "fillers")); cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("RemoveNetns: got %v", err)
	}
}
