// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package sticky_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky/stickytest"
)

// cluster answers what a reaper asks. Node i reports machine-id i.
type cluster struct {
	nodes block.Nodes
	bound map[string]bool
	err   error
}

func newCluster(nodes ...int) *cluster {
	c := &cluster{nodes: block.Nodes{}, bound: map[string]bool{}}
	for _, i := range nodes {
		c.nodes[holder(i).NodeName] = holder(i).MachineID
	}
	return c
}

func (c *cluster) Machine(_ context.Context, node string) (string, error) {
	id, there := c.nodes[node]
	if !there && c.err == nil {
		return "", block.ErrNotFound
	}
	return id, c.err
}

func (c *cluster) Bound(_ context.Context, node string) (bool, error) { return c.bound[node], c.err }

// look is one look at all leases, at a time after day.
func (c *cluster) look(t *testing.T, s block.Sightings, store *stickytest.Mem, pools []block.Pool, now time.Duration) (block.Sightings, []string, []sticky.Lease) {
	t.Helper()
	next, due := sticky.Look(s, now, day().Add(now), sticky.World{Leases: store.Snapshot(), Pools: sticky.TermsOf(pools), Nodes: c.nodes, Bound: c.bound})
	var names []string
	for _, l := range due {
		names = append(names, l.Name)
	}
	return next, names, due
}

