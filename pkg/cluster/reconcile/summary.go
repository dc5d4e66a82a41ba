// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package reconcile

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

// summary is the report about a pool. It is the sum over the racks that have nodes or
// blocks of the pool, or that are in its table.
type summary struct {
	kube.PoolStatus // without conditions
	// Fault is why no blocks are claimed from the pool. A deleted pool has a fault.
	Fault   error
	Deleted bool
	// Attention is what an operator should look at, and what stops no claim.
	Attention error
}

// status returns the status of a pool. A condition that stays as it was keeps its time.
func (s summary) status(was kube.RailPool) kube.PoolStatus {
	valid := metav1.Condition{Type: kube.ValidCondition, Status: metav1.ConditionTrue, Reason: "Valid", Message: "its blocks can be claimed"}
	if s.Fault != nil {
		valid.Status, valid.Reason, valid.Message = metav1.ConditionFalse, "Fault", agent.Line(s.Fault)
	}
	if s.Deleted {
		valid.Reason = "Deleted"
	}
	attention := metav1.Condition{Type: kube.AttentionCondition, Status: metav1.ConditionFalse, Reason: "Checked", Message: "no block and no lease looks wrong"}
	if s.Attention != nil {
		attention.Status, attention.Reason, attention.Message = metav1.ConditionTrue, "Wrong", agent.Line(s.Attention)
	}
	s.Conditions = was.Status.Conditions
	for _, c := range []metav1.Condition{valid, attention} {
		c.ObservedGeneration = was.Generation
		meta.SetStatusCondition(&s.Conditions, c)
	}
	return s.PoolStatus
}

// summarize returns the summary of each pool.
func summarize(w world) map[string]summary {
	out := map[string]summary{}
	for _, p := range w.pools {
		s := summary{Fault: errors.Join(p.Validate(), clash(p, w.pools)), Deleted: p.Deleted}
		spaces, left := map[string]block.Space{}, 0
		for _, rack := range w.racks(p) {
			space, err := p.Space(rack)
			if err != nil {
				if s.Fault == nil && written(p, rack) {
					s.Fault = err
				}
				continue // otherwise the label of the node is wrong, and the agent of the node reports it
			}
			spaces[rack] = space
			s.Blocks += space.Blocks()
			s.Size += space.Total()
			s.Reserved += space.Reserved()
		}
		counts := map[string]int{} // by node
		for _, b := range w.blocks {
			if b.Spec.Pool != p.Name {
				continue
			}
			left++
			space, known := spaces[b.Spec.Rack]
			if known && space.Slots(b.Spec.Index) > 0 {
				s.Claimed++
			}
			if known && s.Attention == nil {
				s.Attention = space.Check(b.Block)
			}
			if counts[b.Spec.NodeName]++; p.Spec.MaxBlocksPerNode > 0 && counts[b.Spec.NodeName] > p.Spec.MaxBlocksPerNode && s.Attention == nil {
				s.Attention = tooMany(p, b.Spec.NodeName)
			}
			s.Used += b.Used
			s.Quarantined += b.Quarantined
		}
		if s.Attention == nil {
			s.Attention = cmp.Or(w.mishold(p.Name), w.crowded())
		}
		s.Free = max(0, s.Size-s.Used-s.Quarantined)
		if !p.InUse && s.Fault == nil {
			s.Fault = w.strange(p.Name)
		}
		if p.Deleted {
			s.Fault = deleted(p.Name, left, w.held(p.Name))
		}
		out[p.Name] = s
	}
	return out
}

// tooMany says that a node has more blocks than the pool allows.
func tooMany(p block.Pool, node string) error {
	return cnierr.New(cnierr.BadConfig, "count blocks of node", node,
		"look what its agent does, unless spec.maxBlocksPerNode was lowered: kubectl get railblocks --field-selector spec.nodeName="+node,
		"it has more blocks of RailPool %s than spec.maxBlocksPerNode, %d", p.Name, p.Spec.MaxBlocksPerNode)
}

// mishold returns an error if a node was seen twice to hold leases for pods that it does
// not run. For a moment, that is usual: the agent releases a lease when its pod has gone.
func (w world) mishold(pool string) error {
	counts := map[string]int{}
	for _, l := range w.leases {
		if l.Spec.Pool == pool && w.absent[l.UID] > 0 {
			counts[l.Spec.Holder.NodeName]++
		}
	}
	if len(counts) == 0 {
		return nil
	}
	node := slices.MaxFunc(slices.Sorted(maps.Keys(counts)), func(a, b string) int { return cmp.Compare(counts[a], counts[b]) })
	return cnierr.New(cnierr.BadConfig, "look for the pods of node", node,
		"look what its agent does: kubectl get railleases --field-selector spec.holder.nodeName="+node,
		"it holds %d RailLeases of RailPool %s for pods that are not bound to it", counts[node], pool)
}

// written says whether the spec of the pool names the rack.
func written(p block.Pool, rack string) bool {
	return p.Spec.RackLabel == "" || slices.ContainsFunc(p.Spec.Racks, func(r block.Rack) bool { return r.Name == rack })
}

// racks returns the known racks of a pool; "" for a pool without racks.
func (w world) racks(p block.Pool) []string {
	if p.Spec.RackLabel == "" {
		return []string{""}
	}
	var out []string
	for _, r := range p.Spec.Racks {
		out = append(out, r.Name)
	}
	for _, n := range w.nodes {
		if rack, labelled := n.Labels[p.Spec.RackLabel]; labelled && p.Spec.Selects(n.Labels) {
			out = append(out, rack)
		}
	}
	for _, b := range w.blocks {
		if b.Spec.Pool == p.Name {
			out = append(out, b.Spec.Rack)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// held counts the leases of a pool that nodes hold.
func (w world) held(pool string) int {
	n := 0
	for _, l := range w.leases {
		if l.Spec.Pool == pool && l.Spec.Holder != (block.Owner{}) {
			n++
		}
	}
	return n
}

// strange returns an error if nodes may have addresses of a pool that is gone. Until
// they are released, it is unknown whether a new pool has the same addresses.
func (w world) strange(pool string) error {
	_, blocks := w.known()
	name := gone(w.pools, blocks, w.existed)
	if name == "" {
		return nil
	}
	return cnierr.New(cnierr.TryAgain, "claim blocks of RailPool", pool,
		"create that pool again unchanged, or delete the pods that have its addresses and wait until their nodes have released the blocks: kubectl get railblocks -l roce-cni.io/pool="+name,
		"there are blocks of RailPool %s, which is gone, and it is unknown whether these are the same addresses", name)
}

// deleted says what a deleted pool waits for.
func deleted(pool string, left, held int) error {
	switch {
	case left == 0 && held == 0:
		return cnierr.New(cnierr.TryAgain, "delete RailPool", pool, "it will be removed in some minutes", "no node has any of its blocks")
	case left == 0:
		return cnierr.New(cnierr.TryAgain, "delete RailPool", pool,
			"check which nodes hold them, and that their agents run: kubectl get railleases --field-selector spec.pool="+pool,
			"it stays until the nodes have released the host indexes that they hold for pods: %d are left", held)
	}
	return cnierr.New(cnierr.TryAgain, "delete RailPool", pool,
		"delete the pods that have its addresses, and wait about twelve minutes; the nodes with its blocks: kubectl get railblocks -l roce-cni.io/pool="+pool,
		"it stays until the nodes have released its blocks, which they do when no pod has an address of it: %d are left", left)
}
