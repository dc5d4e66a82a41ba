// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

func mustClaim(t *testing.T, c *block.Claimer, s block.Space, have ...block.Block) block.Block {
	t.Helper()
	b, err := c.Claim(t.Context(), s, have)
	must(t, err)
	return b.Block
}

// TestBlocksThatABackupLacksAreAssertedAgain restores etcd to before half of the
// claims. One of the forgotten blocks is taken before its owner asserts it: that
// one is lost, and its owner is told.
func TestBlocksThatABackupLacksAreAssertedAgain(t *testing.T) {
	t.Parallel()
	c := withCRDs(t, own(t))
	s := space(t, "restored", 16)
	var nodes []*block.Claimer
	has := map[string]string{} // block by node
	claim := func(n int) {
		for range n {
			node := claimer(api(t, c.Admin()), fmt.Sprintf("restored-%d", len(nodes)))
			has[node.Node.Name] = mustClaim(t, node, s).Name
			nodes = append(nodes, node)
		}
	}
	claim(8)
	backup := filepath.Join(t.TempDir(), "backup")
	must(t, c.Save(t.Context(), backup))
	claim(8)
	must(t, c.Restore(t.Context(), backup))

	newcomer := claimer(api(t, c.Admin()), "restored-newcomer")
	taken := mustClaim(t, newcomer, s)
	var lostBy []string
	for _, node := range nodes {
		recorded := block.Block{Name: has[node.Node.Name], Spec: block.Spec{
			Pool: "restored", Size: 16, Owner: block.Owner{NodeName: node.Node.Name, MachineID: node.Node.MachineID},
		}}
		_, err := fmt.Sscanf(recorded.Name, "restored-%d", &recorded.Spec.Index)
		must(t, err)
		kept, lost, err := node.Assert(t.Context(), s, []block.Block{recorded})
		switch {
		case len(kept) == 1 && err == nil:
		case len(lost) == 1 && cnierr.CodeOf(err) == cnierr.Limited:
			lostBy = append(lostBy, node.Node.Name)
			delete(has, node.Node.Name)
		default:
			t.Errorf("%s keeps %v, has lost %v: %v", node.Node.Name, kept, lost, err)
		}
	}
	if len(lostBy) != 1 {
		t.Errorf("%v have lost their blocks, and the newcomer has %s", lostBy, taken.Name)
	}
	has[newcomer.Node.Name] = taken.Name
	there, err := api(t, c.Admin()).Blocks().List(t.Context(), block.Query{Pool: "restored", Freshness: block.Latest})
	must(t, err)
	for _, b := range there {
		if has[b.Spec.NodeName] != b.Name {
			t.Errorf("%s is %s's, which has %s", b.Name, b.Spec.NodeName, has[b.Spec.NodeName])
		}
	}
	if len(there) != 16 || len(has) != 16 {
		t.Errorf("%d blocks, and %d nodes have one", len(there), len(has))
	}
}
