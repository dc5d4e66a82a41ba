// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
)

// TestWhatAPoolThatIsInUseHasNoOtherGets has it be for other nodes, and deleted.
func TestWhatAPoolThatIsInUseHasNoOtherGets(t *testing.T) {
	bubble(t, func(t *testing.T) {
		second := poolOf(t, "another", 2, `{"rails": [{"subnets": [{"subnet": "10.1.0.0/24"}]}]}`)
		second.InUse = false
		n := newCluster(second, compute(t)).node(t, "n1")
		n.run()
		n.holds("compute", 1)
		n.gone("another")
		n.says(503, "RailPool another", `addresses of RailPool "compute"`)
		elsewhere := compute(t)
		elsewhere.Spec.NodeSelector = map[string]string{"gpu": "yes"}
		deleted := elsewhere
		deleted.Deleted = true
		for _, first := range []block.Pool{elsewhere, deleted} {
			n.change(func(v *agent.View) { v.Pools = []block.Pool{second, first} })
			pass(20 * time.Second)
			n.gone("another")
			n.says(503, `addresses of RailPool "compute"`)
		}
		n.change(func(v *agent.View) { v.Pools = []block.Pool{second} })
		pass(20 * time.Second)
		n.gone("another")
		n.says(503, "not marked as in use")
		second.InUse = true
		n.change(func(v *agent.View) { v.Pools = []block.Pool{second} })
		pass(2 * time.Second)
		n.holds("another", 1)
	})
}

// TestOfTwoPoolsInUseThatOverlapNothingMoreIsClaimed has ranges be widened into those
// of another pool.
func TestOfTwoPoolsInUseThatOverlapNothingMoreIsClaimed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		first, second := compute(t), poolOf(t, "another", 2, `{"rails": [{"subnets": [{"subnet": "10.9.0.0/24"}]}]}`)
		n := newCluster(first, second).node(t, "n1")
		n.run()
		n.mustLease("compute", 1, 10)
		n.mustLease("another", 21, 30)
		second.Spec.Rails = append(second.Spec.Rails, block.Rail{Subnets: []block.Subnet{{Subnet: "10.1.0.0/24"}}})
		n.change(func(v *agent.View) { v.Pools = []block.Pool{first, second} })
		n.mustLease("compute", 11, 15)
		n.idle(10 * time.Minute)
		n.holds("compute", 1)
		n.says(200, `RailPool compute`, `addresses of RailPool "another"`, `RailPool another`, `addresses of RailPool "compute"`)
		second.Spec.Fabric = "storage"
		n.change(func(v *agent.View) { v.Pools = []block.Pool{first, second} })
		pass(2 * time.Second)
		n.holds("compute", 2)
	})
}

// TestWhatAnotherPoolHasIsNotLeasedWhenThisOneIsWidened has a block that is cut in
// the middle, of which another pool has the rest.
func TestWhatAnotherPoolHasIsNotLeasedWhenThisOneIsWidened(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ranges := func(ranges string) []block.Rail {
			return []block.Rail{{Subnets: []block.Subnet{{Subnet: "10.0.0.0/24", Ranges: []string{ranges}}}}}
		}
		first, second := compute(t), compute(t)
		first.Spec.Template, first.Spec.Rails = nil, ranges("10.0.0.16-10.0.0.23")
		second.Name, second.Spec.Template, second.Spec.Rails = "second", nil, ranges("10.0.0.24-10.0.0.31")
		n := newCluster(first, second).node(t, "n1")
		n.run()
		before, err := n.files().Read("compute")
		must(t, err)
		first.Spec.Rails = ranges("10.0.0.16-10.0.0.31")
		n.change(func(v *agent.View) { v.Pools = []block.Pool{first, second} })
		stays := func() {
			t.Helper()
			n.idle(10 * time.Minute)
			after, err := n.files().Read("compute")
			if diff := cmp.Diff(before, after, netips()); diff != "" || err != nil {
				t.Errorf("%v, %s", err, diff)
			}
			n.says(200, `RailPool compute`, `addresses of RailPool "second"`)
		}
		stays()
		second.Spec.Rails = ranges("10.0.0.300") // nodes have what was there before
		n.change(func(v *agent.View) { v.Pools = []block.Pool{first, second} })
		stays()
		n.stop()
		n.run()
		stays()
		second.Spec.Rails = ranges("10.0.0.32-10.0.0.47")
		n.change(func(v *agent.View) { v.Pools = []block.Pool{first, second} })
		pass(2 * time.Second)
		n.holds("compute", 1)
	})
}

