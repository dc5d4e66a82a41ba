// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// Find returns the index of the block that an address is in, and the address's slot
// of the pool. It does not matter whether pods may have the address. ok is false for
// an address that is in no block.
func (s Space) Find(a netip.Addr) (index, number int, ok bool) {
	for _, subnet := range slices.Concat(s.rails...) {
		if n := slot(a, subnet.Prefix); subnet.Prefix.Contains(a) && n < uint64(s.size)*MaxBlocks {
			return int(n) / s.size, int(n), true
		}
	}
	return 0, 0, false
}

// Open returns the slots of a block that pods may have on all rails.
func (s Space) Open(index int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, r := range s.openOf(index) {
			for n := netrange.ToNumber(r.First); n <= netrange.ToNumber(r.Last); n++ {
				if !yield(int(n)) {
					return
				}
			}
		}
	}
}

// Recorded returns the blocks that a node had when Rails returned this. The blocks
// have no UIDs. Blocks without any address to lease are missing.
func (s Space) Recorded(node Node, rails [][]pool.Subnet) []Block {
	var indices []int
	for _, subnets := range rails {
		for _, subnet := range subnets {
			for _, r := range subnet.Ranges {
				first, _, ok := s.Find(r.First)
				last, _, too := s.Find(r.Last)
				for i := first; ok && too && i <= last; i++ {
					indices = append(indices, i)
				}
			}
		}
	}
	slices.Sort(indices)
	var out []Block
	for _, i := range slices.Compact(indices) {
		out = append(out, Block{Name: s.Name(i), Spec: Spec{
			Pool: s.pool, Rack: s.rack, Index: i, Size: s.size, NodeName: node.Name, MachineID: node.MachineID,
		}})
	}
	return out
}

// Total returns how many slots pods may have on all rails, in all blocks.
func (s Space) Total() int { return count(s.usable(s.open())) }
