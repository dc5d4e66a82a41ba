// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/scale/sim"
)

const ms = time.Millisecond

// even has a server to which all requests are the same, whatever is in them.
func even() costs {
	c := costs{Requests: map[request]cost{}}
	for _, r := range []request{
		createBlock, meetBlock, getBlock, peekBlock, listMine, listOwn, getLease, putLease, loseLease,
		getPool, putPool, losePool, listPools, missReservation, createReservation, refused,
	} {
		c.Requests[r] = cost{Work: ms, Alone: 5 * ms}
	}
	return c
}

func run1(t *testing.T, c costs, s scenario, limit time.Duration) outcome {
	t.Helper()
	s.Rails = max(1, s.Rails)
	out, err := simulate(t.Context(), c, s, limit, 1)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestARunIsTheSameEachTime(t *testing.T) {
	t.Parallel()
	for _, s := range []scenario{
		{Design: blocks, Nodes: 200, Fill: 90, Spread: time.Second},
		{Design: blocks, Nodes: 50, Fill: 90, Joined: 80, Rule: blind},
		{Design: shared, Nodes: 20, Rails: 2},
		{Design: locked, Nodes: 20, Rails: 2},
	} {
		first, second := run1(t, even(), s, time.Hour), run1(t, even(), s, time.Hour)
		if diff := cmp.Diff(fmt.Sprint(first), fmt.Sprint(second)); diff != "" {
			t.Errorf("%+v: (-first +second)\n%s", s, diff)
		}
		if first.Done != s.Nodes {
			t.Errorf("%+v: %d done", s, first.Done)
		}
	}
}

// With hints every node sends a list and a create, of a millisecond each, and then
// the last answer is on its way for four.
func TestNodesWithHintsTakeWhatTheirRequestsTake(t *testing.T) {
	t.Parallel()
	got := run1(t, even(), scenario{Design: blocks, Nodes: 500, Fill: 90, Hints: true}, time.Hour)
	want := map[request]int{listAll: 500, createBlock: 500}
	if diff := cmp.Diff(want, got.Requests); diff != "" || got.Elapsed != 1004*ms {
		t.Errorf("%v, requests (-want +got)\n%s", got.Elapsed, diff)
	}
}

// One node after the other, in a pool that has no shards.
func TestConflictsOfABlindClaimerAreThoseOfDoubleHashing(t *testing.T) {
	t.Parallel()
	got := run1(t, even(), scenario{Design: blocks, Rule: blind, Nodes: 1000, Fill: 90, Parallel: 1}, time.Hour)
	if met := got.sum(request.conflicting); met < 1.4 || met > 1.7 { // ln(10)/0.9 - 1 = 1.56
		t.Errorf("%.2f conflicts for each node", met)
	}
}

// The first name is not looked at: it has an owner for as many as the pool is full on
// average, less than half. What the cache lacks comes on top.
func TestAReaderSeesAtMostOneOwner(t *testing.T) {
	t.Parallel()
	var met []float64
	for _, lag := range []time.Duration{0, 200 * ms} {
		c := even()
		c.Lag = lag
		got := run1(t, c, scenario{Design: blocks, Nodes: 1000, Fill: 90, Parallel: 1}, time.Hour)
		met = append(met, got.sum(request.conflicting))
	}
	if met[0] < 0.35 || met[0] > 0.5 || met[1] <= met[0] || met[1] > 0.7 {
		t.Errorf("%.2f conflicts for each node", met)
	}
}

func TestNodesBeginWithinTheSpread(t *testing.T) {
	t.Parallel()
	got := run1(t, even(), scenario{Design: blocks, Nodes: 300, Fill: 50, Hints: true, Spread: time.Minute}, time.Hour)
	if got.Done != 300 || got.Elapsed < 58*time.Second || got.Elapsed > 61*time.Second || got.P50 > 20*ms {
		t.Errorf("%d done in %v, half of them in %v", got.Done, got.Elapsed, got.P50)
	}
}

func TestShardsHoldAllNodes(t *testing.T) {
	t.Parallel()
	got := run1(t, even(), scenario{Design: blocks, Rule: sharding, Nodes: 600, Fill: 100}, time.Hour)
	if got.Done != 600 || got.Requests[listMine] != 0 {
		t.Errorf("%d done, requests %v", got.Done, got.Requests)
	}
}

func TestAUserWithManyRequestsIsRefused(t *testing.T) {
	t.Parallel()
	got := run1(t, even(), scenario{Design: blocks, Nodes: 2 * sim.Places, Fill: 90, Hints: true}, time.Hour)
	if got.Done != got.Nodes || got.Requests[refused] < sim.Places {
		t.Errorf("%d done, %d refused", got.Done, got.Requests[refused])
	}
}

// Ten nodes in turn: a get and an update of a lease, a list, two gets, two writes,
// and the lease again, of five milliseconds each. Waiting comes on top.
func TestTheLeaseLetsOneNodeInAtATime(t *testing.T) {
	t.Parallel()
	const nodes, rails = 10, 2
	got := run1(t, even(), scenario{Design: locked, Nodes: nodes, Rails: rails}, time.Hour)
	if got.Elapsed < nodes*rails*8*5*ms {
		t.Errorf("done in %v", got.Elapsed)
	}
	for r, count := range map[request]int{listPools: 1, getPool: 1, missReservation: 1, putPool: 1, createReservation: 1, putLease: 2} {
		if got.Requests[r] != count*nodes*rails {
			t.Errorf("%s: %d times", r, got.Requests[r])
		}
	}
	if got.Requests[losePool] > 0 {
		t.Errorf("%d writes of a pool in vain, under the lease", got.Requests[losePool])
	}
}

// Of all who have read a pool before it is written, one gets to write it.
func TestOneObjectLetsOneNodeInAtATime(t *testing.T) {
	t.Parallel()
	got := run1(t, even(), scenario{Design: shared, Nodes: 40, Rails: 1}, time.Hour)
	if got.Requests[putPool] != 40 || got.Requests[losePool] < 40 || got.Requests[failedADD] == 0 {
		t.Errorf("requests %v", got.Requests)
	}
	if alone := run1(t, even(), scenario{Design: shared, Nodes: 40, Rails: 1, Parallel: 1}, time.Hour); alone.Requests[losePool] > 0 {
		t.Errorf("one by one: requests %v", alone.Requests)
	}
}

func TestWhatIsInAnObjectCosts(t *testing.T) {
	t.Parallel()
	c := even()
	c.Requests[putPool] = cost{Work: ms, Each: ms, Alone: ms}
	got := run1(t, c, scenario{Design: shared, Nodes: 100, Parallel: 1}, time.Hour)
	// A get of 5 ms, and an update of 1 ms and 1 ms for each of 1 to 100 addresses.
	if want := 100*(5*ms+ms) + 100*101/2*ms; got.Elapsed != want {
		t.Errorf("%v, want %v", got.Elapsed, want)
	}
}

func TestNodesThatDoNotFinishInTimeAreCounted(t *testing.T) {
	t.Parallel()
	slow := even()
	slow.Requests[createBlock] = cost{Work: 10 * time.Second, Alone: 10 * time.Second}
	got := run1(t, slow, scenario{Design: blocks, Nodes: 100, Fill: 50, Hints: true}, 301*time.Second)
	// One every ten seconds: 30, of which 24 within four minutes.
	if got.Done != 30 || got.Elapsed != 301*time.Second || got.Late != 100-23 {
		t.Errorf("%d done in %v, %d late", got.Done, got.Elapsed, got.Late)
	}
}
