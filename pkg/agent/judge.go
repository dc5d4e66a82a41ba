// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"cmp"
	"errors"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/block"
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

// judge says of each pool what it is to a node. A pool that has a fault is no
// other pool's.
func judge(n block.Node, v View) map[string]judged {
	byAge := slices.SortedFunc(slices.Values(v.Pools), func(x, y Pool) int {
		return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.Name, y.Name))
	})
	out := map[string]judged{}
	var older []block.Space
	for _, p := range byAge {
		j := judged{selected: p.Spec.Selects(v.Labels)}
		rack := v.Labels[p.Spec.RackLabel]
		space, err := p.Space(rack)
		if err == nil {
			j.space = &space
			j.slots, err = p.Slots(rack)
		}
		if j.selected && err == nil {
			for _, o := range older {
				err = errors.Join(err, space.Apart(o))
			}
			older = append(older, space)
		}
		j.fault = errors.Join(err, n.Confirm(v.MachineID))
		out[p.Name] = j
	}
	return out
}
