// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/agent"
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
		c.view.Pools = []agent.Pool{poolOf(t, "compute", 1, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}], "nodeSelector": {"gpu": "yes"}}`)}
		n := c.node(t, "n1")
		n.run()
		pass(30 * time.Minute) // it has looked for blocks of its own
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

func TestACloneClaimsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(compute(t))
		first, clone := c.node(t, "n1"), c.node(t, "n2")
		first.run()
		config := clone.config()
		config.Node.MachineID = "machine-of-n1"
		config.Machine = first.config().Machine
		clone.runWith(config)
		pass(time.Minute)
		clone.gone("compute")
		clone.says(503, "same machine-id")
	})
}
