// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"errors"

	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/cnierr"
)

// judged is a pool and what it is to this node.
type judged struct {
	uid      string // of the pool
	deleted  bool   // what is left of it is given back
	selected bool
	// space is nil when the node can have no blocks of the pool; fault says why.
	space *block.Space
	// slots are those that pods of the rack keep; the zero one: the pool is not
	// sticky.
	slots block.Slots
	// fault is why nothing may be claimed.
	fault error
	// contested says that another pool in use has some of the addresses: one of the two
	// was widened, and what the node has stays as it was before.
	contested bool
}

// judge says of each pool what it is to a node.
func judge(n block.Node, v View) map[string]judged {
	out := map[string]judged{}
	for _, p := range v.Pools {
		j := judged{uid: p.UID, deleted: p.Deleted, selected: v.NoNode == nil && p.Spec.Selects(v.Labels)}
		space, err := p.Space(v.Labels[p.Spec.RackLabel])
		if err == nil {
			j.space, j.slots = &space, space.Kept()
			j.contested, err = v.contested(p, space)
		}
		if err == nil {
			err = p.marked()
		}
		j.fault = errors.Join(err, v.NoNode, n.Confirm(v.MachineID))
		out[p.Name] = j
	}
	return out
}

// contested returns an error if pools that are in use have addresses of this one: those
// nobody else gets, whichever nodes they select, and also when they were deleted. And
// it says whether this one is in use, too.
func (v View) contested(p Pool, s block.Space) (both bool, err error) {
	var faults []error
	for _, o := range v.Pools {
		if !o.InUse {
			continue
		}
		if err := s.Apart(o.Pool); err != nil {
			faults = append(faults, err)
			both = p.InUse
		}
	}
	return both, errors.Join(faults...)
}

// marked returns an error unless blocks of a pool may be claimed.
func (p Pool) marked() error {
	if p.InUse {
		return nil
	}
	return cnierr.New(cnierr.TryAgain, "claim blocks of RailPool", p.Name,
		"rocectl gc --cluster marks it in a moment; if not, look whether it runs: kubectl -n roce-cni logs deployment/roce-cni-gc",
		"it is not marked as in use yet: if somebody deleted it, its addresses would be anybody's")
}
