// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package pool

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

// Route is a route that IPAM asks for. Table and Scope are nil when they are
// not given.
type Route struct {
	Dst      netip.Prefix `json:"dst"`
	Via      netip.Addr   `json:"via,omitzero"` // zero: the gateway of the same family
	MTU      int          `json:"mtu,omitempty"`
	AdvMSS   int          `json:"advmss,omitempty"`
	Priority int          `json:"priority,omitempty"`
	Table    *int         `json:"table,omitempty"`
	Scope    *int         `json:"scope,omitempty"`
}

// The highest MTU and the highest advertised MSS that a route keeps. The kernel makes
// these of higher ones (ip_metrics_convert).
const (
	MaxRouteMTU = 65535 - 15
	MaxAdvMSS   = 65535 - 40
)

// Routes reads "ipam.routes", a list of routes with the keys of a CNI result.
func Routes(v strict.Value) []Route {
	var out []Route
	for _, e := range v.List() {
		r := route(e)
		for _, other := range out {
			if r.Dst.IsValid() && sameRoute(r, other) {
				e.Bad("give one of the two another priority or table", "another route to %s has the same priority and table", r.Dst)
			}
		}
		out = append(out, r)
	}
	return out
}

// Share returns, for each rail, the routes that the rail can have: routes of
// its families, through its subnets or its gateway. A route that no rail can
// have is a fault.
func Share(routes []Route, rails [][]Subnet, f *strict.Faults) [][]Route {
	out := make([][]Route, len(rails))
	for i, r := range routes {
		place := fmt.Sprintf("ipam.routes[%d]", i)
		checkDst(place+".dst", r, rails, f)
		checkVia(place+".gw", r, rails, f)
		for j, subnets := range rails {
			if hasFamily(r.Dst, subnets) && (!r.Via.IsValid() || reaches(subnets, r.Via)) {
				out[j] = append(out[j], r)
			}
		}
	}
	return out
}

func checkDst(place string, r Route, rails [][]Subnet, f *strict.Faults) {
	ofFamily := func(subnets []Subnet) bool { return hasFamily(r.Dst, subnets) }
	if r.Dst.IsValid() && !slices.ContainsFunc(rails, ofFamily) {
		f.Add(cnierr.BadConfig, place, "remove the route, or add a subnet of its family", "%s: no subnet has this address family", r.Dst)
	}
}

func checkVia(place string, r Route, rails [][]Subnet, f *strict.Faults) {
	if !r.Via.IsValid() {
		return
	}
	if !slices.ContainsFunc(rails, func(subnets []Subnet) bool { return reaches(subnets, r.Via) }) {
		f.Add(cnierr.BadConfig, place, "use an address of ipam.subnets, or one of their gateways", "%s is in none of the pool's subnets, and the gateway of none", r.Via)
		return
	}
	places := placesOf(r.Via, rails)
	if len(places) == 0 {
		return
	}
	p := rails[places[0].rail][places[0].subnet].Prefix
	if what := netrange.Unusable(p)[r.Via]; what != "" {
		f.Add(cnierr.BadConfig, place, "", "%s is %s of %s", r.Via, what, p)
	}
}

// reaches says whether an attachment to these subnets reaches a gateway: the gateway is
// in one of them, or is the gateway of one. An IPv6 link-local address is on every link.
func reaches(subnets []Subnet, via netip.Addr) bool {
	return slices.ContainsFunc(subnets, func(s Subnet) bool {
		return s.Prefix.Contains(via) || s.Gateway == via || via.Is6() && via.IsLinkLocalUnicast()
	})
}

// sameRoute says whether the kernel treats the two as one (fib_table_insert,
// fib6_add_rt2node).
func sameRoute(a, b Route) bool {
	return a.Dst == b.Dst && a.Priority == b.Priority && (a.Table == b.Table || a.Table != nil && b.Table != nil && *a.Table == *b.Table)
}

// localTable is the kernel's table of local addresses (RT_TABLE_LOCAL).
const localTable = 255

func route(v strict.Value) Route {
	o := v.Object()
	if !o.Present() {
		return Route{}
	}
	defer o.Strict(notOursInRoute)
	dst, gw, table := o.At("dst"), o.At("gw"), o.At("table")
	r := Route{
		MTU:      int(o.At("mtu").Whole(0, 0, MaxRouteMTU)),
		AdvMSS:   int(o.At("advmss").Whole(0, 0, MaxAdvMSS)),
		Priority: int(o.At("priority").Whole(0, 0, math.MaxUint32)),
		Table:    number(table, 1, math.MaxUint32),
		Scope:    number(o.At("scope"), 0, 254),
	}
	if r.Table != nil && *r.Table == localTable {
		table.Bad("remove the key", "255 is the kernel's table of local addresses")
	}
	dst.Missing("")
	r.Dst, _ = dst.Prefix()
	r.Via, _ = gw.Address()
	if r.Via.IsValid() && r.Dst.IsValid() && r.Via.BitLen() != r.Dst.Addr().BitLen() {
		gw.Bad("", "%s is not of the family of %s", r.Via, r.Dst)
	}
	if r.Via.IsValid() && r.Scope != nil && *r.Scope >= 253 { // fib_check_nh
		gw.Bad("remove gw or scope", "a route with a gateway cannot have scope %d", *r.Scope)
	}
	return r
}

func hasFamily(p netip.Prefix, subnets []Subnet) bool {
	return slices.ContainsFunc(subnets, func(s Subnet) bool {
		return s.Prefix.Addr().BitLen() == p.Addr().BitLen()
	})
}

func number(v strict.Value, lo, hi int64) *int {
	if !v.Present() {
		return nil
	}
	return new(int(v.Whole(lo, lo, hi)))
}

func notOursInRoute(key string) string {
	switch key {
	case "via", "gateway":
		return `did you mean "gw"?`
	case "metric":
		return `did you mean "priority"?`
	}
	return ""
}
