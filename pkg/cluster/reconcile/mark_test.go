// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// stepsFor looks every two seconds for a while.
func (c *cluster) stepsFor(d time.Duration) {
	for end := c.now + d; c.now < end; c.now += 2 * time.Second {
		_ = c.Run(c.t.Context()) // what ends it is Wait's
	}
}

// there fails the test unless these are the pools; a star is behind the name of one
// that is in use.
func (c *cluster) there(want ...string) {
	c.t.Helper()
	var got []string
	for _, p := range c.pools {
		got = append(got, p.Name+map[bool]string{true: "*"}[p.InUse])
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		c.t.Errorf("after %v there are %v, want %v\n%s", c.now, got, want, c.log.String())
	}
}

func TestAPoolIsMarkedAtOnceIfItMayBeClaimedOf(t *testing.T) {
	t.Parallel()
	c := newCluster(t,
		poolOf(t, "added", 2, `{"rails": [{"subnets": [{"subnet": "10.1.0.0/25"}]}], "nodeSelector": {"gpu": "yes"}}`),
		poolOf(t, "first", 1, flat),
		poolOf(t, "bad", 3, `{"rails": [{"subnets": [{"subnet": "10.9.0.0/33"}]}]}`),
		poolOf(t, "elsewhere", 4, `{"fabric": "storage", "rails": [{"subnets": [{"subnet": "10.1.0.0/25"}]}]}`),
	)
	c.join("plain", nil)
	c.stepsFor(2 * time.Second)
	c.there("added", "bad", "elsewhere*", "first*")
	for name, want := range map[string]string{"bad": "10.9.0.0/33", "added": `addresses of RailPool "first"`, "first": "", "elsewhere": ""} {
		if fault := c.fault(name); (fault == "") != (want == "") || !strings.Contains(fault, want) {
			t.Errorf("%s: %q", name, fault)
		}
	}
	c.pools = append(c.pools, poolOf(t, "new", 5, `{"rails": [{"subnets": [{"subnet": "10.8.0.0/25"}]}]}`))
	c.stepsFor(2 * time.Second)
	c.there("added", "bad", "elsewhere*", "first*", "new*")
	c.stepsFor(10 * time.Second)
	if _, said := c.said["new"]; !said || c.fault("new") != "" {
		t.Errorf("what is said of the new one: %v, %v", said, c.fault("new"))
	}
	c.logs("the pool is now in use", "pool=new")
	lists := c.lists
	c.stepsFor(5 * time.Minute) // no pool is deleted
	if c.marks != 3 || c.lists != lists {
		t.Errorf("%d writes, want one for each pool that is marked, and %d lists of nodes", c.marks, c.lists-lists)
	}
}

// TestPoolsThatCannotBeReadAreSaidOnce has no list, and then no answer whether a deleted pool is used.
func TestPoolsThatCannotBeReadAreSaidOnce(t *testing.T) {
	t.Parallel()
	deleted := poolOf(t, "deleted", 2, flat)
	deleted.InUse, deleted.Deleted = true, true
	c := newCluster(t, deleted)
	for name, fault := range map[string]*error{"the list": &c.away, "the question": &c.unsure} {
		c.stepsFor(20 * time.Second)
		c.log.Reset()
		*fault = block.ErrUnknown
		c.stepsFor(40 * time.Second)
		c.Config.Every = time.Hour
		*fault = nil
		c.stepsFor(14 * time.Second)
		bad, good := strings.Count(c.log.String(), "the RailPools cannot be read or marked"), strings.Count(c.log.String(), "can be read and marked again")
		if bad != 1 || good != 1 {
			t.Errorf("%s: it is said %d times, and %d times that it is over:\n%s", name, bad, good, c.log.String())
		}
	}
}