func (c *cluster) reap(t *testing.T, store sticky.Store, due sticky.Lease) bool {
	t.Helper()
	done, err := sticky.Reap(t.Context(), store, c, day().Add(time.Hour), due)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

const minute = time.Minute

// without returns all leases but one.
func without(store *stickytest.Mem, name string) []sticky.Lease {
	return slices.DeleteFunc(store.Snapshot(), func(l sticky.Lease) bool { return l.Name == name })
}

func TestALeaseWithoutAHolderStaysForTheTTL(t *testing.T) {
	t.Parallel()
	store, s, c := stickytest.NewMem(), slots(t, 4), newCluster(1)
	store.Now = day
	kept := put(t, store, s, 79, pod(2), block.Owner{})
	kept.Spec.Keep = true
	mustTake(t, claimer(store, 1), s, pod(1))
	idle := mustTake(t, claimer(store, 1), s, pod(0)).Name
	mustRelease(t, claimer(store, 1), must(t, store, idle))
	store.Restore(append(without(store, kept.Name), kept))
	pools := []block.Pool{pool(t, 4)}

	steps := []struct {
		at   time.Duration
		want []string
	}{{0, nil}, {12 * time.Hour, nil}, {24*time.Hour - minute, nil}, {24 * time.Hour, []string{idle}}}
	var sightings block.Sightings
	var due []sticky.Lease
	for _, step := range steps {
		var names []string
		sightings, names, due = c.look(t, sightings, store, pools, step.at)
		if diff := cmp.Diff(step.want, names); diff != "" {
			t.Errorf("after %v: (-want +got)\n%s", step.at, diff)
		}
	}
	if !c.reap(t, store, due[0]) || len(store.Snapshot()) != 2 || c.reap(t, store, due[0]) {
		t.Errorf("%d leases are left", len(store.Snapshot()))
	}
}

// TestAReaperThatIsRestartedReapsByTheClockAfterTheQuarantine: the time of the last write counts,
// but only once the quarantine was seen to pass.
func TestAReaperThatIsRestartedReapsByTheClockAfterTheQuarantine(t *testing.T) {
	t.Parallel()
	store, s, c := stickytest.NewMem(), slots(t, 4), newCluster(1)
	store.Now = day
	mustRelease(t, claimer(store, 1), mustTake(t, claimer(store, 1), s, pod(0)))
	pools := []block.Pool{pool(t, 4, `, "quarantine": "30m"`)}
	sightings, names, _ := c.look(t, block.Sightings{}, store, pools, 48*time.Hour)
	if len(names) > 0 {
		t.Errorf("due at the first look: %v", names)
	}
	sightings, names, _ = c.look(t, sightings, store, pools, 48*time.Hour+29*minute)
	if len(names) > 0 {
		t.Errorf("due before it has rested: %v", names)
	}
	if _, names, _ = c.look(t, sightings, store, pools, 48*time.Hour+30*minute); len(names) != 1 {
		t.Errorf("not due: %v", names)
	}
}

func TestATimeInTheFutureDoesNotKeepALeaseForEver(t *testing.T) {
	t.Parallel()
	store, s, c := stickytest.NewMem(), slots(t, 4), newCluster(1)
	store.Now = day
	l := put(t, store, s, 70, pod(0), block.Owner{})
	l.Spec.Written = day().Add(10000 * time.Hour)
	store.Restore([]sticky.Lease{l})
	pools := []block.Pool{pool(t, 4)}
	sightings, _, _ := c.look(t, block.Sightings{}, store, pools, 0)
	sightings, names, _ := c.look(t, sightings, store, pools, 23*time.Hour)
	if len(names) > 0 {
		t.Errorf("due early: %v", names)
	}
	if _, names, _ = c.look(t, sightings, store, pools, 24*time.Hour); len(names) != 1 {
		t.Errorf("not due: %v", names)
	}
}

func TestAPodThatComesBackInTimeKeepsItsSlot(t *testing.T) {
	t.Parallel()
	store, s, c := stickytest.NewMem(), slots(t, 4), newCluster(1)
	d := claimer(store, 1)
	l := mustTake(t, d, s, pod(0))
	mustRelease(t, d, l)
	pools := []block.Pool{pool(t, 4)}
	sightings, _, _ := c.look(t, block.Sightings{}, store, pools, 0)
	_, names, due := c.look(t, sightings, store, pools, 24*time.Hour)
	if len(names) != 1 {
		t.Fatalf("due: %v", names)
	}
	mustTake(t, d, s, pod(0)) // between the look and the reaping
	if c.reap(t, store, due[0]) {
		t.Error("what was taken again was reaped")
	}
	mustRelease(t, d, l)
	d.Now = func() time.Time { return day().Add(24 * time.Hour) }
	mustRelease(t, d, mustTake(t, d, s, pod(0)))
	if _, names, _ = c.look(t, sightings, store, pools, 25*time.Hour); len(names) > 0 {
		t.Errorf("due an hour after it was used: %v", names)
	}
}

func TestLeasesOfAPoolThatIsGoneGoWithIt(t *testing.T) {
	t.Parallel()
	store, s, c := stickytest.NewMem(), slots(t, 4), newCluster(1)
	store.Now = day
	mustRelease(t, claimer(store, 1), mustTake(t, claimer(store, 1), s, pod(0)))
	mustTake(t, claimer(store, 1), s, pod(1))
	plain := pool(t, 4)
	plain.Spec.Sticky = nil
	for _, pools := range [][]block.Pool{nil, {plain}} {
		sightings, names, _ := c.look(t, block.Sightings{}, store, pools, 23*time.Hour)
		if len(names) > 0 {
			t.Errorf("due early: %v", names)
		}
		sightings, names, _ = c.look(t, sightings, store, pools, 24*time.Hour-minute)
		if len(names) > 0 {
			t.Errorf("due early: %v", names)
		}
		if _, names, _ = c.look(t, sightings, store, pools, 24*time.Hour+minute); !cmp.Equal(names, []string{firstOf(s, 0)}) {
			t.Errorf("due: %v", names)
		}
		if _, names, _ = c.look(t, block.Sightings{}, store, pools, 24*time.Hour+minute); len(names) > 0 {
			t.Errorf("due at the first look: %v", names)
		}
	}
}

func TestALeaseIsFreedForItsPodWhenItsHolderIsGone(t *testing.T) {
	t.Parallel()
	store, s, c := stickytest.NewMem(), slots(t, 4), newCluster(2)
	l := mustTake(t, claimer(store, 1), s, pod(0))
	l.Spec.Keep = true // that is about the pod
	store.Restore([]sticky.Lease{l, mustTake(t, claimer(store, 2), s, pod(1))})
	pools := []block.Pool{pool(t, 4)}
	if missing := c.nodes.Missing(sticky.Owners(store.Snapshot())); !cmp.Equal(missing, []string{"node-1"}) {
		t.Errorf("missing: %v", missing)
	}
	c.bound["node-1"] = true
	sightings, _, _ := c.look(t, block.Sightings{}, store, pools, 0)
	sightings, names, _ := c.look(t, sightings, store, pools, 2*time.Hour)
	if len(names) > 0 {
		t.Errorf("a pod is bound there: %v", names)
	}
	delete(c.bound, "node-1")
	sightings, _, _ = c.look(t, sightings, store, pools, 3*time.Hour)
	sightings, names, _ = c.look(t, sightings, store, pools, 3*time.Hour+59*minute)
	if len(names) > 0 {
		t.Errorf("due early: %v", names)
	}
	_, names, due := c.look(t, sightings, store, pools, 4*time.Hour)
	if !cmp.Equal(names, []string{l.Name}) {
		t.Fatalf("due: %v", names)
	}

	c.bound["node-1"] = true
	if c.reap(t, store, due[0]) {
		t.Error("freed beside a pod")
	}
	delete(c.bound, "node-1")
	c.nodes["node-1"] = ""
	if c.reap(t, store, due[0]) {
		t.Error("freed from a node that is back")
	}
	delete(c.nodes, "node-1")
	if !c.reap(t, store, due[0]) || c.reap(t, store, due[0]) {
		t.Error("not freed, or twice")
	}
	now := must(t, store, l.Name)
	if now.Spec.Holder != (block.Owner{}) || now.Spec.Key() != pod(0) || !now.Spec.Written.Equal(day().Add(time.Hour).Truncate(time.Microsecond)) {
		t.Errorf("it is %+v", now)
	}
	if got := mustTake(t, claimer(store, 2), s, pod(0)); got.Name != l.Name {
		t.Errorf("took %s", got.Name)
	}
	_, err := claimer(store, 1).Affirm(t.Context(), l)
	wantHeld(t, err, 2)
}

func TestAHolderThatWritesLives(t *testing.T) {
	t.Parallel()
	store, s, c := stickytest.NewMem(), slots(t, 4), newCluster(2)
	l := mustTake(t, claimer(store, 1), s, pod(0))
	pools := []block.Pool{pool(t, 4)}
	sightings, _, _ := c.look(t, block.Sightings{}, store, pools, 0)
	_, _, due := c.look(t, sightings, store, pools, time.Hour)
	l, err := claimer(store, 1).Affirm(t.Context(), l)
	if err != nil || len(due) != 1 || c.reap(t, store, due[0]) {
		t.Errorf("error %v, %d due, or freed", err, len(due))
	}
	if _, names, _ := c.look(t, sightings, store, pools, 2*time.Hour); len(names) > 0 {
		t.Errorf("due at the first look since it was written: %v", names)
	}
	if now := must(t, store, l.Name); now != l {
		t.Errorf("it is %+v", now)
	}
}

func TestWithoutAnAnswerNothingIsReportedAsReaped(t *testing.T) {
	t.Parallel()
	store, s, c := stickytest.NewMem(), slots(t, 4), newCluster()
	l := mustTake(t, claimer(store, 1), s, pod(0))
	c.err = block.ErrUnknown
	if done, err := sticky.Reap(t.Context(), store, c, day(), l); done || !errors.Is(err, block.ErrUnknown) || must(t, store, l.Name) != l {
		t.Errorf("%t, error %v", done, err)
	}
	c.err = nil
	store.Fault = func(blocktest.Op, string) blocktest.Fault { return blocktest.Lost }
	for _, l := range []sticky.Lease{l, {Name: l.Name, UID: l.UID, ResourceVersion: l.ResourceVersion}} {
		if done, err := sticky.Reap(t.Context(), store, c, day(), l); done || !errors.Is(err, block.ErrUnknown) {
			t.Errorf("%t, error %v", done, err)
		}
	}
}
