// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"errors"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// evaluation is a pool as seen from this node: whether it selects the node, and what
// the node may claim.
type evaluation struct {
	uid      string // of the pool
	deleted  bool   // the node releases what it still has of the pool
	selected bool
	// space is nil when the node can have no blocks of the pool; fault says why.
	space *block.Space
	// slots are the host indexes for sticky addresses in this rack. The zero value
	// means that the pool is not sticky.
	slots block.Slots
	// most is how many blocks the node may have; 0: any number.
	most int
	// fault is why nothing may be claimed.
	fault error
	// contested means that this pool overlaps another pool in use, because one of the
	// two was widened. What the node has then stays unchanged.
	contested bool
}

// evaluate evaluates each pool of a view for a node.
func evaluate(n block.Node, v View) map[string]evaluation {
	out := map[string]evaluation{}
	for _, p := range v.Pools {
		j := evaluation{uid: p.UID, most: p.Spec.MaxBlocksPerNode, deleted: p.Deleted, selected: v.NoNode == nil && p.Spec.Selects(v.Labels)}
		space, err := p.Space(v.Labels[p.Spec.RackLabel])
		if err == nil {
			j.space, j.slots = &space, space.Sticky()
			j.contested, err = v.contested(p, space)
		}
		if err == nil {
			err = marked(p)
		}
		j.fault = errors.Join(err, v.NoNode, n.Confirm(v.MachineID))
		out[p.Name] = j
	}
	return out
}

// contested returns an error if a pool in use, perhaps for other nodes or deleted, overlaps this
// one, and whether this one is in use too.
func (v View) contested(p block.Pool, s block.Space) (both bool, err error) {
	var faults []error
	for _, o := range v.Pools {
		if !o.InUse {
			continue
		}
		if err := s.Apart(o); err != nil {
			faults = append(faults, err)
			both = p.InUse
		}
	}
	return both, errors.Join(faults...)
}

// marked returns an error while the pool is not marked as in use.
func marked(p block.Pool) error {
	if p.InUse {
		return nil
	}
	return cnierr.New(cnierr.TryAgain, "claim blocks of RailPool", p.Name,
		"rocectl gc --cluster marks it in a moment; if not, look whether it runs: kubectl -n roce-cni logs deployment/roce-cni-gc",
		"it is not marked as in use yet: if it were deleted now, another pool could get its addresses")
}