func TestADeletedPoolGoesWhenNothingOfItIsInUse(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, flat))
	c.stepsFor(2 * time.Second)
	b := c.claim("p", "", 1, "n")
	c.pools[0].Deleted = true
	second := poolOf(t, "second", 2, flat)
	c.pools = append(c.pools, second)
	c.stepsFor(time.Hour)
	c.there("p*", "second")
	if fault := c.fault("p"); !strings.Contains(fault, "1 are left") {
		t.Errorf("what is said of it: %q", fault)
	}
	if err := c.Delete(t.Context(), b.Name, b.UID, b.ResourceVersion); err != nil {
		t.Fatal(err)
	}
	c.stepsFor(40 * time.Second)
	c.claim("p", "", 2, "late") // by a node that has not heard of it
	c.stepsFor(2 * time.Minute)
	c.there("p*", "second")
	late := c.Snapshot()[0]
	if err := c.Delete(t.Context(), late.Name, late.UID, late.ResourceVersion); err != nil {
		t.Fatal(err)
	}
	c.stepsFor(58 * time.Second)
	c.there("p*", "second")
	c.stepsFor(24 * time.Second)
	c.there("second*")
	if !strings.Contains(c.log.String(), "all of its blocks were released") {
		t.Errorf("the log is silent:\n%s", c.log.String())
	}
}

// TestAMinuteWithoutALookDoesNotCount has the API server be away: nodes that had not
// heard of the deletion have not heard of it meanwhile, either.
func TestAMinuteWithoutALookDoesNotCount(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, flat))
	c.stepsFor(2 * time.Second)
	c.pools[0].Deleted = true
	c.stepsFor(20 * time.Second)
	c.away = block.ErrUnknown
	c.stepsFor(10 * time.Minute)
	c.away = nil
	c.stepsFor(56 * time.Second)
	c.there("p*")
	c.stepsFor(10 * time.Second)
	c.there()
}

// TestAPoolThatMayHaveBeenMarkedKeepsItsAddresses gets no answer for the older of two.
func TestAPoolThatMayHaveBeenMarkedKeepsItsAddresses(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "older", 1, flat), poolOf(t, "younger", 2, flat), poolOf(t, "elsewhere", 3, `{"rails": [{"subnets": [{"subnet": "10.8.0.0/25"}]}]}`))
	c.unanswered = "older"
	c.stepsFor(2 * time.Second)
	c.there("elsewhere*", "older", "younger")
	c.unanswered = ""
	c.stepsFor(10 * time.Second)
	c.there("elsewhere*", "older*", "younger")
}

// TestOfTwoPoolsOfTheSameAgeTheNameDecides lists them in both orders.
func TestOfTwoPoolsOfTheSameAgeTheNameDecides(t *testing.T) {
	t.Parallel()
	a, b := poolOf(t, "a", 1, flat), poolOf(t, "b", 1, flat)
	for _, pools := range [][]block.Pool{{a, b}, {b, a}} {
		c := newCluster(t, pools...)
		c.stepsFor(2 * time.Second)
		c.there("a*", "b")
	}
}

// TestADeletedPoolThatWasNeverInUseIsLeftAlone: another client has a finalizer on it.
func TestADeletedPoolThatWasNeverInUseIsLeftAlone(t *testing.T) {
	t.Parallel()
	p := poolOf(t, "p", 1, flat)
	p.Deleted = true
	c := newCluster(t, p)
	c.stepsFor(5 * time.Minute)
	if c.there("p"); c.marks != 0 {
		t.Errorf("it is written %d times", c.marks)
	}
}

// TestWithoutAnAnswerAPoolMayBeUsed has a new pool, and a deleted one, and one of which it is known.
func TestWithoutAnAnswerAPoolMayBeUsed(t *testing.T) {
	t.Parallel()
	deleted := poolOf(t, "deleted", 2, flat)
	deleted.InUse, deleted.Deleted = true, true
	known := poolOf(t, "known", 3, `{"rails": [{"subnets": [{"subnet": "10.9.0.0/25"}]}]}`)
	known.InUse, known.Deleted = true, true
	c := newCluster(t, poolOf(t, "new", 1, `{"rails": [{"subnets": [{"subnet": "10.8.0.0/25"}]}]}`), deleted, known)
	c.unsure = block.ErrUnknown
	c.stepsFor(10 * time.Minute)
	c.there("deleted*", "known*", "new")
	c.unsureOf = "deleted"
	c.stepsFor(2 * time.Minute)
	c.there("deleted*", "new*")
	c.unsure = nil
	c.stepsFor(2 * time.Minute)
	c.there("new*")
}

