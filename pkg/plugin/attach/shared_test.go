// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// sharedRoute is what the attachments of these tests share.
func sharedRoute() plan.Op {
	return plan.Op{Place: plan.Host, Shared: true, Kind: plan.Route{Link: "ens1", Table: 200, Dst: netip.MustParsePrefix("10.9.0.0/24"), Scope: plan.ScopeLink}}
}

// sharers is a node with two pods and what a pod's attachment does: something of its
// own, something shared, something of its own.
func sharers(t *testing.T) (*world, func(id string) error) {
	t.Helper()
	w := newWorld(t)
	w.fake.Pod(podPath("c1"))
	w.fake.Pod(podPath("c2"))
	return w, func(id string) error { return w.share(w.node(), id) }
}

func (w *world) share(n attach.Node, id string) error {
	rule := func(priority uint32) plan.Op {
		return plan.Op{Kind: plan.Rule{From: netip.MustParsePrefix("10.9.0.5/32"), Table: 100, Priority: priority}}
	}
	return n.AddOps(ctx, w.request(id, "net1", ""), plan.Ops{rule(1), sharedRoute(), rule(2)})
}

// there says whether the host has what is shared.
func (w *world) there() bool { return strings.Contains(w.fake.Host().String(), "10.9.0.0/24") }

func (w *world) mustShare(want bool, when string) {
	w.t.Helper()
	if w.there() != want {
		w.t.Errorf("%s, want what is shared on the host: %v, got\n%s", when, want, w.fake.Host())
	}
}

func TestTheLastAttachmentUndoesWhatIsShared(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		w, add := sharers(t)
		must(t, errors.Join(add("c1"), add("c2")))
		if gone {
			w.fake.RemovePod(podPath("c1"))
			w.fake.RemovePod(podPath("c2"))
		}
		w.mustLeave("c1")
		w.mustShare(true, "after the first DEL")
		w.mustLeave("c2")
		w.mustShare(false, "after the last DEL")
		w.mustBeEmpty("after the last DEL")
	}
}

func TestAFailureAtEveryOpLeavesWhatIsSharedToOthers(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{false, true} {
		for i := 1; ; i++ {
			w, add := sharers(t)
			if shared {
				must(t, add("c1"))
			}
			before := w.fake.Calls()
			w.fake.FailAt(i, errFault)
			err := add("c2")
			if calls := w.fake.Calls() - before; err == nil && calls < i {
				break
			}
			if !errors.Is(err, errFault) {
				t.Errorf("failing at call %d: got %v", i, err)
			}
			when := fmt.Sprintf("after failing at call %d", i)
			w.mustShare(shared, when)
			w.mustLeave("c1", when)
			w.mustShare(false, when+" and DEL")
			w.mustBeEmpty(when)
		}
	}
}

func TestACrashAtEveryOpLeavesWhatIsSharedToOthers(t *testing.T) {
	t.Parallel()
	verbs := map[string]func(w *world, n attach.Node){
		"ADD": func(w *world, n attach.Node) { _ = w.share(n, "c2") },
		"DEL": func(w *world, n attach.Node) { _ = n.Del(ctx, w.del("c2", "net1")) },
	}
	for verb, run := range verbs {
		for _, order := range [][]string{{"c1", "c2"}, {"c2", "c1"}} {
			for at, died := 1, true; died; at++ {
				w, add := sharers(t)
				err := add("c1")
				if verb == "DEL" {
					err = errors.Join(err, add("c2"))
				}
				must(t, err)
				w.crash = at
				died = w.run(func(n attach.Node) { run(w, n) })
				w.crash = 0
				when := fmt.Sprintf("after a crash before operation %d of %s", at, verb)
				w.mustShare(true, when)
				w.mustLeave(order[0], when)
				if order[0] == "c2" {
					w.mustShare(true, when+" and DEL of c2")
				}
				w.mustLeave(order[1], when)
				w.mustShare(false, when+" and both DELs")
				w.mustBeEmpty(when)
			}
		}
	}
}

func TestLastDELsAtOnceLeaveNothing(t *testing.T) {
	t.Parallel()
	for range 30 {
		w, add := sharers(t)
		must(t, errors.Join(add("c1"), add("c2")))
		var both sync.WaitGroup
		for _, id := range []string{"c1", "c2"} {
			both.Go(func() { w.mustLeave(id, "at once") })
		}
		both.Wait()
		w.mustShare(false, "after both DELs")
		w.mustBeEmpty("after both DELs")
	}
}

func TestADELThatWaitsForOthersUntilItIsOverKeepsWhatIsShared(t *testing.T) {
	t.Parallel()
	w, add := sharers(t)
	must(t, add("c1"))
	release, err := w.node().Records.LockShared(ctx)
	must(t, err)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := w.node().Del(ended, w.del("c1", "net1")); cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("got %v, want code %d", err, cnierr.TryAgain)
	}
	w.mustShare(true, "after a DEL that was over")
	release()
	w.mustLeave("c1")
	w.mustBeEmpty("after DEL")
}

func TestAForeignThingIsNeitherSharedNorRemoved(t *testing.T) {
	t.Parallel()
	w, add := sharers(t)
	w.fake.Host().IP("route add 10.9.0.0/24 dev ens1 table 200 proto 4")
	before := w.fake.Host().String()
	err := add("c1")
	if cnierr.CodeOf(err) != cnierr.RouteTaken || !strings.Contains(err.Error(), "10.9.0.0/24") {
		t.Errorf("got %v, want code %d that names the route", err, cnierr.RouteTaken)
	}
	w.mustLeave("c1")
	if got := w.fake.Host().String(); got != before {
		t.Errorf("the host has\n%s\nwant\n%s", got, before)
	}
	w.mustBeEmpty("after DEL")
}

func TestWhatAnUnreadableRecordMayShareStays(t *testing.T) {
	t.Parallel()
	w, add := sharers(t)
	must(t, errors.Join(add("c1"), add("c2")))
	write(t, w.file("c1", "net1.json"), "{")
	w.mustLeave("c2")
	w.mustShare(true, "beside an unreadable record")
}

func TestRepairDoesWhatIsSharedAgain(t *testing.T) {
	t.Parallel()
	w, add := sharers(t)
	must(t, errors.Join(add("c1"), add("c2")))
	w.fake.Host().IP("route del 10.9.0.0/24 dev ens1 table 200")
	if done, err := w.repairs().Repair(ctx, c1); err != nil || len(done) != 1 {
		t.Errorf("did %v, %v, want one operation", done, err)
	}
	w.mustShare(true, "after Repair")
	w.mustLeave("c2")
	w.mustShare(true, "after DEL of c2")
	w.mustLeave("c1")
	w.mustShare(false, "after both DELs")
}

func TestOnlyWhatIsMarkedCanBeShared(t *testing.T) {
	t.Parallel()
	w, _ := sharers(t)
	op := plan.Op{Place: plan.Host, Shared: true, Kind: plan.Address{Link: "ens1", Prefix: netip.MustParsePrefix("10.9.0.1/24")}}
	if err := w.node().AddOps(ctx, w.request("c1", "net1", ""), plan.Ops{op}); cnierr.CodeOf(err) != cnierr.Bug {
		t.Errorf("got %v, want code %d", err, cnierr.Bug)
	}
	w.mustBeEmpty("after ADD")
}
