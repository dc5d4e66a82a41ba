// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// ends releases the addresses of the containers first to last.
func (n *node) ends(first, last int) {
	n.t.Helper()
	for i := first; i <= last; i++ {
		n.release(fmt.Sprintf("c%d", i))
	}
}

// owns fails the test unless the node has so many blocks, and its file too.
func (n *node) owns(blocks int) {
	n.t.Helper()
	if got := n.blocks(); len(got) != blocks {
		n.t.Errorf("after %v it has %v, want %d blocks", n.now()-time.Hour, got, blocks)
	}
	n.holds("compute", blocks)
}

// grown returns a node that has four blocks for 40 containers.
func grown(t *testing.T, c *cluster) *node {
	t.Helper()
	n := c.node(t, "n1")
	n.run()
	for i := 1; i <= 40; i++ {
		n.mustLease("compute", i, i)
		pass(time.Second)
	}
	n.owns(4)
	return n
}

func TestEmptyBlocksAreGivenBackAfterAnHour(t *testing.T) {
	hours(t)
	bubble(t, func(t *testing.T) {
		n := grown(t, newCluster(compute(t)))
		n.ends(1, 40)
		n.idle(50 * time.Minute)
		n.owns(4)
		n.idle(30 * time.Minute)
		n.owns(1)
		n.healthy()
		n.logs("gave back a block")
		n.idle(70 * time.Minute) // never the last one
		n.owns(1)
		for i := 41; i <= 80; i++ { // and it grows again
			n.mustLease("compute", i, i)
			pass(time.Second)
		}
		n.owns(4)
	})
}

// TestBlocksThatPodsNeedStay has pods that need more than half of one block, and then half.
func TestBlocksThatPodsNeedStay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.mustLease("compute", 1, 14)
		pass(2 * time.Second)
		n.ends(10, 14)
		n.idle(70 * time.Minute)
		n.owns(2)
		n.ends(9, 9)
		n.idle(10 * time.Minute)
		n.owns(1)
	})
}

// leaving returns a node with two blocks, of which one has just been taken out of the node
// file, and the file as it was before.
func leaving(t *testing.T) (n *node, before nodefile.File) {
	t.Helper()
	n = newCluster(compute(t)).node(t, "n1")
	n.run()
	n.mustLease("compute", 1, 14)
	pass(2 * time.Second)
	before = n.holds("compute", 2)
	n.ends(1, 14)
	n.idle(time.Hour)
	for range 140 {
		pass(10 * time.Second)
		if f, err := n.files().Read("compute"); err == nil && fmt.Sprint(f) != fmt.Sprint(before) {
			break
		}
	}
	n.holds("compute", 1)
	return n, before
}

// TestABlockStaysWhenThePoolSelectsTheNodeNoMore: such a node keeps what it has, and has no
// other block to claim. What a pool has that is made again is listed again, and none of it leaves yet.
func TestABlockStaysWhenThePoolSelectsTheNodeNoMore(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(p *block.Pool)
		after  time.Duration
	}{
		"selects others": {func(p *block.Pool) { p.Spec.NodeSelector = map[string]string{"other": "nodes"} }, 10 * time.Minute},
		"made again":     {func(p *block.Pool) { p.UID = "another" }, 8 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				n, _ := leaving(t)
				n.change(func(v *agent.View) { tt.change(&v.Pools[0]) })
				n.idle(tt.after)
				n.owns(2)
			})
		})
	}
}

// TestAPodThatComesWhileABlockLeavesIsNotHurt leases from a node file that was read before
// the block was taken out of it.
func TestAPodThatComesWhileABlockLeavesIsNotHurt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n, before := leaving(t)
		for i := 101; i <= 120; i++ {
			must(t, n.leaseOf(before, fmt.Sprintf("c%d", i)))
		}
		n.idle(10 * time.Minute)
		if got := len(n.blocks()); got < 2 {
			t.Errorf("it has %d blocks for 20 pods", got)
		}
		n.healthy()
	})
}

// TestABlockThatLeavesIsTakenBackBeforeAnotherIsClaimed has pods come, which fill the other block.
func TestABlockThatLeavesIsTakenBackBeforeAnotherIsClaimed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n, _ := leaving(t)
		creates := n.store.Calls(blocktest.Create)
		n.mustLease("compute", 15, 28)
		pass(2 * time.Second)
		n.owns(2)
		if got := n.store.Calls(blocktest.Create) - creates; got != 0 {
			t.Errorf("it has claimed %d blocks", got)
		}
	})
}

