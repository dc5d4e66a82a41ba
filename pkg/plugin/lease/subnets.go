// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lease

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// CheckNICs sets the fault of each rail without subnet, if the subnets are derived
// from the NICs' own addresses. It changes no other fault.
func CheckNICs(req conf.Request, facts []plan.RailFacts) {
	for i := range facts {
		if req.IPAM.FromMaster != nil && facts[i].Fault == nil {
			_, facts[i].Fault = ofNIC(req, facts[i].Facts)
		}
	}
}

func ofNIC(req conf.Request, f plan.Facts) ([]pool.Subnet, error) {
	return req.IPAM.FromMaster.Subnets(string(f.Parent.Name), f.Parent.Addrs)
}

// withSubnets returns the request with the subnets of each rail, if they come from
// the NICs, from a table of the node or from a RailPool.
func (c *Claim) withSubnets(facts []plan.RailFacts) (conf.Request, error) {
	switch {
	case c.given.IPAM.RailPool != nil:
		var err error
		if c.sticky.file, err = c.a.Agent.Read(c.given.IPAM.RailPool.Name); err != nil {
			return c.given, err
		}
		return ofRailPool(c.given, c.sticky.file, facts[0].Parent.Addrs)
	case c.given.IPAM.Table:
		return c.fromTable()
	case c.given.IPAM.FromMaster != nil:
		return fromMasters(c.given, facts)
	}
	return c.given, nil
}

// fromMasters gives the rails the subnets of the NICs' own addresses.
func fromMasters(req conf.Request, facts []plan.RailFacts) (conf.Request, error) {
	subnets := make([][]pool.Subnet, len(facts))
	for i, f := range facts {
		var err error
		if f.Fault != nil {
			continue
		}
		if subnets[i], err = ofNIC(req, f.Facts); err != nil {
			return req, err
		}
	}
	if slices.ContainsFunc(facts, func(f plan.RailFacts) bool { return f.Fault != nil }) {
		// The subnet of a NIC that is gone is unknown. A requested address in none of
		// the other subnets is taken as an address of that NIC, and is left out with
		// it.
		known := slices.Concat(subnets...)
		req.IPAM.Requested = slices.DeleteFunc(slices.Clone(req.IPAM.Requested), func(a netip.Addr) bool {
			return !slices.ContainsFunc(known, func(s pool.Subnet) bool { return s.Prefix.Contains(a) })
		})
	}
	return req.WithSubnets(subnets)
}

// fromTable gives the rails the subnets that the table has.
func (c *Claim) fromTable() (conf.Request, error) {
	file := c.a.Table
	b, err := c.a.ReadFile(file)
	if err != nil {
		hint := "put the table on every node, or name the file that is there: the key table of " + conf.SettingsFile
		if errors.Is(err, trusted.ErrOthers) {
			hint = trusted.Advice
		}
		return c.given, cnierr.New(cnierr.BadConfig, "read table of rails", file, hint, "%w", err)
	}
	subnets, err := pool.ParseTable(file, b, c.a.NodeName)
	if err != nil {
		return c.given, err
	}
	return c.given.WithSubnets(subnets)
}

// ofRailPool returns a request with the subnets and the quarantine of a node file. Rail i of
// the attachment is rail i of the pool. A single interface is on the rail that the
// configuration says, or on that with one of the NIC's own addresses, which nic has as far
// as they are known. The error is BadConfig if the pool has other rails or if a requested
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
func railOf(p pool.RailPool, rails [][]pool.Subnet, nic []netip.Prefix) (int, error) {
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
		has := func(s pool.Subnet) bool {
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
