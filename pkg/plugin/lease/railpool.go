// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lease

import (
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// ofRailPool returns a request for addresses of a RailPool. It has the subnets and
// the quarantine of the node file. Rail i of the attachment is rail i of the pool. A
// single interface is on the rail that the configuration says, or on the rail with
// one of the NIC's own addresses. nic has these addresses; it is empty if they are
// unknown. The error is BadConfig if the pool has other rails or if a requested
// address is not this node's. Other errors are those of conf.Request.WithSubnets.
func ofRailPool(req conf.Request, f nodefile.File, nic []netip.Prefix) (conf.Request, error) {
	rails := f.Subnets()
	if len(req.Rails) == 1 && (len(rails) > 1 || req.IPAM.RailPool.Rail != nil) {
		i, err := railOf(*req.IPAM.RailPool, rails, nic)
		if err != nil {
			return req, err
		}
		rails = rails[i : i+1]
	}
	hint := "request an address of the node's own blocks, or no address: kubectl get railblocks"
	if f.Sticky {
		hint += "; for a fixed address of spec.sticky, create a RailLease with keep: true for the pod, and request no address"
	}
	for _, a := range req.IPAM.Requested {
		if !mayLease(f, a) {
			return req, cnierr.New(cnierr.BadConfig, "lease requested address", a.String(), hint, "it is an address of RailPool %s, but not of this node's blocks", f.Pool)
		}
	}
	req.IPAM.Quarantine = f.Quarantine
	return req.WithSubnets(rails)
}

// mayLease says whether the node may lease an address. It is true for an address in
// none of the pool's subnets, because a later check refuses that.
func mayLease(f nodefile.File, a netip.Addr) bool {
	inPool := false
	for _, s := range slices.Concat(f.Rails...) {
		if slices.ContainsFunc(s.Ranges, func(r netrange.Range) bool { return r.Contains(a) }) {
			return true
		}
		inPool = inPool || s.Prefix.Contains(a)
	}
	return !inPool
}

// railOf returns the rail of the pool that a single interface is on.
func railOf(p conf.RailPool, rails [][]conf.Subnet, nic []netip.Prefix) (int, error) {
	bad := func(format string, args ...any) error {
		return cnierr.New(cnierr.BadConfig, "find rail of RailPool", p.Name, "set ipam.rail to the number of the rail, from 0", format, args...)
	}
	if p.Rail != nil {
		if *p.Rail >= len(rails) {
			return 0, bad("it has %d rails, but ipam.rail is %d", len(rails), *p.Rail)
		}
		return *p.Rail, nil
	}
	var on []int
	for i, subnets := range rails {
		has := func(s conf.Subnet) bool {
			return slices.ContainsFunc(nic, func(own netip.Prefix) bool { return s.Prefix.Contains(own.Addr()) })
		}
		if slices.ContainsFunc(subnets, has) {
			on = append(on, i)
		}
	}
	switch len(on) {
	case 1:
		return on[0], nil
	case 0:
		return 0, bad("it has %d rails, and the NIC's own addresses %v are on none of them", len(rails), nic)
	}
	return 0, bad("it has %d rails, and the NIC's own addresses %v are on several of them: %v", len(rails), nic, on)
}
