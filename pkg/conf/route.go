// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"math"
	"net/netip"

	"github.com/roce-cni/roce-cni/pkg/conf/strict"
	"github.com/roce-cni/roce-cni/pkg/netrange"
)

// readRoutes reads "ipam.routes", whose keys are those of a CNI result. With
// subnets nil, because they have faults, it does not compare with them.
func readRoutes(v strict.Value, subnets []Subnet) []Route {
	var out []Route
	for _, e := range v.List() {
		r := route(e, subnets)
		for _, other := range out {
			if r.Dst.IsValid() && sameRoute(r, other) {
				e.Bad("give one of the two another priority or table", "a route to %s with the same priority and table is there already", r.Dst)
			}
		}
		out = append(out, r)
	}
	return out
}

// sameRoute says whether the kernel takes the two for one (fib_table_insert,
// fib6_add_rt2node).
func sameRoute(a, b Route) bool {
	return a.Dst == b.Dst && a.Priority == b.Priority && (a.Table == b.Table || a.Table != nil && b.Table != nil && *a.Table == *b.Table)
}

func route(v strict.Value, subnets []Subnet) Route {
	o := v.Object()
	if !o.Present() {
		return Route{}
	}
	defer o.Strict(notOursInRoute)
	dst, gw, table := o.At("dst"), o.At("gw"), o.At("table")
	r := Route{
		MTU:      int(o.At("mtu").Whole(0, 0, math.MaxInt32)),
		AdvMSS:   int(o.At("advmss").Whole(0, 0, math.MaxInt32)),
		Priority: int(o.At("priority").Whole(0, 0, math.MaxUint32)),
		Table:    number(table, 1, math.MaxUint32),
		Scope:    number(o.At("scope"), 0, 254),
	}
	if r.Table != nil && *r.Table == lastKernelTable {
		table.Bad("leave the key out", "255 is the kernel's table of local addresses")
	}
	dst.Missing("")
	r.Dst, _ = dst.Prefix()
	if r.Dst.IsValid() && subnets != nil && !hasFamily(r.Dst.Addr(), subnets) {
		dst.Bad("remove the route, or add a subnet of its family", "%s: no subnet is of its family", r.Dst)
	}
	r.Via, _ = gw.Address()
	if r.Via.IsValid() {
		checkVia(gw, r, subnets)
	}
	return r
}

// checkVia checks a route's gateway.
func checkVia(v strict.Value, r Route, subnets []Subnet) {
	if r.Dst.IsValid() && r.Via.BitLen() != r.Dst.Addr().BitLen() {
		v.Bad("", "%s is not of the family of %s", r.Via, r.Dst)
	}
	if r.Scope != nil && *r.Scope >= 253 { // fib_check_nh
		v.Bad("remove gw or scope", "a route with a gateway cannot have scope %d", *r.Scope)
	}
	if subnets == nil {
		return
	}
	i := subnetOf(r.Via, subnets)
	if i < 0 {
		v.Bad("use an address of ipam.subnets", "%s is in none of the pool's subnets", r.Via)
	} else if what := netrange.Unusable(subnets[i].Prefix)[r.Via]; what != "" {
		v.Bad("", "%s is %s of %s", r.Via, what, subnets[i].Prefix)
	}
}

func hasFamily(a netip.Addr, subnets []Subnet) bool {
	for _, s := range subnets {
		if s.Prefix.Addr().BitLen() == a.BitLen() {
			return true
		}
	}
	return false
}

// number returns a whole number, or nil if there is none.
func number(v strict.Value, lo, hi int64) *int {
	if !v.Present() {
		return nil
	}
	n := int(v.Whole(lo, lo, hi))
	return &n
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
