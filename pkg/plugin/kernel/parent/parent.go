// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package parent finds the parent links of an attachment's macvlans, and refuses those that are
// down, have a smaller MTU than requested, or are of a type that cannot carry a macvlan. This is
// before an address is leased.
//
// It changes nothing. It stands below package kernel, which gives it a socket in the
// right namespace and sysfs. Read this file first. choose.go matches a selector
// against links and is pure, match.go finds the NICs of all rails at once, order.go
// sorts them and finds the links below a link, rdma.go finds the link of an RDMA device
// and the one below another plugin's interface, vf.go is about virtual functions, vlan.go
// about VLANs.
package parent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

const (
	selecting = "select master"
	using     = "use master"
)

// Namespace is what Select looks at; *rtnl.Conn is one.
type Namespace interface {
	LinksByName(ctx context.Context, names ...string) []rtnl.Named
	LinkByIndex(ctx context.Context, index int32) (rtnl.Link, error)
	Links(ctx context.Context) ([]rtnl.Link, error)
	RoutesOf(ctx context.Context, family uint8, table uint32) ([]rtnl.Route, error)
	// VFs returns the virtual functions of an interface of the host, also if the
	// namespace is that of a pod.
	VFs(ctx context.Context, pf string) ([]rtnl.VF, error)
}

// Place is where the NICs are.
type Place struct {
	Namespace
	Addrs []rtnl.Address // all of the namespace
	Ask   System         // called only for NICs that are selected or sorted by RDMA device
	Sys   fs.FS          // the root of sysfs
}

// Select returns the parent link of each of the request's rails. It asks only
// once for what several rails need.
//
// faults has, for each rail, the reason why its link cannot serve, nil if it
// can. The codes of a fault are:
//
//   - BadParent: the link is missing, ambiguous, down, of a kind that cannot
//     carry a macvlan, or a virtual function that cannot: see passes.
//   - NoRDMA: the link is InfiniBand, or the RDMA device does not exist.
//   - BadConfig: the MTU is larger than that of the link.
//
// With req.VLAN the links are the VLANs of these NICs, which may not exist yet.
//
// err is BadParent when the number of NICs that fit req.Match is wrong, or when
// they cannot be sorted. Select returns errors of the namespace and of System
// unchanged.
func Select(ctx context.Context, p Place, req conf.Request) (links []plan.Link, faults []error, err error) {
	s := newSearch(ctx, p)
	s.onVLAN = req.VLAN != 0
	n := len(req.Rails)
	links, faults = make([]plan.Link, n), make([]error, n)
	found := make([]rtnl.Link, n)
	if req.Match == nil {
		s.findEach(ctx, req.Rails, found, faults)
	} else if found, err = s.match(*req.Match); err != nil {
		return nil, nil, err
	}
	for i := range links {
		if faults[i] == nil {
			links[i], faults[i] = s.use(ctx, found[i], req)
		}
		var verdict *cnierr.Error
		if faults[i] != nil && !errors.As(faults[i], &verdict) {
			return nil, nil, faults[i]
		}
	}
	if req.VLAN != 0 {
		err = s.onVLANs(ctx, req, links, faults)
	}
	return links, faults, err
}

// search is a Place that remembers answers, so that it asks no question twice.
type search struct {
	Namespace
	links  func() ([]rtnl.Link, error)
	system func() (nldev.System, error)
	addrs  map[int32][]rtnl.Address
	asked  map[string][]rtnl.VF // by PF
	sys    fs.FS
	onVLAN bool // a VLAN of the NIC is asked for
}

func newSearch(ctx context.Context, p Place) search {
	s := search{
		Namespace: p.Namespace, sys: p.Sys, addrs: map[int32][]rtnl.Address{}, asked: map[string][]rtnl.VF{},
		links:  sync.OnceValues(func() ([]rtnl.Link, error) { return p.Links(ctx) }),
		system: sync.OnceValues(func() (nldev.System, error) { return p.Ask(ctx) }),
	}
	for _, a := range p.Addrs {
		s.addrs[a.Index] = append(s.addrs[a.Index], a)
	}
	return s
}

// Links returns the links as they were when they were first asked for.
func (s search) Links(context.Context) ([]rtnl.Link, error) { return s.links() }

// findEach finds the link of each rail. It looks up all names in one batch.
func (s search) findEach(ctx context.Context, rails []conf.Rail, found []rtnl.Link, faults []error) {
	var names []string
	for _, r := range rails {
		if r.Parent.Name != "" {
			names = append(names, string(r.Parent.Name))
		}
	}
	named := s.LinksByName(ctx, names...)
	for i, r := range rails {
		if r.Parent.Name == "" {
			found[i], faults[i] = s.find(ctx, r.Parent)
			continue
		}
		found[i], faults[i] = named[0].Link, named[0].Err
		if errors.Is(faults[i], unix.ENODEV) {
			faults[i] = cnierr.New(cnierr.BadParent, selecting, string(r.Parent.Name),
				"correct the key master: ip link shows the interfaces and their altnames", "there is no such interface")
		}
		named = named[1:]
	}
}

