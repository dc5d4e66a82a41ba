// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package gids

import (
	"context"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
)

// view is what a namespace looks like to the programs in it.
type view struct {
	Addrs []Addr
	// Out is the interface of the default route with the lowest metric. An IPv4
	// route counts before an IPv6 one. Out is "" if there is no default route.
	Out conf.LinkName
	// OutAddr is the first address of Out that is valid beyond the link, stays (privacy
	// addresses of IPv6 do not) and has the family of that route. It is the zero value if
	// there is none.
	OutAddr netip.Addr
	// Routes are the unicast routes of all tables.
	Routes []linkRoute
	// Slaves are the interfaces that a bond consists of.
	Slaves []conf.LinkName
}

type linkRoute struct {
	Link conf.LinkName
	Dst  netip.Prefix
}

// addrsHere returns the addresses of the calling thread's namespace, and reads nothing that a
// pod may have a million of. Errors: cnierr.IO.
func addrsHere(ctx context.Context) ([]Addr, error) {
	c, err := rtnl.Dial()
	if err != nil {
		return nil, unseen(err)
	}
	defer c.Close()
	v, _, _, err := interfaces(ctx, c)
	return v.Addrs, err
}

// viewHere returns the view of the calling thread's namespace. Errors: cnierr.IO.
func viewHere(ctx context.Context) (view, error) {
	c, err := rtnl.Dial()
	if err != nil {
		return view{}, unseen(err)
	}
	defer c.Close()
	v, names, addrs, err := interfaces(ctx, c)
	if err != nil {
		return view{}, err
	}
	routes, err := c.Routes(ctx)
	if err != nil {
		return view{}, unseen(err)
	}
	out := defaultRoute(routes)
	v.Out = names[out.Index]
	for _, a := range addrs {
		addr := a.Prefix.Addr()
		temporary := addr.Is6() && a.Flags&unix.IFA_F_TEMPORARY != 0 // RFC 8981; of IPv4 the flag is IFA_F_SECONDARY
		if a.Index == out.Index && a.Scope == unix.RT_SCOPE_UNIVERSE && addr.Is4() == out.Dst.Addr().Is4() && !temporary {
			v.OutAddr = addr
			break
		}
	}
	for _, r := range routes {
		if r.Type == unix.RTN_UNICAST {
			v.Routes = append(v.Routes, linkRoute{names[r.Index], r.Dst})
		}
	}
	return v, nil
}

// interfaces returns the part of a view that is about interfaces, with their names and addresses.
func interfaces(ctx context.Context, c *rtnl.Conn) (v view, names map[int32]conf.LinkName, addrs []rtnl.Address, err error) {
	all, err := c.Links(ctx)
	if err != nil {
		return view{}, nil, nil, unseen(err)
	}
	if addrs, err = c.Addresses(ctx, 0); err != nil {
		return view{}, nil, nil, unseen(err)
	}
	names = map[int32]conf.LinkName{}
	for _, l := range all {
		names[l.Index] = conf.LinkName(l.Name)
		if l.SlaveKind == "bond" {
			v.Slaves = append(v.Slaves, conf.LinkName(l.Name))
		}
	}
	for _, a := range addrs {
		v.Addrs = append(v.Addrs, Addr{names[a.Index], a.Prefix.Addr()})
	}
	return v, names, addrs, nil
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

func unseen(err error) error {
	return cnierr.New(cnierr.IO, "look at", "network namespace", "", "%w", err)
}
