// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package reconcile

import (
	"context"
	"time"

	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/sticky"
)

// Orphan is a block whose owner is gone or was replaced.
type Orphan struct {
	Block
	Fate  block.Fate    // Gone or Replaced
	Bound bool          // a pod is bound to the name of a node that is gone
	For   time.Duration // since it was first seen so
}

// Idle is a lease that no node holds, or one whose holder is gone or was replaced.
type Idle struct {
	sticky.Lease
	Fate  block.Fate // of the holder; "": there is none
	Bound bool       // a pod is bound to the name of a node that is gone
	// TTL is how long the pool keeps it, 0 for one whose pool is gone or not sticky.
	TTL time.Duration
}

// Orphans looks, changes nothing, and returns the blocks whose owner is not there,
// and the leases that nobody uses.
func (r *Reconciler) Orphans(ctx context.Context) ([]Orphan, []Idle, error) {
	w, err := r.look(ctx)
	if err != nil {
		return nil, nil, err
	}
	nodes, _ := w.known()
	var out []Orphan
	for _, b := range w.blocks {
		if fate := nodes.Fate(b.Spec); fate != block.Here {
			o := Orphan{Block: b, Fate: fate, Bound: w.bound[b.Spec.NodeName]}
			if since, gone := r.sightings.Since(b.Block); gone {
				o.For = r.Now() - since
			}
			out = append(out, o)
		}
	}
	return out, w.idle(nodes), nil
}

func (w world) idle(nodes block.Nodes) []Idle {
	var out []Idle
	terms := w.terms()
	for _, l := range w.leases {
		i := Idle{Lease: l, TTL: terms[l.Spec.Pool].TTL}
		if holder := l.Spec.Holder; holder != (sticky.Holder{}) {
			i.Fate = nodes.Fate(block.Spec{NodeName: holder.NodeName, MachineID: holder.MachineID})
			i.Bound = i.Fate == block.Gone && w.bound[holder.NodeName]
		}
		if i.Fate != block.Here {
			out = append(out, i)
		}
	}
	return out
}