// TestABlockLeavesTheNodeAfterTheADDsThatReadTheFile has an etcd that was restored
// meanwhile: the node confirms its blocks, because there is none to report on.
func TestABlockLeavesTheNodeAfterTheADDsThatReadTheFile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n, _ := leaving(t)
		first := n.holds("compute", 1).Rails[0][0].Ranges[0].First.As4()
		stays := fmt.Sprintf("compute-%d", (int(first[2])<<8+int(first[3]))/16)
		n.store.Restore(slices.DeleteFunc(n.store.Snapshot(), func(b block.Block) bool { return b.Name == stays }))
		n.mustLease("compute", 15, 15)
		pass(100 * time.Second)
		if got := len(n.blocks()); got != 2 {
			t.Errorf("it has %d blocks before all ADDs have ended that may have read the file, want 2", got)
		}
		n.idle(5 * time.Minute)
		n.owns(1)
		n.healthy()
	})
}

// TestABlockWhoseDeletionGotNoAnswerIsNotLeased has the API server do the request, and
// another node take the block.
func TestABlockWhoseDeletionGotNoAnswerIsNotLeased(t *testing.T) {
	hours(t)
	bubble(t, func(t *testing.T) {
		c := newCluster(compute(t))
		n := grown(t, c)
		n.ends(1, 40)
		var unanswered atomic.Bool // the agent deletes in a goroutine of its own
		c.store.Fault = func(op blocktest.Op, _ string) blocktest.Fault {
			if op == blocktest.Delete && unanswered.CompareAndSwap(false, true) {
				return blocktest.Landed
			}
			return blocktest.None
		}
		before := n.blocks()
		n.idle(time.Hour)
		for end := n.now() + time.Hour; !unanswered.Load() && n.now() < end; {
			pass(time.Second)
		}
		n.holds("compute", 3)
		lost := slices.DeleteFunc(before, func(name string) bool { return slices.Contains(n.blocks(), name) })
		b := block.Block{Name: lost[0], Spec: block.Spec{Pool: "compute", Size: 16, Owner: block.Owner{NodeName: "other", MachineID: "other"}}}
		if _, err := fmt.Sscanf(lost[0], "compute-%d", &b.Spec.Index); err != nil {
			t.Fatal(err)
		}
		if _, err := c.store.Create(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		n.idle(20 * time.Minute)
		n.owns(1)
		n.healthy()
		if got := c.blockNamed(lost[0]); got.Spec.NodeName != "other" {
			t.Errorf("%+v", got)
		}
	})
}

func TestANodeClaimsNoMoreBlocksThanThePoolAllows(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(poolOf(t, "compute", 1, `{"maxBlocksPerNode": 2, "template": {"count": 2, "subnets": [{"subnet": "10.{rail}.0.0/22"}]}}`))
		n := c.node(t, "n1")
		n.run()
		for i := 1; i <= 32; i++ {
			n.mustLease("compute", i, i)
			pass(time.Second)
			if i == 31 {
				pass(time.Minute)
				n.healthy() // one is left
			}
		}
		pass(time.Minute)
		n.owns(2)
		n.says(200, "the node has 2 blocks, which is spec.maxBlocksPerNode, and all 32 host indexes are in use", "rocectl pool list rail:compute")
		n.ends(1, 20)
		n.idle(5 * time.Minute)
		n.healthy() // it needs no other block
		n.mustLease("compute", 33, 52)
		pass(time.Minute)
		n.says(200, "all 32 host indexes are in use")
		n.change(func(v *agent.View) { v.Pools[0].Spec.MaxBlocksPerNode = 3 })
		pass(15 * time.Second)
		n.owns(3)
		n.healthy()
	})
}

// TestANodeDoesNotDrainAPoolAtOnce has a network that takes each address as soon as it is
// there.
func TestANodeDoesNotDrainAPoolAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(poolOf(t, "compute", 1, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/22"}]}], "blockSize": 4}`)).node(t, "n1")
		n.run()
		next := 0
		take := func(d time.Duration) int {
			for end := n.now() + d; n.now() < end; pass(200 * time.Millisecond) {
				for n.lease("compute", fmt.Sprintf("c%d", next)) == nil {
					next++
				}
			}
			return len(n.blocks())
		}
		if got := take(20 * time.Second); got < 16 || got > 23 {
			t.Errorf("%d blocks after 20 seconds, want a burst of 16 and some", got)
		}
		if got := take(40 * time.Second); got > 33 {
			t.Errorf("%d blocks after a minute", got)
		}
	})
}
