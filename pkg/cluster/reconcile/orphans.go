// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
)

// Orphan is a block with an owner that is gone or was replaced.
type Orphan struct {
	Block
	Owner block.OwnerState // Gone or Replaced
	Bound bool             // a pod is bound to the name of a node that is gone
}

// Idle is a lease without holder, or with a holder that is gone, was replaced, or does
// not run the pod.
type Idle struct {
	sticky.Lease
	Owner block.OwnerState // of the holder; "": there is none
	Bound bool             // a pod is bound to the name of a node that is gone
	// Absent says that the pod is not bound to the holder, which is there.
	Absent bool
	// TTL is how long the pool keeps it. It is 0 if the pool is gone or not sticky.
	TTL time.Duration
	// Useless is for a lease that an operator keeps for a pod. It says why the pod
	// does not get this lease, "" if the pod gets it.
	Useless string
}

// Overview is what people want to know of the objects of all nodes.
type Overview struct {
	Orphans  []Orphan  // the blocks without a living owner
	Idle     []Idle    // the leases that no node uses
	Holdings []Holding // what each node has of each pool, those with the most first
	Crowds   []Crowd   // the nodes with so many objects that the other lists lack some
}

// Overview looks at the cluster, and changes nothing.
func (r *Reconciler) Overview(ctx context.Context) (Overview, error) {
	w, err := r.look(ctx)
	if err != nil {
		return Overview{}, err
	}
	nodes, _ := w.known()
	return Overview{w.orphans(nodes), w.idle(nodes), w.holdings(), w.crowds}, nil
}

func (w world) orphans(nodes block.Nodes) []Orphan {
	var out []Orphan
	for _, b := range w.blocks {
		if state := nodes.Owner(b.Spec.Owner); state != block.Here {
			out = append(out, Orphan{Block: b, Owner: state, Bound: w.bound[b.Spec.NodeName]})
		}
	}
	return out
}

func (w world) idle(nodes block.Nodes) []Idle {
	var out []Idle
	terms := sticky.TermsOf(w.pools)
	for _, l := range w.leases {
		i := Idle{Lease: l, TTL: terms[l.Spec.Pool].TTL}
		if holder := l.Spec.Holder; holder != (block.Owner{}) {
			i.Owner = nodes.Owner(holder)
			i.Bound = w.bound[holder.NodeName]
		}
		if l.Spec.Keep {
			i.Useless = w.useless(l)
		}
		_, i.Absent = w.absent[l.UID]
		if i.Owner != block.Here || i.Absent {
			out = append(out, i)
		}
	}
	return out
}

// useless says why no node would find a lease when its pod starts. It returns "" if a
// node would find it.
func (w world) useless(l sticky.Lease) string {
	at := slices.IndexFunc(w.pools, func(p block.Pool) bool { return p.Name == l.Spec.Pool && !p.Deleted })
	if at < 0 {
		return fmt.Sprintf("there is no RailPool %q", l.Spec.Pool)
	}
	p := w.pools[at]
	slots, err := p.Slots(l.Spec.Rack)
	switch {
	case err != nil:
		return fmt.Sprintf("RailPool %q has a fault, or no rack %q", p.Name, l.Spec.Rack)
	case p.Spec.Sticky == nil:
		return fmt.Sprintf("RailPool %q is not sticky", p.Name)
	case slots.Name(l.Spec.Slot) != l.Name:
		return fmt.Sprintf("in RailPool %q its name would be %s", p.Name, slots.Name(l.Spec.Slot))
	case !slots.Has(l.Spec.Slot):
		return fmt.Sprintf("host index %d is outside sticky.slots %s of RailPool %q, or excluded, or reserved", l.Spec.Slot, p.Spec.Sticky.Slots, p.Name)
	}
	return ""
}

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
