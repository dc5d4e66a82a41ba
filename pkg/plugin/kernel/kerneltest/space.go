// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// Space is one network namespace of a Fake.
type Space struct {
	f      *Fake
	name   string
	id     netns.ID
	links  []*iface
	routes []route
	rules  []rule
	things []plan.Op
}

// iface is one interface. Its index is its position in its namespace, from 1. A
// removed interface leaves nil there.
type iface struct {
	name    conf.LinkName
	kind    string // "ether" is a physical NIC
	alias   string
	mac     conf.MAC
	mtu     int
	group   int
	up      bool
	mode    conf.Mode
	vlan    int
	parent  *iface
	peer    *iface // of a veth
	addrs   []netip.Prefix
	sysctls map[string]string
}

// route is any route, ours or foreign.
type route struct {
	plan.Route
	proto int
}

// rule is any rule, ours or foreign, that selects only by source.
type rule struct {
	plan.Rule
	proto int
}

// The protocol numbers of routes and rules (rtnetlink.h).
const (
	protoKernel = 2
	protoBoot   = 3
)

func (s *Space) link(name conf.LinkName) *iface {
	for _, l := range s.links {
		if l != nil && l.name == name {
			return l
		}
	}
	return nil
}

// removeLink removes a link with its addresses, routes and things; rules stay.
func (s *Space) removeLink(l *iface) {
	peer := l.peer
	l.peer = nil
	for _, space := range s.f.spaces() {
		for _, other := range space.links {
			if other != nil && (other.parent == l || other == peer) {
				other.peer = nil
				space.removeLink(other)
			}
		}
	}
	s.things = slices.DeleteFunc(s.things, func(op plan.Op) bool { return op.Link() == l.name })
	s.routes = slices.DeleteFunc(s.routes, func(r route) bool { return r.Link == l.name })
	s.links[slices.Index(s.links, l)] = nil
}

// setUp brings a link up or down. Down removes all routes and the link-local
// addresses. It also removes the other IPv6 addresses, unless keep_addr_on_down
// is set.
func (s *Space) setUp(l *iface, up bool) error {
	if l.up == up {
		return nil
	}
	if up && l.parent != nil && s.macInUse(l) {
		return errMACInUse
	}
	l.up = up
	if up {
		for _, p := range l.addrs {
			s.connect(l, p)
		}
		return nil
	}
	s.routes = slices.DeleteFunc(s.routes, func(r route) bool { return r.Link == l.name })
	keep := l.sysctls["net/ipv6/conf/"+string(l.name)+"/keep_addr_on_down"] == "1"
	l.addrs = slices.DeleteFunc(l.addrs, func(p netip.Prefix) bool {
		return p.Addr().Is6() && (!keep || p.Addr().IsLinkLocalUnicast())
	})
	return nil
}

// macInUse says whether another child of the same parent is up with l's MAC.
func (s *Space) macInUse(l *iface) bool {
	same := func(o *iface) bool { return o != l && o.up && o.mac == l.mac }
	return l.kind == "macvlan" && slices.ContainsFunc(s.f.children(l.parent), same)
}

// connect adds the route that the kernel makes for an address on a link that is
// up.
func (s *Space) connect(l *iface, p netip.Prefix) {
	if !l.up || p.IsSingleIP() {
		return
	}
	r := route{plan.Route{Link: l.name, Table: plan.MainTable, Dst: p.Masked(), Scope: plan.ScopeLink, Src: p.Addr()}, protoKernel}
	if p.Addr().Is6() {
		r.Scope, r.Src, r.Metric = plan.ScopeGlobal, netip.Addr{}, 256
	}
	if !slices.Contains(s.routes, r) {
		s.routes = append(s.routes, r)
	}
}

func (s *Space) addAddress(l *iface, p netip.Prefix) {
	l.addrs = append(l.addrs, p)
	s.connect(l, p)
}

// removeAddress removes an address and the routes that depend on it.
func (s *Space) removeAddress(l *iface, p netip.Prefix) {
	l.addrs = slices.DeleteFunc(l.addrs, func(a netip.Prefix) bool { return a == p })
	s.routes = slices.DeleteFunc(s.routes, func(r route) bool {
		connected := r.proto == protoKernel && r.Link == l.name && r.Dst == p.Masked()
		return connected && (p.Addr().Is6() || r.Src == p.Addr()) || p.Addr().Is4() && r.Src == p.Addr()
	})
	for i := range s.routes { // rt6_remove_prefsrc
		if s.routes[i].Src == p.Addr() {
			s.routes[i].Src = netip.Addr{}
		}
	}
}