// TestAMarkOfAPoolThatHasChangedIsTriedAgain, which is no fault.
func TestAMarkOfAPoolThatHasChangedIsTriedAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, flat))
	c.refuse = block.ErrConflict
	c.stepsFor(30 * time.Second)
	c.refuse = nil
	c.stepsFor(12 * time.Second)
	c.there("p*")
	if strings.Contains(c.log.String(), "level=WARN") {
		t.Errorf("the log is\n%s", c.log.String())
	}
}

// TestTheEndIsNoFault has the process end while it waits for the API server.
func TestTheEndIsNoFault(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, flat))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.away, c.err, c.deaf = block.ErrUnknown, block.ErrUnknown, block.ErrUnknown
	c.Config.Rails = time.Minute
	_ = c.Run(ctx) // what ends it is Wait's
	if c.log.Len() > 0 {
		t.Errorf("the log is\n%s", c.log.String())
	}
}

// TestAPoolThatChangesOftenHasFewRounds, because a round lists all nodes.
func TestAPoolThatChangesOftenHasFewRounds(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, flat))
	for i := range 30 {
		c.pools[0].Spec.MaxBlocksPerNode = 1 + i
		c.stepsFor(2 * time.Second)
	}
	if c.lists < 5 || c.lists > 7 {
		t.Errorf("%d lists of nodes in a minute, want one in ten seconds", c.lists)
	}
}

// TestNodesAreNotListedBecausePoolsAreLookedAt counts what costs a large cluster.
func TestNodesAreNotListedBecausePoolsAreLookedAt(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, flat), poolOf(t, "q", 2, flat))
	c.refuse = errors.New("it may not")
	c.stepsFor(9 * time.Minute)
	if c.steps < 270 || c.lists != 1 || c.marks < 50 || c.marks > 60 {
		t.Errorf("%d glances, %d lists of nodes, %d tries to mark a pool", c.steps, c.lists, c.marks)
	}
	defer func() { // q, which overlaps p, waits for a change
		before := c.strangers
		if c.stepsFor(5 * time.Minute); c.strangers != before {
			t.Errorf("blocks of other pools were listed %d times, and nothing has changed", c.strangers-before)
		}
	}()
	if n := strings.Count(c.log.String(), "level=WARN"); n != 1 {
		t.Errorf("said %d times:\n%s", n, c.log.String())
	}
	c.refuse, c.away = nil, block.ErrUnknown
	c.stepsFor(4 * time.Second)
	c.away = nil
	c.stepsFor(4 * time.Second)
	c.there("p*", "q")
	if !strings.Contains(c.log.String(), "marked again") {
		t.Errorf("the log is silent:\n%s", c.log.String())
	}
}

// TestADeletedPoolHasNoStickyAddresses has a lease that no node holds.
func TestADeletedPoolHasNoStickyAddresses(t *testing.T) {
	t.Parallel()
	p := poolOf(t, "p", 1, kept)
	for deleted, ttl := range map[bool]time.Duration{false: 3 * time.Hour, true: 0} {
		c := newCluster(t, p)
		c.join("n", nil)
		c.release(c.hold("trainer-0", "n"))
		c.pools[0].Deleted = deleted
		o, err := c.Overview(t.Context())
		if err != nil || len(o.Idle) != 1 || o.Idle[0].TTL != ttl {
			t.Errorf("deleted %v: %+v, %v", deleted, o.Idle, err)
		}
	}
}

