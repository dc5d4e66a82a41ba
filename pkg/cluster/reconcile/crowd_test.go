// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package reconcile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/reconcile"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
)

// flood makes that many blocks and free leases of pools, as an agent can that was taken over.
// Without a node it makes leases alone, as an operator can.
func (c *cluster) flood(pool, node string, n int) {
	c.t.Helper()
	for i := range n {
		name := fmt.Sprintf("%s-%d", pool, i)
		if node != "" {
			if _, err := c.Create(c.t.Context(), block.Block{Name: name, Spec: block.Spec{Pool: pool, Index: i, Size: 16, Owner: block.Owner{NodeName: node, MachineID: "machine-of-" + node}}}); err != nil {
				c.t.Fatal(err)
			}
		}
		name = fmt.Sprintf("%s-s%d", pool, i)
		if _, err := c.kept.Create(c.t.Context(), sticky.Lease{Name: name, Spec: sticky.Spec{Pool: pool, Slot: i, Namespace: "default", Pod: fmt.Sprintf("x-%d", i), Interface: "net1"}}); err != nil {
			c.t.Fatal(err)
		}
		c.creators[name] = node
	}
	if node != "" {
		c.join(node, nil)
	}
}

func TestOneNodeCannotMakeTheReaperKeepWhatItLikes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, strings.ReplaceAll(kept, "/24", "/16")))
	c.claim("p", "", 1, "friend")
	c.hold("db-0", "friend")
	c.flood("nosuch", "foe", 3000)
	c.flood("another", "a-foe", 1100)
	o, err := c.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for _, h := range o.Holdings {
		blocks += h.Blocks
	}
	if want := 2 * 1024; blocks != want+1 || len(o.Idle) != want {
		t.Errorf("%d blocks and %d free leases are kept, want %d each and one", blocks, len(o.Idle), want)
	}
	want := []reconcile.Crowd{
		{Kind: "RailBlock", Node: "foe", Count: 3000},
		{Kind: "RailLease", Node: "foe", Count: 3000},
		{Kind: "RailBlock", Node: "a-foe", Count: 1100},
		{Kind: "RailLease", Node: "a-foe", Count: 1100},
	}
	if !slices.Equal(o.Crowds, want) {
		t.Errorf("too many have %v, want %v", o.Crowds, want)
	}
	c.rounds(20 * time.Minute)
	if a, b := len(c.Mem.Snapshot()), len(c.kept.Snapshot()); a != 2049 || b != 2049 {
		t.Errorf("%d blocks and %d leases are left of a pool that does not exist", a, b)
	}
	if !strings.Contains(c.log.String(), "node=foe kind=RailLease count=3000") {
		t.Errorf("the log does not name the node:\n%s", c.log.String())
	}
	if len(c.said) == 0 {
		t.Error("nothing was reported")
	}
}

// TestWhatIsOfAPoolThatHasJustBeenMadeStays has the pool appear while its leases are listed.
func TestWhatIsOfAPoolThatHasJustBeenMadeStays(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := poolOf(t, "p", 1, strings.ReplaceAll(kept, "/24", "/8"))
	c.flood("p", "much", 1100)
	c.listed = func() { c.pools = []block.Pool{p} }
	c.rounds(10 * time.Minute)
	if a, b := len(c.Mem.Snapshot()), len(c.kept.Snapshot()); a != 1100 || b != 1100 {
		t.Errorf("%d blocks and %d leases are left", a, b)
	}
}

func TestWhatAnOperatorMakesIsNoCrowd(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, strings.ReplaceAll(kept, "/24", "/8")))
	c.flood("p", "", 1100)
	if o, err := c.Overview(t.Context()); err != nil || len(o.Idle) != 1100 || len(o.Crowds) != 0 {
		t.Errorf("%d leases, crowds %v, error %v", len(o.Idle), o.Crowds, err)
	}
}

// TestAsManyAsANodeMayHaveIsNoCrowd has one node with so many, and one with one more. What is too
// much of a pool that does not exist cannot be deleted.
func TestAsManyAsANodeMayHaveIsNoCrowd(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"RailBlock", "RailLease"} {
		c := newCluster(t, poolOf(t, "p", 1, flat))
		c.flood("nosuch", "well", 1024)
		c.flood("another", "crowd", 1025)
		o, err := c.Overview(t.Context())
		want := []reconcile.Crowd{{Kind: "RailBlock", Node: "crowd", Count: 1025}, {Kind: "RailLease", Node: "crowd", Count: 1025}}
		if err != nil || !slices.Equal(o.Crowds, want) || len(o.Idle) != 2048 {
			t.Errorf("%d leases, crowds %v, error %v", len(o.Idle), o.Crowds, err)
		}
		fault := &c.Mem.Fault
		if kind == "RailLease" {
			fault = &c.kept.Fault
		}
		*fault = func(op blocktest.Op, _ string) blocktest.Fault {
			if op == blocktest.Delete {
				return blocktest.Lost
			}
			return blocktest.None
		}
		c.rounds(10 * time.Minute)
		c.logs("a check of the cluster was not completed", "no answer")
		if len(c.said) != 1 { // what cannot be deleted holds up nothing else
			t.Errorf("it says %v", c.said)
		}
	}
}

// TestWhatANodeHasOfAPoolStays has more blocks of a pool that exists than a node needs: pods
// may have their addresses.
func TestWhatANodeHasOfAPoolStays(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, strings.ReplaceAll(kept, "/24", "/8")))
	c.flood("p", "much", 1100)
	c.rounds(20 * time.Minute)
	if a, b := len(c.Mem.Snapshot()), len(c.kept.Snapshot()); a != 1100 || b != 1100 {
		t.Errorf("%d blocks and %d leases are left", a, b)
	}
	if said := c.attention("p"); !strings.Contains(said, "much") {
		t.Errorf("the pool says %v", said)
	}
}

func TestALeaseWithTheNameOfAnotherSlotIsDeleted(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, kept))
	for name, spec := range map[string]sticky.Spec{
		"p-s7-s130": {Slot: 130}, "p-s0131": {Slot: 131, Keep: true}, "p-sticky-s132": {Slot: 132, Holder: block.Owner{NodeName: "foe", MachineID: "machine-of-foe"}},
	} {
		spec.Pool, spec.Namespace, spec.Pod, spec.Interface = "p", "train", "db-0", "net1"
		if _, err := c.kept.Create(t.Context(), sticky.Lease{Name: name, Spec: spec}); err != nil {
			t.Fatal(err)
		}
	}
	c.join("foe", nil)
	if l := c.hold("db-0", "n"); l.Name == "p-s7-s130" || strings.Count(l.Name, "-") != 1 {
		t.Errorf("the pod got %s", l.Name)
	}
	c.join("n", nil)
	c.rounds(10 * time.Minute)
	c.holders("db-0 n")
}
