// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package parent finds the link that carries an attachment's macvlan, and
// refuses one that cannot, before an address is spent on it.
//
// It changes nothing. It stands below package kernel, which gives it a socket
// in the right namespace and sysfs. Read this file first; choose.go matches a
// selector object against links and is pure, rdma.go finds the link of an RDMA
// device, layers.go what a link stands on.
package parent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/kernel/rtnl"
)

const (
	selecting = "select master"
	using     = "use master"
)

// Namespace is what Select looks at; *rtnl.Conn is one.
type Namespace interface {
	LinkByName(ctx context.Context, name string) (rtnl.Link, error)
	LinkByIndex(ctx context.Context, index int32) (rtnl.Link, error)
	Links(ctx context.Context) ([]rtnl.Link, error)
	RoutesOf(ctx context.Context, family uint8, table uint32) ([]rtnl.Route, error)
}

// Select returns the link that the request's parent means, in a namespace
// whose addresses are addrs; ask is called only for a parent that is selected
// by its RDMA device, and sys is the root of sysfs.
//
// Errors: BadParent for a link that is missing, ambiguous, down or of a kind
// that carries no macvlan, NoRDMA for InfiniBand and for an RDMA device that is
// not there, BadConfig for an MTU that is larger than the link's; those of c
// and ask as they are.
func Select(ctx context.Context, c Namespace, addrs []rtnl.Address, req conf.Request, ask System, sys fs.FS) (rtnl.Link, error) {
	l, err := find(ctx, c, addrs, req.Parent, ask, sys)
	if err != nil {
		return rtnl.Link{}, err
	}
	if err := carries(ctx, c, l); err != nil {
		return rtnl.Link{}, err
	}
	return l, ready(l, req.MTU)
}

func find(ctx context.Context, c Namespace, addrs []rtnl.Address, p conf.Parent, ask System, sys fs.FS) (rtnl.Link, error) {
	switch {
	case p.Name != "":
		l, err := c.LinkByName(ctx, string(p.Name))
		if errors.Is(err, unix.ENODEV) {
			return rtnl.Link{}, cnierr.New(cnierr.BadParent, selecting, string(p.Name),
				"correct the key master: ip link shows the interfaces and their altnames", "there is no such interface")
		}
		return l, err
	case isZero(p):
		return defaultLink(ctx, c)
	}
	links, err := c.Links(ctx)
	if err != nil {
		return rtnl.Link{}, err
	}
	prefixes := map[int32][]netip.Prefix{}
	for _, a := range addrs {
		prefixes[a.Index] = append(prefixes[a.Index], a.Prefix)
	}
	var all []candidate
	for _, l := range links {
		all = append(all, candidate{l, prefixes[l.Index]})
	}
	if p.RDMA != "" {
		indexes, err := ofDevice(ctx, links, p.RDMA, ask, sys)
		if err != nil {
			return rtnl.Link{}, err
		}
		all = slices.DeleteFunc(all, func(c candidate) bool { return !slices.Contains(indexes, c.Index) })
	}
	return choose(all, p, sys)
}

// isZero says whether nothing is asked for: the interface of the default route.
func isZero(p conf.Parent) bool {
	return p.RDMA == "" && p.PCI == "" && !p.Subnet.IsValid() &&
		len(p.IfNames)+len(p.Vendors)+len(p.DeviceIDs)+len(p.Drivers)+len(p.LinkTypes) == 0
}

// defaultLink returns the interface of the default route of lowest metric,
// IPv4 before IPv6.
func defaultLink(ctx context.Context, c Namespace) (rtnl.Link, error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		routes, err := c.RoutesOf(ctx, family, unix.RT_TABLE_MAIN)
		if err != nil {
			return rtnl.Link{}, err
		}
		routes = slices.DeleteFunc(routes, func(r rtnl.Route) bool { return !r.IsDefault() })
		if len(routes) > 0 {
			best := slices.MinFunc(routes, func(a, b rtnl.Route) int { return cmp.Compare(a.Metric, b.Metric) })
			return c.LinkByIndex(ctx, best.Index)
		}
	}
	return rtnl.Link{}, cnierr.New(cnierr.BadParent, selecting, "default route",
		"name the NIC in the key master", "there is no default route, and master is not set")
}

// ready refuses a link that carries nothing now, and an MTU that it cannot.
func ready(l rtnl.Link, mtu int) error {
	switch {
	case l.Flags&unix.IFF_UP == 0:
		return cnierr.New(cnierr.BadParent, using, l.Name,
			fmt.Sprintf("bring it up: ip link set %s up", l.Name), "it is down")
	case l.Flags&unix.IFF_LOWER_UP == 0:
		return cnierr.New(cnierr.BadParent, using, l.Name,
			fmt.Sprintf("check the cable and the switch port: ethtool %s", l.Name), "it is up but has no carrier")
	case mtu > l.MTU:
		return cnierr.New(cnierr.BadConfig, "check", "mtu",
			fmt.Sprintf("set mtu to at most %d, or raise the master's: ip link set %s mtu %d", l.MTU, l.Name, mtu),
			"want at most %d, the MTU of master %q, got %d", l.MTU, l.Name, mtu)
	}
	return nil
}

// carries refuses kinds of links that no macvlan can stand on: the kernel
// takes Ethernet links whose frames nobody else takes away already
// (macvlan_port_create, netdev_is_rx_handler_busy). A macvlan may stand on a
// macvlan: it then becomes its sibling.
func carries(ctx context.Context, c Namespace, l rtnl.Link) error {
	switch {
	case l.Type == unix.ARPHRD_INFINIBAND:
		return cnierr.New(cnierr.NoRDMA, using, l.Name,
			"switch the port to Ethernet (mlxconfig LINK_TYPE_P1=2), or use an IPoIB or SR-IOV InfiniBand plugin for it",
			"its link layer is InfiniBand, and macvlan and RoCE need Ethernet")
	case l.Flags&unix.IFF_LOOPBACK != 0 || l.Type != unix.ARPHRD_ETHER:
		return cnierr.New(cnierr.BadParent, using, l.Name,
			"use an Ethernet NIC as master", "its link layer is %s, and macvlan needs Ethernet", l.Encap())
	case l.Kind == "ipvlan" || l.Kind == "ipvtap":
		return cnierr.New(cnierr.BadParent, using, l.Name,
			"use the NIC below it as master", "it is an %s, which shares its MAC and drops frames for any other", l.Kind)
	case slices.Contains([]string{"bridge", "bond", "team", "openvswitch"}, l.SlaveKind):
		upper := l.SlaveKind
		if u, err := c.LinkByIndex(ctx, l.Master); err == nil {
			upper = u.Name
		} else if !errors.Is(err, unix.ENODEV) {
			return err
		}
		return cnierr.New(cnierr.BadParent, using, l.Name,
			fmt.Sprintf("use %s as master, or take %s out of it", upper, l.Name), "it is a port of the %s %q, which takes its frames", l.SlaveKind, upper)
	}
	return nil
}