// TestADeletedPoolSaysWhatItWaitsFor has a node hold a slot, and no block.
func TestADeletedPoolSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, kept), poolOf(t, "q", 2, flat))
	c.join("n", nil)
	l := c.hold("trainer-0", "n")
	c.pools[0].Deleted = true
	for _, want := range []string{"1 are left", "no node has any of its blocks"} {
		c.rounds(10 * time.Minute)
		if fault := c.fault("p"); !strings.Contains(fault, want) {
			t.Errorf("got %q, want %s", fault, want)
		}
		if is := c.said["p"].Conditions[0]; is.Reason != "Deleted" {
			t.Errorf("the condition is %+v", is)
		}
		if l.Spec.Holder != (block.Owner{}) {
			c.release(l)
			l.Spec.Holder = block.Owner{}
		}
	}
}

// TestWhatNodesHaveIsMarkedFirst has blocks of the younger of two pools without marks:
// it was made again after a deletion by mistake.
func TestWhatNodesHaveIsMarkedFirst(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "older", 1, flat), poolOf(t, "younger", 2, flat))
	c.claim("younger", "", 1, "n")
	c.stepsFor(12 * time.Second)
	c.there("older", "younger*")
}

// TestABlockMadeInAdvanceMarksNoPoolThatIsWrong has an attacker with the token of one node.
func TestABlockMadeInAdvanceMarksNoPoolThatIsWrong(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "there", 1, flat), poolOf(t, "overlaps", 2, flat), poolOf(t, "broken", 3, `{"rails": [{"subnets": [{"subnet": "10.3.0.0/24", "gateway": "10.4.0.1"}]}]}`))
	c.claim("overlaps", "", 1, "foe")
	c.claim("broken", "", 1, "foe")
	c.pools[0].InUse = true
	c.stepsFor(12 * time.Second)
	c.there("broken", "overlaps", "there*")
}

// TestNoPoolIsMarkedWhileThereAreBlocksOfOneThatIsGone has an operator take the mark off a
// deleted pool by hand, and make it again.
func TestNoPoolIsMarkedWhileThereAreBlocksOfOneThatIsGone(t *testing.T) {
	t.Parallel()
	gone := poolOf(t, "gone", 3, flat)
	c := newCluster(t, poolOf(t, "waits", 1, flat))
	c.claim("gone", "", 1, "n")
	c.claim("gone", "", 2, "m")
	c.stepsFor(12 * time.Second)
	c.there("waits")
	if fault := c.fault("waits"); !strings.Contains(fault, "there are blocks of RailPool gone, which is gone") {
		t.Errorf("what is said of it: %q", fault)
	}
	c.pools = append(c.pools, gone)
	c.stepsFor(2 * time.Second)
	c.there("gone*", "waits")
	c.pools[1].Deleted = true
	for _, b := range c.Snapshot() {
		if err := c.Delete(t.Context(), b.Name, b.UID, b.ResourceVersion); err != nil {
			t.Fatal(err)
		}
	}
	c.stepsFor(90 * time.Second)
	c.there("waits*")
	// The reaper remembers pools that were in use and were not released. One block of such
	// a pool is enough.
	c.claim("gone", "", 1, "n")
	c.pools = append(c.pools, poolOf(t, "second", 4, `{"rails": [{"subnets": [{"subnet": "10.8.0.0/24"}]}]}`))
	c.stepsFor(12 * time.Second)
	c.there("second*", "waits*")
	c.claim("waits", "", 1, "n")
	used := poolOf(t, "used", 6, `{"rails": [{"subnets": [{"subnet": "10.7.0.0/24"}]}]}`)
	used.InUse = true
	c.pools = []block.Pool{poolOf(t, "third", 5, `{"rails": [{"subnets": [{"subnet": "10.9.0.0/24"}]}]}`), used}
	c.stepsFor(12 * time.Second)
	c.there("third", "used*")
	if a, b := c.fault("third"), c.fault("used"); a == "" || b != "" {
		t.Errorf("said of the one that waits: %q, of the one that is in use: %q", a, b)
	}
}

