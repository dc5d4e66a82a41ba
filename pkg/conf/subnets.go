// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"slices"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/conf/strict"
)

// withRails completes a request with the settings of its rails.
func withRails(r Request, rs rails, ipam IPAM, each []IPAM) Request {
	if !rs.given {
		r.IPAM = each[0]
		return r
	}
	r.IPAM = ipam
	if rs.wrong {
		return r
	}
	whole, names := r, rs.names(r.IfName)
	whole.Rails = make([]Request, len(rs.each))
	for i, one := range rs.each {
		r.Rail, r.IfName, r.Parent, r.IPAM = i, names[i], one.parent, each[i]
		r.Routing = inherited(whole.Routing, i, tables(each))
		if one.routing != nil {
			r.Routing = *one.routing
		}
		whole.Rails[i] = r
	}
	whole.Match, whole.MinRails = rs.match, rs.least
	return whole
}

// inherited returns the routing of a rail that has no routing of its own. If
// the common routing has a table number, that is the table of the first rail.
// tables is the number of tables of each rail.
func inherited(r Routing, rail, tables int) Routing {
	if r.Table != 0 {
		r.Table += uint32(rail * tables)
	}
	return r
}

// tables returns how many tables a rail may need. A second address of a family
// needs a second table.
func tables(each []IPAM) int {
	most := 1
	for _, p := range each {
		v4, v6 := pool.Families(p.Subnets)
		most = max(most, v4, v6)
	}
	return most
}

// WithSubnets completes a request with subnets that come from the NICs, a table
// or a RailPool, once they are known. perRail has the subnets for each request
// of Each, none for a rail that is left out. Requested addresses and routes go
// to the rails with subnets that contain them.
//
// The error is BadConfig, as in Parse: for an address or a route that fits no
// rail, for subnets that overlap, and for a wrong number of rails.
func (r Request) WithSubnets(perRail [][]Subnet) (Request, error) {
	each, f := r.Each(), &strict.Faults{}
	if len(perRail) != len(each) {
		return Request{}, cnierr.New(cnierr.BadConfig, operation, r.Network, "let both have the same number of rails",
			"%s has subnets for %d rails, the configuration has %d", r.IPAM.source(), len(perRail), len(each))
	}
	if !slices.ContainsFunc(perRail, func(s []Subnet) bool { return len(s) > 0 }) {
		return Request{}, cnierr.New(cnierr.BadConfig, operation, r.Network, "give the NIC an address, or write ipam.subnets",
			"%s has no subnet", r.IPAM.source())
	}
	var asked []pool.Asked
	for _, a := range r.IPAM.Requested {
		asked = append(asked, pool.Asked{Subject: "requested address", Addr: a, Bits: -1})
	}
	given := share(r.IPAM, perRail, asked, slices.Repeat([]string{r.IPAM.source()}, len(each)), f)
	if r.Rails == nil {
		r.IPAM = given[0]
	} else {
		r.IPAM.Requested = nil
		r.Rails = slices.Clone(r.Rails)
	}
	for i := range r.Rails {
		one := &r.Rails[i]
		if one.Routing == inherited(r.Routing, i, 1) {
			one.Routing = inherited(r.Routing, i, tables(given))
		}
		one.IPAM = given[i]
	}
	contradictions(r, f)
	if err := f.Err(operation, r.Network); err != nil {
		return Request{}, err
	}
	return r, nil
}

// source names the source of the subnets.
func (p IPAM) source() string {
	switch {
	case p.RailPool != nil:
		return "RailPool " + p.RailPool.Name
	case p.Table != "":
		return p.Table
	case p.FromMaster != nil:
		return "ipam.fromMaster"
	}
	return "ipam.subnets"
}

// ParseTable returns the subnets of each rail of a node from the file that
// ipam.table names: {"nodes": {"gpu-01": [{"subnet": "172.16.0.0/31",
// "gateway": "172.16.0.0"}]}}. Each rail has a subnet or a list of them, in the
// form of ipam.subnets. Faults of other nodes do not matter. The error is
// BadConfig and names the file, also when the file is not JSON.
func ParseTable(file string, content []byte, node string) ([][]Subnet, error) {
	f := &strict.Faults{}
	out := pool.Table(file, content, node, f)
	if err := f.Err("read table of rails", file); err != nil {
		// The configuration is valid JSON, but it names a wrong file.
		return nil, &cnierr.Error{Code: cnierr.BadConfig, Err: err}
	}
	return out, nil
}
