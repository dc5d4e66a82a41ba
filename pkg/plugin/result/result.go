// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package result reads the results of other CNI plugins as addresses and routes, and
// writes our results.
//
// It refuses results from which no plan can be made, so that no attachment is made in
// part, and it does no I/O. It stands between package attach, which has the results,
// and package plan. This file reads, write.go writes.
package result

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
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// maxShown is how many bytes of a text that is not a result an error shows.
const maxShown = 300

// Lease reads the result of an IPAM plugin, of any CNI version; see
// conf.ReadResult. The lease has at least one address.
func Lease(stdout []byte, version string) (plan.Lease, error) {
	res, err := conf.ReadResult(stdout, version)
	if err != nil {
		return plan.Lease{}, fmt.Errorf("it printed %q: %w", bytes.TrimSpace(stdout[:min(len(stdout), maxShown)]), err)
	}
	l, err := fromResult(res)
	if err == nil && len(l.Addresses) == 0 {
		err = errors.New("it has no address")
	}
	if err != nil {
		return plan.Lease{}, err
	}
	return l, nil
}

// Previous returns the addresses, routes and DNS settings that the plugins
// before roce gave to an adopted interface. There may be none. We do not
// release them: they belong to those plugins.
func Previous(p conf.Prev) (plan.Lease, error) {
	res := *p.Result
	res.IPs = slices.DeleteFunc(slices.Clone(res.IPs), func(ip *current.IPConfig) bool {
		return ip.Interface != nil && *ip.Interface != p.Interface
	})
	lease, err := fromResult(&res)
	if err != nil {
		return plan.Lease{}, cnierr.New(cnierr.Decode, "read result of the plugin before roce", "prevResult",
			"correct the configuration of that plugin", "%w", err)
	}
	return lease, nil
}

// fromResult returns the addresses, routes and DNS settings of a result.
func fromResult(res *current.Result) (plan.Lease, error) {
	lease := plan.Lease{DNS: res.DNS}
	for _, ip := range res.IPs {
		a, err := leasedAddress(ip)
		if err != nil {
			return plan.Lease{}, err
		}
		lease.Addresses = append(lease.Addresses, a)
	}
	for _, r := range res.Routes {
		route, err := leasedRoute(r)
		if err != nil {
			return plan.Lease{}, err
		}
		lease.Routes = append(lease.Routes, route)
	}
	return lease, nil
}

func leasedAddress(ip *current.IPConfig) (plan.LeasedAddress, error) {
	p, ok := prefixOf(ip.Address)
	if !ok {
		return plan.LeasedAddress{}, fmt.Errorf("address %q is not a prefix", ip.Address.String())
	}
	for _, s := range netrange.Specials() {
		if s.Contains(p.Addr()) {
			return plan.LeasedAddress{}, fmt.Errorf("address %s is %s", p, s.Why)
		}
	}
	gw, err := gatewayOf(ip.Gateway, p.Addr())
	if err == nil && gw == p.Addr() {
		err = fmt.Errorf("address %s is its own gateway", p)
	}
	return plan.LeasedAddress{Prefix: p, Gateway: gw}, err
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
		link := int(plan.ScopeLink)
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
	if r.Via.IsValid() && scope >= int(plan.ScopeLink) {
		return fmt.Errorf("route to %s: a route with a gateway cannot have scope %d", r.Dst, scope)
	}
	return nil
}

// gatewayOf returns a gateway for addresses of a family. It returns the zero
// Addr for no gateway and for the unspecified address.
func gatewayOf(ip net.IP, family netip.Addr) (netip.Addr, error) {
	gw, ok := addrOf(ip)
	switch {
	case len(ip) == 0, ok && gw.IsUnspecified():
		return netip.Addr{}, nil
	case !ok || gw.IsMulticast() || gw.IsLoopback() || gw.BitLen() != family.BitLen():
		return netip.Addr{}, fmt.Errorf("%s cannot be the gateway of %s", ip, family)
	}
	return gw, nil
}

func prefixOf(n net.IPNet) (netip.Prefix, bool) {
	a, ok := addrOf(n.IP)
	ones, bits := n.Mask.Size()
	if !ok || bits == 0 {
		return netip.Prefix{}, false
	}
	p := netip.PrefixFrom(a, ones-bits+a.BitLen()) // an IPv4 address may have a mask of 128 bits
	return p, p.IsValid()
}

func addrOf(ip net.IP) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(ip)
	return a.Unmap(), ok
}
