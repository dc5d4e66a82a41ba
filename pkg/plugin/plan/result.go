// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// Results from which no plan can be made are refused, so that no attachment is made in part.

// maxShown is how many bytes of a text that is not a result an error shows.
const maxShown = 300

// ReadLease reads the result of an IPAM plugin, of any CNI version; see
// conf.ReadResult. The lease has at least one address.
func ReadLease(stdout []byte, version string) (Lease, error) {
	res, err := conf.ReadResult(stdout, version)
	if err != nil {
		return Lease{}, fmt.Errorf("it printed %q: %w", bytes.TrimSpace(stdout[:min(len(stdout), maxShown)]), err)
	}
	l, err := fromResult(res)
	if err == nil && len(l.Addresses) == 0 {
		err = errors.New("it has no address")
	}
	if err != nil {
		return Lease{}, err
	}
	return l, nil
}

// PreviousLease returns the addresses, routes and DNS settings that the plugins
// before roce gave to an adopted interface. There may be none. We do not
// release them: they belong to those plugins.
func PreviousLease(p conf.Prev) (Lease, error) {
	res := *p.Result
	res.IPs = slices.DeleteFunc(slices.Clone(res.IPs), func(ip *current.IPConfig) bool {
		return ip.Interface != nil && *ip.Interface != p.Interface
	})
	lease, err := fromResult(&res)
	if err != nil {
		return Lease{}, cnierr.New(cnierr.Decode, "read result of the plugin before roce", "prevResult",
			"correct the configuration of that plugin", "%w", err)
	}
	return lease, nil
}

// fromResult returns the addresses, routes and DNS settings of a result.
func fromResult(res *current.Result) (Lease, error) {
	lease := Lease{DNS: res.DNS}
	for _, ip := range res.IPs {
		a, err := leasedAddress(ip)
		if err != nil {
			return Lease{}, err
		}
		lease.Addresses = append(lease.Addresses, a)
	}
	for _, r := range res.Routes {
		route, err := leasedRoute(r)
		if err != nil {
			return Lease{}, err
		}
		lease.Routes = append(lease.Routes, route)
	}
	return lease, nil
}

func leasedAddress(ip *current.IPConfig) (LeasedAddress, error) {
	p, ok := prefixOf(ip.Address)
	if !ok {
		return LeasedAddress{}, fmt.Errorf("address %q is not a prefix", ip.Address.String())
	}
	for _, s := range netrange.Specials() {
		if s.Contains(p.Addr()) {
			return LeasedAddress{}, fmt.Errorf("address %s is %s", p, s.Why)
		}
	}
	gw, err := gatewayOf(ip.Gateway, p.Addr())
	if err == nil && gw == p.Addr() {
		err = fmt.Errorf("address %s is its own gateway", p)
	}
	return LeasedAddress{Prefix: p, Gateway: gw}, err
}

// leasedRoute reads one route. A gateway of 0.0.0.0 or :: means that the
// destination is on the link (RFC 3442). Table 0 means that no table is given.
func leasedRoute(r *types.Route) (pool.Route, error) {
	dst, ok := prefixOf(r.Dst)
	if !ok {
		return pool.Route{}, fmt.Errorf("route destination %q is not a prefix", r.Dst.String())
	}
	via, err := gatewayOf(r.GW, dst.Addr())
	if err != nil {
		return pool.Route{}, fmt.Errorf("route to %s: %w", dst, err)
	}
	out := pool.Route{
		Dst: dst.Masked(), Via: via, MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority, Table: r.Table, Scope: r.Scope,
	}
	if out.Table != nil && *out.Table == 0 {
		out.Table = nil
	}
	if len(r.GW) > 0 && !via.IsValid() && out.Scope == nil {
		link := int(ScopeLink)
		out.Scope = &link
	}
	return out, checkNumbers(out)
}

// checkNumbers refuses numbers that do not fit into netlink, the kernel's table
// of local addresses, and a scope that permits no gateway (fib_check_nh).
func checkNumbers(r pool.Route) error {
	table, scope := 1, 0
	if r.Table != nil {
		table = *r.Table
	}
	if r.Scope != nil {
		scope = *r.Scope
	}
	for _, n := range []struct {
		name           string
		is, least, max int
	}{
		{"mtu", r.MTU, 0, math.MaxInt32},
		{"advmss", r.AdvMSS, 0, math.MaxInt32},
		{"priority", r.Priority, 0, math.MaxUint32},
		{"table", table, 1, math.MaxUint32},
		{"scope", scope, 0, 254},
	} {
		if n.is < n.least || n.is > n.max {
			return fmt.Errorf("route to %s: %s %d is not in %d to %d", r.Dst, n.name, n.is, n.least, n.max)
		}
	}
	if table == 255 {
		return fmt.Errorf("route to %s: table 255 is the kernel's table of local addresses", r.Dst)
	}
	if r.Via.IsValid() && scope >= int(ScopeLink) {
		return fmt.Errorf("route to %s: a route with a gateway cannot have scope %d", r.Dst, scope)
	}
	return nil
}

// gatewayOf returns a gateway for addresses of a family. It returns the zero
// Addr for no gateway and for the unspecified address.
func gatewayOf(ip net.IP, family netip.Addr) (netip.Addr, error) {
	gw := addrOf(ip)
	switch {
	case len(ip) == 0, gw.IsUnspecified():
		return netip.Addr{}, nil
	case gw.IsMulticast() || gw.IsLoopback() || gw.BitLen() != family.BitLen():
		return netip.Addr{}, fmt.Errorf("%s cannot be the gateway of %s", ip, family)
	}
	return gw, nil
}

func prefixOf(n net.IPNet) (netip.Prefix, bool) {
	a := addrOf(n.IP)
	ones, bits := n.Mask.Size()
	if bits == 0 {
		return netip.Prefix{}, false
	}
	p := netip.PrefixFrom(a, ones-bits+a.BitLen()) // an IPv4 address may have a mask of 128 bits
	return p, p.IsValid()
}

// addrOf returns the zero Addr, which is of no family, for what is no address.
func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// Result returns the result that the runtime gets for the plan. From version
// 1.1.0 on, a result has the MTU of interfaces and the routes of tables other than
// main. Older results cannot name the table, and a route without its table
// would be wrong.
//
// The result begins with everything that the plugins before us reported, because their
// CHECK looks for all of it. An adopted link adds nothing: CHECK looks for its routes in
// the main table.
func (p Plan) Result(req conf.Request) *current.Result {
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
	for r := range All[Route](p.Ops.At(Pod)) {
		if tells11 || r.Table == MainTable {
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

// Result returns the result that an IPAM plugin gives the main plugin:
// addresses and routes, no interfaces.
func (l Lease) Result() *current.Result {
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

func address(a LeasedAddress) *current.IPConfig {
	return &current.IPConfig{Address: ipNet(a.Prefix), Gateway: netIP(a.Gateway)}
}

// route returns the route in the form of CNI. It leaves out the table for main,
// and the scope for global: these are the meanings of an absent key.
func route(r Route, tells11 bool) *types.Route {
	out := &types.Route{Dst: ipNet(r.Dst), GW: netIP(r.Via)}
	if !tells11 {
		return out
	}
	out.MTU, out.AdvMSS, out.Priority = r.MTU, r.AdvMSS, int(r.Metric)
	if r.Table != MainTable {
		table := int(r.Table)
		out.Table = &table
	}
	if r.Scope != ScopeGlobal {
		scope := int(r.Scope)
		out.Scope = &scope
	}
	return out
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// netIP returns nil for the zero Addr.
func netIP(a netip.Addr) net.IP { return a.AsSlice() }
