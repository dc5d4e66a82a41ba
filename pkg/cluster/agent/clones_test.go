// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// TestTheBlocksOfACloneAreNotTakenUp has another node with the machine-id of this
// one, in a pool that does not select this one.
func TestTheBlocksOfACloneAreNotTakenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(poolOf(t, "compute", 1, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}]}`))
		clone := c.node(t, "clone")
		clone.run()
		clone.stop()
		theirs := c.store.Snapshot()
		for i := range theirs {
			theirs[i].Spec.MachineID = "machine-of-n1"
		}
		c.store.Restore(theirs)
		c.view.Pools = []block.Pool{poolOf(t, "compute", 1, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}], "nodeSelector": {"gpu": "yes"}}`)}
		n := c.node(t, "n1")
		n.run()
		n.idle(30 * time.Minute) // it has looked for blocks of its own
		if _, body := n.get("/metrics"); strings.Contains(body, `"compute"`) {
			t.Errorf("it keeps the pool:\n%s", body)
		}
	})
}

func TestAMachineIDThatTheNodeObjectDoesNotConfirmClaimsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(compute(t))
		c.view.MachineID = "of-another"
		n := c.node(t, "n1")
		n.run()
		n.says(503, "of-another")
		n.change(func(v *agent.View) { v.MachineID = "machine-of-n1" })
		pass(2 * time.Second)
		n.holds("compute", 1)
	})
}

// TestTheMachineIDOfANodeInTheBlockOfAnotherStopsNothing has another node that
// writes the machine-id of this node into its block. The Node object of the other node
// reports this machine-id, too.
func TestTheMachineIDOfANodeInTheBlockOfAnotherStopsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(compute(t))
		victim, foe := c.node(t, "n1"), c.node(t, "foe")
		config := foe.config()
		config.Node.MachineID = "machine-of-n1"
		foe.runWith(config)
		config = victim.config()
		config.Machine = func(context.Context, string) (string, error) { return "machine-of-n1", nil }
		victim.runWith(config)
		pass(time.Minute)
		victim.holds("compute", 1)
		victim.healthy()
		victim.logs("same machine-id")
		foe.holds("compute", 1)
	})
}

func TestABlockThatDoesNotFitStopsNoOtherNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(compute(t))
		foe := block.Spec{Pool: "compute", Index: 40, Size: 17, Owner: block.Owner{NodeName: "foe", MachineID: "foe"}}
		if _, err := c.store.Create(t.Context(), block.Block{Name: "compute-40", Spec: foe}); err != nil {
			t.Fatal(err)
		}
		n := c.node(t, "n1")
		n.run()
		n.holds("compute", 1)
		n.healthy()
		n.logs("they would overlap")
	})
}