// TestAPoolIsMarkedWhenTheBlocksOfOneThatIsGoneAreReleased changes no pool.
func TestAPoolIsMarkedWhenTheBlocksOfOneThatIsGoneAreReleased(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "waits", 1, flat))
	c.claim("gone", "", 1, "n")
	c.claim("gone", "", 2, "m")
	c.stepsFor(time.Minute)
	c.there("waits")
	for _, b := range c.Snapshot() {
		if err := c.Delete(t.Context(), b.Name, b.UID, b.ResourceVersion); err != nil {
			t.Fatal(err)
		}
	}
	c.stepsFor(12 * time.Second)
	c.there("waits*")
}

// TestBlocksOfOneNodeForAPoolThatNeverExistedStopNoPool has an attacker with the token of
// one node.
func TestBlocksOfOneNodeForAPoolThatNeverExistedStopNoPool(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "new", 1, flat))
	c.claim("nosuch", "", 0, "foe")
	c.claim("nosuch", "", 1, "foe")
	c.claim("nosuch-either", "", 0, "foe")
	c.stepsFor(2 * time.Second)
	c.there("new*")
	const line = "one node has blocks of a RailPool that does not exist"
	if n := strings.Count(c.log.String(), line); n != 2 {
		t.Errorf("it is logged %d times, want once for each pool:\n%s", n, c.log.String())
	}
	for i := range 200 {
		c.claim(fmt.Sprint("nosuch", i), "", 0, "foe")
	}
	c.pools = append(c.pools, poolOf(t, "second", 2, `{"rails": [{"subnets": [{"subnet": "10.8.0.0/25"}]}]}`))
	c.stepsFor(2 * time.Second)
	if n := strings.Count(c.log.String(), line); n != 100 {
		t.Errorf("it is logged %d times, want 100 at most", n)
	}
}

// TestWhatIsWrongWithAPoolIsReported has a pool without a free slot, of which nothing can
// be claimed, and a block of another size, which stops no claim.
func TestWhatIsWrongWithAPoolIsReported(t *testing.T) {
	t.Parallel()
	c := newCluster(t,
		poolOf(t, "reserved", 1, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}], "reservations": [{"ranges": ["10.0.0.0/24"], "reason": "all"}]}`),
		poolOf(t, "resized", 2, `{"blockSize": 32, "rails": [{"subnets": [{"subnet": "10.1.0.0/24"}]}]}`),
	)
	wrong := c.claim("resized", "", 1, "n")
	wrong.Name, wrong.Spec.Index, wrong.Spec.Size = "resized-2", 2, 32 // one that is right
	if _, err := c.Create(t.Context(), wrong); err != nil {
		t.Fatal(err)
	}
	c.stepsFor(2 * time.Second)
	for name, want := range map[string]string{"reserved": "no host index is usable", "resized": "it has 16 host indexes, the blocks of the pool have 32"} {
		if fault, attention := c.fault(name), c.attention(name); !strings.Contains(fault+attention, want) || (fault == "") == (attention == "") {
			t.Errorf("%s: fault %v, attention %v", name, fault, attention)
		}
	}
}

func TestANodeWithMoreBlocksThanThePoolAllowsIsReported(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, `{"maxBlocksPerNode": 2, "rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}]}`))
	c.claim("p", "", 1, "n")
	c.claim("p", "", 2, "n")
	c.claim("p", "", 3, "m")
	c.stepsFor(2 * time.Second)
	if attention := c.attention("p"); attention != "" {
		t.Errorf("two blocks: %s", attention)
	}
	c.claim("p", "", 4, "n")
	c.rounds(20 * time.Minute)
	if fault, attention := c.fault("p"), c.attention("p"); !strings.Contains(attention, `blocks of node "n"`) || fault != "" {
		t.Errorf("three blocks: %q, fault %q", attention, fault)
	}
}
