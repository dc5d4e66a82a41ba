// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package reconcile

import (
	"cmp"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// Holding is what a node has of a pool.
type Holding struct {
	Node, Pool string
	Blocks     int
	Used, Size int // host indexes of these blocks, by the reports of the node
	Leases     int // RailLeases that it holds
	Absent     int // those of them with a pod that is not bound to the node
}

// holdings returns what nodes have, those with the most first.
func (w world) holdings() []Holding {
	all := map[[2]string]*Holding{}
	of := func(node, pool string) *Holding {
		key := [2]string{node, pool}
		if all[key] == nil {
			all[key] = &Holding{Node: node, Pool: pool}
		}
		return all[key]
	}
	for _, b := range w.blocks {
		h := of(b.Spec.NodeName, b.Spec.Pool)
		h.Blocks, h.Used, h.Size = h.Blocks+1, h.Used+b.Used, h.Size+b.Size
	}
	for _, l := range w.leases {
		if l.Spec.Holder == (block.Owner{}) {
			continue
		}
		h := of(l.Spec.Holder.NodeName, l.Spec.Pool)
		h.Leases++
		if _, absent := w.absent[l.UID]; absent {
			h.Absent++
		}
	}
	out := make([]Holding, 0, len(all))
	for _, h := range all {
		out = append(out, *h)
	}
	slices.SortFunc(out, func(a, b Holding) int {
		return cmp.Or(b.Absent-a.Absent, b.Blocks-a.Blocks, b.Leases-a.Leases, cmp.Compare(a.Node, b.Node), cmp.Compare(a.Pool, b.Pool))
	})
	return out
}
