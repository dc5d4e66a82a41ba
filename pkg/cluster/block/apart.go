// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// Apart returns BadConfig if pods could get the same address, or the other's gateway, from
// this pool and from another one of its fabric, in any racks: names of blocks are unique only
// within a pool. The pools may share a subnet if each has its own ranges. A rack that Space
// refuses has no addresses.
func (p Pool) Apart(other Pool) error {
	theirs := other.prefixes(other.racks())
	for _, rack := range p.racks() {
		if len(near(p.prefixes([]string{rack}), theirs)) == 0 {
			continue
		}
		if s, err := p.Space(rack); err == nil {
			if err := s.Apart(other); err != nil {
				return err
			}
		}
	}
	return nil
}

// Apart is Pool.Apart for one rack of the pool. If another pool has a fault, all of
// its subnets count, because nodes may still have blocks of it.
func (s Space) Apart(other Pool) error {
	if s.pool == other.Name || s.fabric != other.Spec.Fabric {
		return nil
	}
	var here []named
	for _, subnet := range slices.Concat(s.rails...) {
		here = append(here, named{subnet.Prefix, s.rack})
	}
	var racks []string
	for _, there := range near(other.prefixes(append(other.racks(), s.rack)), here) {
		racks = append(racks, there.rack)
	}
	ours, ourGateways := s.free(), s.gateways()
	for _, rack := range slices.Compact(racks) { // prefixes has them one by one
		theirs, gateways := other.held(rack)
		both := append(netrange.Common(append(gateways, theirs...), ours), netrange.Common(theirs, ourGateways)...)
		if len(both) > 0 {
			return cnierr.New(cnierr.BadConfig, reading, s.pool,
				"give the two pools different ranges; a deleted pool keeps its addresses until the nodes have released its blocks: kubectl get railblocks; if their rails are not connected, give them different spec.fabric",
				"%s are addresses of RailPool %q", both[0], other.Name)
		}
	}
	return nil
}

// held returns the addresses of a rack that pods have or may get, and its gateways.
func (p Pool) held(rack string) (addresses, gateways []netrange.Range) {
	if s, err := p.Space(rack); err == nil {
		return s.free(), s.gateways()
	}
	for _, n := range p.prefixes([]string{rack}) {
		addresses = append(addresses, netrange.Of(n.prefix))
	}
	return addresses, nil
}

// racks returns the racks of a table, and the first ones of a pool with {rack}.
func (p Pool) racks() []string {
	switch {
	case len(p.Spec.Racks) > 0:
		var out []string
		for _, r := range p.Spec.Racks {
			out = append(out, r.Name)
		}
		return out
	case p.racked():
		out := make([]string, sampleRacks)
		for i := range out {
			out[i] = strconv.Itoa(i)
		}
		return out
	}
	return []string{""}
}

// prefixes returns the subnets of some racks, as far as they can be read.
func (p Pool) prefixes(racks []string) []named {
	var out []named
	add := func(rack string, rails []Rail, number int) {
		for i, r := range rails {
			for _, s := range r.Subnets {
				text := s.Subnet
				if number >= 0 {
					text = inRack(text, number)
				}
				if prefix, err := netip.ParsePrefix(pool.Expand(text, i)); err == nil {
					out = append(out, named{prefix.Masked(), rack})
				}
			}
		}
	}
	rails := p.Spec.Rails
	if t := p.Spec.Template; t != nil {
		rails = slices.Repeat([]Rail{{t.Subnets}}, min(max(t.Count, 0), pool.MaxRails))
	}
	racked := p.racked()
	for _, rack := range racks {
		number, err := strconv.Atoi(rack)
		if !racked || err != nil {
			number = -1
		}
		add(rack, rails, number)
		for _, r := range p.Spec.Racks {
			if r.Name == rack {
				add(rack, r.Rails, -1)
			}
		}
	}
	return out
}

// near returns the elements of a that overlap an element of b.
func near(a, b []named) []named {
	return slices.DeleteFunc(slices.Clone(a), func(x named) bool {
		return !slices.ContainsFunc(b, func(y named) bool { return x.prefix.Overlaps(y.prefix) })
	})
}

// gateways returns the gateways of all rails.
func (s Space) gateways() []netrange.Range {
	var out []netrange.Range
	for _, subnet := range slices.Concat(s.rails...) {
		if g := subnet.Gateway; g.IsValid() {
			out = append(out, netrange.Range{First: g, Last: g})
		}
	}
	return out
}

// free returns the addresses that pods may have on any rail.
func (s Space) free() []netrange.Range {
	var out []netrange.Range
	for _, subnet := range slices.Concat(s.rails...) {
		out = append(out, free(subnet)...)
	}
	return netrange.Minus(out, nil)
}
