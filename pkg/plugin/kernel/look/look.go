// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package look reads a network namespace: what the programs in it see, and what a
// pod's namespace contains before an attachment is made in it.
//
// It changes nothing and enters no namespace. It stands below package kernel, which
// gives it a socket in the pod. Read this file for the view of the calling thread's
// namespace, and pod.go for the facts that a plan needs.
package look

import (
	"context"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
)

// View is what a namespace looks like to the programs in it.
type View struct {
	Addrs []LinkAddr
	// Out is the interface of the default route with the lowest metric. An IPv4
	// route counts before an IPv6 one. Out is "" if there is no default route.
	Out conf.LinkName
	// OutAddr is the first address of Out that is valid beyond the link, stays (privacy
	// addresses of IPv6 do not) and has the family of that route. It is the zero value if
	// there is none.
	OutAddr netip.Addr
	// Routes are the unicast routes of all tables.
	Routes []LinkRoute
	// Slaves are the interfaces that a bond consists of.
	Slaves []conf.LinkName
}

// LinkAddr is an address on an interface.
type LinkAddr struct {
	Link conf.LinkName
	Addr netip.Addr
}

// LinkRoute is a route through an interface.
type LinkRoute struct {
	Link conf.LinkName
	Dst  netip.Prefix
}

// Here returns the view of the calling thread's namespace. Errors: cnierr.IO.
func Here(ctx context.Context) (View, error) {
	c, err := rtnl.Dial()
	if err != nil {
		return View{}, failed(err)
	}
	defer c.Close()
	links, err := c.Links(ctx)
	if err != nil {
		return View{}, failed(err)
	}
	addrs, err := c.Addresses(ctx, 0)
	if err != nil {
		return View{}, failed(err)
	}
	routes, err := c.Routes(ctx)
	if err != nil {
		return View{}, failed(err)
	}
	var v View
	names := map[int32]conf.LinkName{}
	for _, l := range links {
		names[l.Index] = conf.LinkName(l.Name)
		if l.SlaveKind == "bond" {
			v.Slaves = append(v.Slaves, conf.LinkName(l.Name))
		}
	}
	for _, a := range addrs {
		v.Addrs = append(v.Addrs, LinkAddr{names[a.Index], a.Prefix.Addr()})
	}
	out := defaultRoute(routes)
	v.Out = names[out.Index]
	for _, a := range addrs {
		if addr := a.Prefix.Addr(); a.Index == out.Index && a.Scope == unix.RT_SCOPE_UNIVERSE && addr.Is4() == out.Dst.Addr().Is4() && !temporary(a) {
			v.OutAddr = addr
			break
		}
	}
	for _, r := range routes {
		if r.Type == unix.RTN_UNICAST {
			v.Routes = append(v.Routes, LinkRoute{names[r.Index], r.Dst})
		}
	}
	return v, nil
}

// temporary says whether the kernel replaces an address within days (RFC 8981). For IPv4
// the flag is IFA_F_SECONDARY.
func temporary(a rtnl.Address) bool {
	return a.Prefix.Addr().Is6() && a.Flags&unix.IFA_F_TEMPORARY != 0
}

// defaultRoute returns the default route, the zero value if there is none.
func defaultRoute(routes []rtnl.Route) rtnl.Route {
	defaults := slices.DeleteFunc(slices.Clone(routes), func(r rtnl.Route) bool { return !r.IsDefault() })
	if len(defaults) == 0 {
		return rtnl.Route{}
	}
	return slices.MinFunc(defaults, func(a, b rtnl.Route) int {
		if a.Dst.Addr().Is4() != b.Dst.Addr().Is4() {
			return a.Dst.Addr().BitLen() - b.Dst.Addr().BitLen()
		}
		return int(int64(a.Metric) - int64(b.Metric))
	})
}

func failed(err error) error {
	return cnierr.New(cnierr.IO, "look at", "network namespace", "", "%w", err)
}