// reaches says whether the gateway of a route is on its link, according to a
// route in the same table or in main.
func (s *Space) reaches(r plan.Route) bool {
	return r.Via.IsLinkLocalUnicast() || slices.ContainsFunc(s.routes, func(o route) bool {
		return (o.Table == plan.MainTable || o.Table == r.Table) && o.Link == r.Link && !o.Via.IsValid() && o.Dst.Contains(r.Via)
	})
}

// assigned says whether an address is on any link.
func (s *Space) assigned(a netip.Addr) bool {
	return slices.ContainsFunc(s.links, func(l *iface) bool {
		return l != nil && slices.ContainsFunc(l.addrs, func(p netip.Prefix) bool { return p.Addr() == a })
	})
}

// rival returns the route with the same table, destination and metric, if there
// is one.
func (s *Space) rival(r plan.Route) *route {
	for i, o := range s.routes {
		if o.Table == r.Table && o.Dst == r.Dst && metric(o.Route) == metric(r) {
			return &s.routes[i]
		}
	}
	return nil
}

// metric returns the metric that the kernel uses for a route.
func metric(r plan.Route) uint32 {
	if r.Metric == 0 && r.Dst.Addr().Is6() {
		return 1024
	}
	return r.Metric
}

// String returns the words with which ip(8) would make the namespace: links,
// their settings and addresses, routes and rules. It leaves out what every
// namespace has.
func (s *Space) String() string {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	return s.text()
}

func (s *Space) text() string {
	var b strings.Builder
	for _, l := range s.links {
		if l != nil && l.kind != "loopback" {
			l.print(&b)
		}
	}
	var routes, rules []string
	for _, r := range s.routes {
		routes = append(routes, "route "+r.String()+"\n")
	}
	for _, r := range s.rules {
		rules = append(rules, "rule "+r.String()+"\n")
	}
	slices.Sort(routes)
	slices.Sort(rules)
	for _, op := range s.things {
		fmt.Fprintln(&b, strings.Join(op.Commands(s.name), "; "))
	}
	return b.String() + strings.Join(routes, "") + strings.Join(rules, "")
}

func (l *iface) print(b *strings.Builder) {
	fmt.Fprintf(b, "link %s", l.name)
	if l.vlan != 0 {
		fmt.Fprintf(b, " link %s type vlan id %d", l.parent.name, l.vlan)
	} else if l.parent != nil {
		fmt.Fprintf(b, " link %s type %s mode %s", l.parent.name, l.kind, l.mode)
	} else if l.kind != "ether" {
		fmt.Fprintf(b, " type %s", l.kind)
	}
	fmt.Fprintf(b, " address %s mtu %d", l.mac, l.mtu)
	if l.group != 0 {
		fmt.Fprintf(b, " group %d", l.group)
	}
	if l.up {
		b.WriteString(" up")
	}
	if l.alias != "" {
		fmt.Fprintf(b, " alias %s", l.alias)
	}
	b.WriteString("\n")
	for _, key := range slices.Sorted(maps.Keys(l.sysctls)) {
		fmt.Fprintf(b, "sysctl %s=%s\n", key, l.sysctls[key])
	}
	for _, p := range l.addrs {
		fmt.Fprintf(b, "addr %s dev %s\n", p, l.name)
	}
}

// String returns the words after ip route add.
func (r route) String() string {
	words := strings.Fields(plan.OnHost(r.Route).Commands("")[0])
	// "ip route add ...", with our protocol number
	text := strings.Join(words[3:], " ")
	return strings.Replace(text, fmt.Sprintf(" proto %d", plan.Protocol), fmt.Sprintf(" proto %d", r.proto), 1)
}

// String returns the words after ip rule add.
func (r rule) String() string {
	text := plan.OnHost(r.Rule).Commands("")[0]
	text = text[strings.Index(text, "from "):]
	return strings.Replace(text, fmt.Sprintf(" protocol %d", plan.Protocol), fmt.Sprintf(" protocol %d", r.proto), 1)
}
