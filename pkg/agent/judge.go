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
	selected bool
	// space is nil when the node can have no blocks of the pool; fault says why.
	space *block.Space
	// slots are those that pods of the rack keep; the zero one: the pool is not
	// sticky.
	slots block.Slots
	// fault is why nothing may be claimed.
	fault error
}

// judge says of each pool what it is to a node. One that was deleted is none any
// more.
func judge(n block.Node, v View) map[string]judged {
	out := map[string]judged{}
	for _, p := range v.Pools {
		if p.Deleted {
			continue
		}
		j := judged{selected: v.NoNode == nil && p.Spec.Selects(v.Labels)}
		rack := v.Labels[p.Spec.RackLabel]
		space, err := p.Space(rack)
		if err == nil {
			j.space = &space
			j.slots, err = p.Slots(rack)
		}
		if err == nil {
			err = v.claimable(p, space)
		}
		j.fault = errors.Join(err, v.NoNode, n.Confirm(v.MachineID))
		out[p.Name] = j
	}
	return out
}

// claimable returns why no block of a pool may be claimed: what pools that are in use
// have nobody else gets, whichever nodes they select, and also when they were deleted.
func (v View) claimable(p Pool, s block.Space) error {
	var faults []error
	for _, o := range v.Pools {
		if o.InUse {
			faults = append(faults, s.Apart(o.Pool))
		}
	}
	if err := errors.Join(faults...); err != nil || p.InUse {
		return err
	}
	return cnierr.New(cnierr.TryAgain, "claim blocks of RailPool", p.Name,
		"rocectl gc --cluster marks it in a moment; if not, look whether it runs: kubectl -n roce-cni logs deployment/roce-cni-gc",
		"it is not marked as in use yet: if somebody deleted it, its addresses would be anybody's")
}