// TestWhatIsNotInUseAnyMoreIsLeasedAsBefore has an operator take the mark off a pool
// of which nodes have blocks, when another one got it.
func TestWhatIsNotInUseAnyMoreIsLeasedAsBefore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		first, second := compute(t), compute(t)
		n := newCluster(first).node(t, "n1")
		n.run()
		n.stop()
		first.InUse, second.Name = false, "second"
		n.boot = "22222222-2222-4222-8222-222222222222"
		n.change(func(v *agent.View) { v.Pools = []block.Pool{first, second} })
		n.run()
		pass(2 * time.Second)
		n.holds("compute", 1)
	})
}

// TestAnotherPoolOfTheSameNameIsAskedAbout does not see that an operator deleted
// the first one with its blocks.
func TestAnotherPoolOfTheSameNameIsAskedAbout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		first := compute(t)
		first.UID = "first"
		c := newCluster(first)
		n, other := c.node(t, "n1"), c.node(t, "n2")
		n.run()
		n.mustLease("compute", 1, 1)
		mine := n.store.Snapshot()[0]
		must(t, n.store.Delete(t.Context(), mine.Name, mine.UID, mine.ResourceVersion))
		second := poolOf(t, "compute", 2, `{"template": {"count": 2, "subnets": [{"subnet": "10.{rail+8}.0.0/22"}]}}`)
		second.UID = "second"
		theirs := mine
		theirs.Spec.NodeName, theirs.Spec.MachineID = other.name, "machine-of-n2"
		if _, err := n.store.Create(t.Context(), theirs); err != nil {
			t.Fatal(err)
		}
		wrong := second
		wrong.Spec.Template = &block.Template{Count: 2, Subnets: []block.Subnet{{Subnet: "10.8.0.0/33"}}}
		n.change(func(v *agent.View) { v.Pools = []block.Pool{wrong} })
		pass(10 * time.Second)
		n.holds("compute", 1)
		n.change(func(v *agent.View) { v.Pools = []block.Pool{second} })
		other.run()
		for range 40 {
			pass(time.Second)
			a, err := n.files().Read("compute")
			if err == nil && a.Rails[0][0].Prefix.String() == "10.8.0.0/22" && a.Rails[0][0].Ranges[0] == other.holds("compute", 1).Rails[0][0].Ranges[0] {
				t.Fatalf("both lease %v", a.Rails[0][0].Ranges)
			}
		}
		n.holds("compute", 1)
		if got := n.blocks(); len(got) != 1 || got[0] == mine.Name {
			t.Errorf("it has %v", got)
		}
		n.says(200, "lost addresses", "c1")
	})
}

// TestAPoolThatIsFullIsNotAskedAgainBecauseAnotherOneHasChanged counts what 10,000
// nodes would do in one second.
func TestAPoolThatIsFullIsNotAskedAgainBecauseAnotherOneHasChanged(t *testing.T) {
	hours(t)
	bubble(t, func(t *testing.T) {
		narrow := poolOf(t, "compute", 1, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/22", "ranges": ["10.0.0.16/28"]}]}]}`)
		another := poolOf(t, "another", 2, `{"rails": [{"subnets": [{"subnet": "10.9.0.0/24"}]}], "nodeSelector": {"gpu": "yes"}}`)
		c := newCluster(narrow)
		c.node(t, "n1").run()
		n := c.node(t, "n2")
		n.run()
		n.idle(time.Hour)
		before := n.store.Calls(blocktest.List)
		for i := range 20 {
			n.change(func(v *agent.View) { v.Pools = []block.Pool{narrow, another}[:1+i%2] })
			pass(time.Second)
		}
		if got := n.store.Calls(blocktest.List) - before; got > 4 {
			t.Errorf("%d lists in 20 seconds", got)
		}
	})
}

// TestABlockThatWasClaimedTooLateIsNotLeased has a request get its answer when the pool
// is gone, or another one has its addresses.
func TestABlockThatWasClaimedTooLateIsNotLeased(t *testing.T) {
	for name, change := range map[string]func(v *agent.View){
		"gone":    func(v *agent.View) { v.Pools = nil },
		"another": func(v *agent.View) { v.Pools[0].UID = "another" },
		"widened": func(v *agent.View) {
			o := v.Pools[0]
			o.Name = "another"
			v.Pools = append(v.Pools, o)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				n := newCluster(compute(t)).node(t, "n1")
				n.run()
				n.goAway(true)
				n.mustLease("compute", 1, 14)
				pass(time.Minute)
				n.change(change)
				n.goAway(false)
				for range 100 {
					pass(100 * time.Millisecond)
					if len(n.blocks()) == 2 {
						break
					}
				}
				n.holds("compute", 1)
				if got := n.blocks(); len(got) != 2 {
					t.Errorf("it has %v", got)
				}
			})
		})
	}
}