// find returns the link that a selector selects.
func (s search) find(ctx context.Context, p conf.Parent) (rtnl.Link, error) {
	if p.Default() {
		return defaultLink(ctx, s)
	}
	all, err := s.candidates(p)
	if err != nil {
		return rtnl.Link{}, err
	}
	return choose(all, p, s.sys)
}

// use returns what the plan needs to know of a link, or an error if the link
// cannot serve.
func (s search) use(ctx context.Context, l rtnl.Link, req conf.Request) (plan.Link, error) {
	if err := carries(ctx, s, l); err != nil {
		return plan.Link{}, err
	}
	if err := ready(l, req.MTU); err != nil {
		return plan.Link{}, err
	}
	layers, err := Layers(ctx, s, l)
	if err != nil {
		return plan.Link{}, err
	}
	out := plan.Link{Name: conf.LinkName(l.Name), Index: l.Index, MAC: MAC(l), MTU: l.MTU, Layers: layers, Addrs: own(s.addrs[l.Index])}
	if req.Mode.SharesMAC() { // the child has the MAC of the parent
		return out, nil
	}
	return out, s.passes(ctx, l, layers)
}

// own returns a link's own addresses that are valid beyond the link, IPv4
// before IPv6. It leaves out temporary addresses, which the kernel changes from
// time to time (RFC 8981), and addresses that the kernel found on another
// machine.
func own(as []rtnl.Address) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range as {
		fleeting := a.Prefix.Addr().Is6() && a.Flags&(unix.IFA_F_TEMPORARY|unix.IFA_F_DADFAILED) != 0
		if a.Scope == unix.RT_SCOPE_UNIVERSE && !fleeting {
			out = append(out, a.Prefix)
		}
	}
	slices.SortStableFunc(out, func(a, b netip.Prefix) int { return cmp.Compare(a.Addr().BitLen(), b.Addr().BitLen()) })
	return out
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

// ready refuses a link that carries no traffic now, and an MTU that is larger
// than the link's.
func ready(l rtnl.Link, mtu int) error {
	switch {
	case l.Flags&unix.IFF_UP == 0:
		return cnierr.New(cnierr.BadParent, using, l.Name,
			shell.Command("bring it up: ip link set %s up", l.Name), "it is down")
	case l.Flags&unix.IFF_LOWER_UP == 0:
		return cnierr.New(cnierr.BadParent, using, l.Name,
			shell.Command("check the cable and the switch port: ethtool %s", l.Name), "it is up but has no carrier")
	case mtu > l.MTU:
		return cnierr.New(cnierr.BadConfig, "check", "mtu",
			shell.Command("set mtu to at most %d, or raise the master's: ip link set %s mtu %d", l.MTU, l.Name, mtu),
			"want at most %d, the MTU of master %q, got %d", l.MTU, l.Name, mtu)
	}
	return nil
}

// carries refuses links of kinds that cannot carry a macvlan. The kernel
// accepts only Ethernet links with frames that no other device receives yet
// (macvlan_port_create, netdev_is_rx_handler_busy). A macvlan can be the parent
// of a macvlan: the new one becomes its sibling.
func carries(ctx context.Context, c Namespace, l rtnl.Link) error {
	switch {
	case l.Type == unix.ARPHRD_INFINIBAND:
		return cnierr.New(cnierr.NoRDMA, using, l.Name,
			"switch the port to Ethernet (mlxconfig LINK_TYPE_P1=2), or use an IPoIB or SR-IOV InfiniBand plugin for it",
			"its link layer is InfiniBand, and macvlan and RoCE need Ethernet")
	case l.Type != unix.ARPHRD_ETHER:
		return cnierr.New(cnierr.BadParent, using, l.Name,
			"use an Ethernet NIC as master", "its link layer is %s, and macvlan needs Ethernet", l.Encap())
	case ours(l):
		return cnierr.New(cnierr.BadParent, using, l.Name, fmt.Sprintf(`set master to the NIC below it, and "vlan": %d`, l.VLAN),
			"roce has made this VLAN for pods of other networks, and removes it with the last of them")
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
			fmt.Sprintf("use %s as master, or remove %s from it", upper, l.Name), "it is a port of the %s %q, which takes its frames", l.SlaveKind, upper)
	}
	return nil
}
