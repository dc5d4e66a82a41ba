// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/netrange"
)

// Apart returns nil, or BadConfig when pods could get an address of this pool and
// the same one of another that was there first. Names are unique within a pool
// alone, so that nothing else would keep two nodes from it. Two pools may share a
// subnet, of which each has ranges of its own. The spaces of one pool in two racks
// are Validate's to judge: of one pool there is no error here.
func (s Space) Apart(first Space) error {
	if s.pool == first.pool {
		return nil
	}
	theirs := first.free()
	for _, ours := range s.free() {
		if both := netrange.Clip(theirs, ours); len(both) > 0 {
			return cnierr.New(cnierr.BadConfig, reading, s.pool, "give each of the two pools ranges of its own, or delete the one that is not used: kubectl get railpools",
				"%s are addresses of RailPool %q, which was there first", both[0], first.pool)
		}
	}
	return nil
}

// free returns the addresses that pods may have on any rail.
func (s Space) free() []netrange.Range {
	var out []netrange.Range
	for _, subnets := range s.rails {
		for _, subnet := range subnets {
			out = append(out, free(subnet)...)
		}
	}
	return netrange.Minus(out, nil)
}
