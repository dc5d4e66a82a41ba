// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lease

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
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

func ofNIC(req conf.Request, f plan.Facts) ([]conf.Subnet, error) {
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
	subnets := make([][]conf.Subnet, len(facts))
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
			return !slices.ContainsFunc(known, func(s conf.Subnet) bool { return s.Prefix.Contains(a) })
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
	subnets, err := conf.ParseTable(file, b, c.a.NodeName)
	if err != nil {
		return c.given, err
	}
	return c.given.WithSubnets(subnets)
}
