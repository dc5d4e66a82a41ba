// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package result

import (
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// Of returns the result that the runtime gets for a plan. From version 1.1.0
// on, a result has the MTU of interfaces and the routes of tables other than
// main. Older results cannot name the table, and a route without its table
// would be wrong.
//
// The result begins with everything that the plugins before us reported, because their
// CHECK looks for all of it. An adopted link adds nothing: CHECK looks for its routes in
// the main table.
func Of(p plan.Plan, req conf.Request) *current.Result {
	if req.Prev != nil {
		return req.Prev.Result
	}
	tells11 := req.CNIVersion == "1.1.0"
	res := before(req)
	if !p.DNS.IsEmpty() {
		res.DNS = p.DNS
	}
	for _, i := range p.Interfaces {
		child := &current.Interface{Name: string(i.Name), Mac: i.MAC.String(), Sandbox: req.Netns}
		if tells11 {
			child.Mtu = i.MTU
		}
		n := len(res.Interfaces)
		res.Interfaces = append(res.Interfaces, child)
		for _, a := range i.Addresses {
			ip := address(a)
			ip.Interface = current.Int(n)
			res.IPs = append(res.IPs, ip)
		}
	}
	for r := range plan.All[plan.Route](p.Ops.At(plan.Pod)) {
		if tells11 || r.Table == plan.MainTable {
			res.Routes = append(res.Routes, route(r, tells11))
		}
	}
	return res
}

// before returns a copy of the result of the plugins before us, which may be extended.
func before(req conf.Request) *current.Result {
	res := current.Result{}
	if req.Before != nil {
		res = *req.Before
	}
	res.CNIVersion = current.ImplementedSpecVersion
	res.Interfaces, res.IPs, res.Routes = slices.Clip(res.Interfaces), slices.Clone(res.IPs), slices.Clip(res.Routes)
	for i, ip := range res.IPs {
		if n := ip.Interface; n != nil && (*n < 0 || *n >= len(res.Interfaces)) {
			res.IPs[i] = ip.Copy() // of no interface that is listed; it must not be that of ours
			res.IPs[i].Interface = nil
		}
	}
	return &res
}

// OfLease returns the result that an IPAM plugin gives the main plugin:
// addresses and routes, no interfaces.
func OfLease(l plan.Lease) *current.Result {
	res := &current.Result{CNIVersion: current.ImplementedSpecVersion, DNS: l.DNS}
	for _, a := range l.Addresses {
		res.IPs = append(res.IPs, address(a))
	}
	for _, r := range l.Routes {
		res.Routes = append(res.Routes, &types.Route{
			Dst: ipNet(r.Dst), GW: netIP(r.Via), MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority, Table: r.Table, Scope: r.Scope,
		})
	}
	return res
}

func address(a plan.LeasedAddress) *current.IPConfig {
	return &current.IPConfig{Address: ipNet(a.Prefix), Gateway: netIP(a.Gateway)}
}

// route returns the route in the form of CNI. It leaves out the table for main,
// and the scope for global: these are the meanings of an absent key.
func route(r plan.Route, tells11 bool) *types.Route {
	out := &types.Route{Dst: ipNet(r.Dst), GW: netIP(r.Via)}
	if !tells11 {
		return out
	}
	out.MTU, out.AdvMSS, out.Priority = r.MTU, r.AdvMSS, int(r.Metric)
	if r.Table != plan.MainTable {
		table := int(r.Table)
		out.Table = &table
	}
	if r.Scope != plan.ScopeGlobal {
		scope := int(r.Scope)
		out.Scope = &scope
	}
	return out
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// netIP returns nil for the zero Addr.
func netIP(a netip.Addr) net.IP {
	if !a.IsValid() {
		return nil
	}
	return a.AsSlice()
}
