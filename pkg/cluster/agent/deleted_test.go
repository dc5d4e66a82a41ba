// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
)

// TestAnAgentThatIsRestartedGivesADeletedPoolBack restarts it at each step: while a pod
// has an address, when the file is gone, and after a boot.
func TestAnAgentThatIsRestartedGivesADeletedPoolBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.mustLease("compute", 1, 1)
		n.change(func(v *agent.View) { v.Pools[0].Deleted = true })
		n.stop()
		n.run()
		touched := n.store.Calls(blocktest.Touch)
		n.idle(40 * time.Minute)
		n.holds("compute", 1)
		if got := n.store.Calls(blocktest.Touch) - touched; got < 6 || n.reports[len(n.reports)-1].Used != 1 {
			t.Errorf("%d asserts in 40 minutes, reports %v", got, n.reports)
		}
		n.release("c1")
		for range 100 {
			if _, err := n.files().Read("compute"); err != nil {
				break
			}
			pass(5 * time.Second)
		}
		n.gone("compute")
		n.stop()
		n.boot = "22222222-2222-4222-8222-222222222222"
		n.run()
		pass(5 * time.Minute)
		if got := n.blocks(); got != nil {
			t.Errorf("it has %v", got)
		}
		n.says(200, "RailPool compute: it was deleted")
		before := n.store.Calls(blocktest.List)
		for range 10 { // other nodes have blocks still
			n.change(func(*agent.View) {})
			pass(5 * time.Minute)
		}
		if got := n.store.Calls(blocktest.List) - before; got > 2 {
			t.Errorf("%d lists in 50 minutes for a pool that it has nothing of", got)
		}
	})
}

// TestABlockOfAPoolThatIsGoneIsNotLeased has the agent be the last to hear of it.
func TestABlockOfAPoolThatIsGoneIsNotLeased(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(compute(t))
		c.behind = true
		n := c.node(t, "n1")
		n.run()
		pass(time.Minute)
		n.gone("compute")
		n.logs("claimed a block too late")
		n.change(func(v *agent.View) { v.Pools = nil })
		pass(5 * time.Minute)
		if got := n.blocks(); got != nil {
			t.Errorf("it has %v", got)
		}
	})
}

// TestABlockThatIsNotConfirmedIsNotLeased gets no answer to the last question, and
// then finds the block that it has claimed.
func TestABlockThatIsNotConfirmedIsNotLeased(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(compute(t))
		c.mute = true
		n := c.node(t, "n1")
		n.run()
		pass(time.Minute)
		n.gone("compute")
		own := n.blocks()
		n.says(503, "claim", "no answer")
		n.change(func(*agent.View) { c.mute = false })
		pass(5 * time.Minute)
		n.holds("compute", 1)
		if got := n.blocks(); len(got) != 1 || got[0] != own[0] {
			t.Errorf("it has %v, and had %v", got, own)
		}
	})
}
