// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// leaseRoutes returns the routes that IPAM asks for. Each goes into the table
// that it names, or else into the table of its address. leaseRoutes leaves out
// routes of a family without address, and routes that another plugin has made.
func (m maker) leaseRoutes(table func(address int) uint32) ([]Route, error) {
	var out []Route
	for _, r := range m.lease.Routes {
		i := m.owner(r)
		if i < 0 || m.theirs(r, table(i)) {
			continue
		}
		if err := m.checkVia(r); err != nil {
			return nil, err
		}
		if op := m.leaseRoute(r, m.lease.Addresses[i], table(i)); !m.connected(op) {
			out = append(out, op)
		}
	}
	return out, nil
}

// theirs says whether a route belongs to the plugin that made the adopted link.
// That plugin has put its routes where they were asked for, into main or into a
// table by number. Only our own tables still need them. A route through a
// gateway that is not on the link may belong to another link.
func (m maker) theirs(r conf.Route, table uint32) bool {
	return m.facts.Adopted != nil && (r.Table != nil || table == MainTable || m.checkVia(r) != nil)
}

// owner returns the index of the address that a route belongs to, -1 if its
// family has no address. A route with a gateway belongs to the address with
// that gateway, or with a subnet that contains it. A route on the link belongs
// to the address with a subnet that contains its destination. Any other route
// belongs to the first address that has a gateway. If no address fits, the
// route belongs to the first address of its family.
func (m maker) owner(r conf.Route) int {
	of := func(fits func(LeasedAddress) bool) int {
		return slices.IndexFunc(m.lease.Addresses, func(a LeasedAddress) bool {
			return a.Prefix.Addr().BitLen() == r.Dst.Addr().BitLen() && fits(a)
		})
	}
	var i int
	switch {
	case r.Via.IsValid():
		i = of(func(a LeasedAddress) bool { return a.Gateway == r.Via || a.Prefix.Masked().Contains(r.Via) })
	case onLink(r):
		i = of(func(a LeasedAddress) bool { return a.Prefix.Masked().Contains(r.Dst.Addr()) })
	default:
		i = of(func(a LeasedAddress) bool { return a.Gateway.IsValid() })
	}
	if i < 0 {
		i = of(func(LeasedAddress) bool { return true })
	}
	return i
}

// leaseRoute returns one route of IPAM. If the route has no gateway, it uses
// the gateway of the address, unless its scope says that it is on the link.
func (m maker) leaseRoute(r conf.Route, a LeasedAddress, table uint32) Route {
	op := Route{
		Link: m.rail.IfName, Table: table, Dst: r.Dst, Via: r.Via,
		Metric: uint32(r.Priority), MTU: min(r.MTU, conf.MaxRouteMTU), AdvMSS: min(r.AdvMSS, conf.MaxAdvMSS),
	}
	if !op.Via.IsValid() && !onLink(r) {
		op.Via = a.Gateway
	}
	op.OnLink = m.beyond(op.Via)
	switch {
	case r.Dst.Addr().Is6(): // has no scope
	case r.Scope != nil:
		op.Scope = Scope(*r.Scope)
	case !op.Via.IsValid():
		op.Scope = ScopeLink
	}
	if r.Table != nil {
		op.Table = uint32(*r.Table)
	}
	if op.Table != MainTable {
		op.Src = a.Prefix.Addr()
	}
	return op
}

// onLink says whether the scope of a route permits no gateway.
func onLink(r conf.Route) bool { return r.Scope != nil && Scope(*r.Scope) >= ScopeLink }

// connected says whether a route is the one that the kernel makes in main for
// an IPv4 address.
func (m maker) connected(r Route) bool {
	return r == Route{Link: r.Link, Table: MainTable, Dst: r.Dst, Scope: ScopeLink} && !r.Dst.IsSingleIP() &&
		slices.ContainsFunc(m.lease.Addresses, func(a LeasedAddress) bool { return a.Prefix.Masked() == r.Dst })
}

// beyond says whether a gateway is in no subnet of the addresses, as in some
// clouds. The kernel must then be told that the gateway is on the link. IPv6
// link-local gateways are on every link.
func (m maker) beyond(via netip.Addr) bool {
	if !via.IsValid() || (via.Is6() && via.IsLinkLocalUnicast()) {
		return false
	}
	return !slices.ContainsFunc(m.lease.Addresses, func(a LeasedAddress) bool { return a.Prefix.Masked().Contains(via) })
}

// checkVia refuses a gateway that cannot be reached. It does not look at the
// gateways of the addresses: the Gateway operation asks those.
func (m maker) checkVia(r conf.Route) error {
	if !m.beyond(r.Via) ||
		slices.ContainsFunc(m.lease.Addresses, func(a LeasedAddress) bool { return a.Gateway == r.Via }) ||
		slices.ContainsFunc(m.lease.Routes, func(o conf.Route) bool { return onLink(o) && o.Dst.Contains(r.Via) }) {
		return nil
	}
	return cnierr.New(cnierr.BadConfig, "add route to", r.Dst.String(),
		"correct the gateway of the route, or add a route with scope 253 (link) to the gateway",
		"its gateway %s is neither in a subnet of the pod's addresses nor the gateway of one", r.Via)
}
