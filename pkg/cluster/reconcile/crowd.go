// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package reconcile

import (
	"cmp"
	"context"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
)

// No policy of the API server can count, so an agent that was taken over can create objects
// without end. What a look keeps of them is limited for each node.
const (
	// most is how many blocks, and how many leases, of one node a look keeps. No node has
	// as many pods.
	most = 1024
	// mostDeleted is how many blocks, and how many leases, one round deletes at most
	// because their node has too many.
	mostDeleted = 10_000
)

// Crowd is a node with more objects of a kind than a look keeps.
type Crowd struct {
	Kind, Node string
	Count      int
}

// counts counts the objects of nodes. The Count of its keys is 0.
type counts map[Crowd]int

// admit counts an object, and says whether a look keeps it. An operator has created what is
// of no node.
func (c counts) admit(kind, node string) bool {
	c[Crowd{Kind: kind, Node: node}]++
	return node == "" || c[Crowd{Kind: kind, Node: node}] <= most
}

// crowds returns the nodes that have too many, those with the most first.
func (c counts) crowds() []Crowd {
	var out []Crowd
	for of, n := range c {
		if of.Node != "" && n > most {
			out = append(out, Crowd{of.Kind, of.Node, n})
		}
	}
	slices.SortFunc(out, func(a, b Crowd) int {
		return cmp.Or(b.Count-a.Count, cmp.Compare(a.Node, b.Node), cmp.Compare(a.Kind, b.Kind))
	})
	return out
}

// surplus is what a look has not kept of pools that do not exist. No node claims blocks of
// such a pool, and a node with pods on a block creates the block again.
type surplus struct {
	blocks []block.Block
	leases []sticky.Lease
}

// census lists the leases, then the pools, then the blocks.
func (r *Reconciler) census(ctx context.Context) (w world, err error) {
	seen, unknown := counts{}, missing(r.marks.pools)
	err = r.Cluster.Leases(ctx, func(l sticky.Lease, creator string) {
		if seen.admit("RailLease", cmp.Or(l.Spec.Holder.NodeName, creator)) {
			w.leases = append(w.leases, l)
		} else if unknown(l.Spec.Pool) && len(w.surplus.leases) < mostDeleted {
			w.surplus.leases = append(w.surplus.leases, l)
		}
	})
	if err != nil {
		return world{}, err
	}
	if w.pools, err = r.Cluster.Pools(ctx); err != nil {
		return world{}, err
	}
	unknown = missing(w.pools)
	w.surplus.leases = slices.DeleteFunc(w.surplus.leases, func(l sticky.Lease) bool { return !unknown(l.Spec.Pool) })
	err = r.Cluster.Blocks(ctx, func(b Block) {
		if seen.admit("RailBlock", b.Spec.NodeName) {
			w.blocks = append(w.blocks, b)
		} else if unknown(b.Spec.Pool) && len(w.surplus.blocks) < mostDeleted {
			w.surplus.blocks = append(w.surplus.blocks, b.Block)
		}
	})
	w.crowds = seen.crowds()
	return w, err
}

// missing returns a function that says whether a pool is none of these.
func missing(pools []agent.Pool) func(name string) bool {
	there := map[string]bool{}
	for _, p := range pools {
		there[p.Name] = true
	}
	return func(name string) bool { return !there[name] }
}

// thin logs the nodes that have too many objects, and deletes the surplus.
func (r *Reconciler) thin(ctx context.Context, w world) error {
	for _, c := range w.crowds {
		r.Log.Warn("one node has more objects than its pods can need: look at its agent; those of RailPools that do not exist are deleted",
			"node", c.Node, "kind", c.Kind, "count", c.Count)
	}
	for _, b := range w.surplus.blocks {
		if _, err := block.Done(r.Store.Delete(ctx, b.Name, b.UID, b.ResourceVersion)); err != nil {
			return err
		}
	}
	for _, l := range w.surplus.leases {
		if _, err := block.Done(r.Leases.Delete(ctx, l.Name, l.UID, l.ResourceVersion)); err != nil {
			return err
		}
	}
	return nil
}

// crowded returns an error if a node has too many objects. Then the numbers of all pools
// may be too low.
func (w world) crowded() error {
	if len(w.crowds) == 0 {
		return nil
	}
	c := w.crowds[0]
	return cnierr.New(cnierr.BadConfig, "count objects of node", c.Node,
		"look what its agent does; a node that was taken over has them until it is removed from the cluster",
		"it has %d objects of kind %s, and only %d of them are looked at", c.Count, c.Kind, most)
}
