// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

const firstTable = 100

// routing returns the routes and the rules of the attachment. The routes must
// come first: a rule without the routes of its table would cut the address off.
func (m maker) routing() (routes []Route, rules []Rule, err error) {
	switch m.rail.Routing.Mode {
	case conf.RoutingNone:
		return nil, nil, nil
	case conf.RoutingMain:
		routes, err = m.leaseRoutes(func(int) uint32 { return MainTable })
	default:
		routes, rules, err = m.policy()
	}
	if err != nil {
		return nil, nil, err
	}
	if m.rail.Routing.DefaultRoute {
		if err := m.checkGateways(); err != nil {
			return nil, nil, err
		}
		routes = append(routes, m.mainDefaults(routes)...)
	}
	return routes, rules, m.checkDefaults(routes)
}

// policy returns a table and two rules for each address. A packet from the
// address looks in the table. A table loses its routes when the interface goes
// down. The second rule then makes the packet fail loudly, so that it does not
// leave by the main table.
func (m maker) policy() (routes []Route, rules []Rule, err error) {
	tables, err := m.tables()
	if err != nil {
		return nil, nil, err
	}
	asked, err := m.leaseRoutes(func(i int) uint32 { return tables[i] })
	if err != nil {
		return nil, nil, err
	}
	for i, a := range m.lease.Addresses {
		addr := a.Prefix.Addr()
		if err := m.checkRules(addr); err != nil {
			return nil, nil, err
		}
		own := []Route{{Link: m.rail.IfName, Table: tables[i], Dst: a.Prefix.Masked(), Src: addr, Scope: onLinkScope(addr)}}
		if a.Gateway.IsValid() {
			own = append(own, m.defaultVia(a, tables[i], 0))
		}
		routes = append(routes, slices.DeleteFunc(own, func(r Route) bool { // IPAM's replace ours
			return slices.ContainsFunc(asked, func(o Route) bool { return o.Table == r.Table && o.Dst == r.Dst })
		})...)
		from := netip.PrefixFrom(addr, addr.BitLen())
		rules = append(rules,
			Rule{From: from, Table: tables[i], Priority: m.rail.Routing.Priority},
			Rule{From: from, Priority: m.rail.Routing.Priority + 1})
	}
	return append(routes, asked...), rules, nil
}

// tables returns the table of each address: one number for the first address of
// each family, the next number for the second one of each family, and so on.
func (m maker) tables() ([]uint32, error) {
	var numbers []uint32   // by how many addresses of its family are before it
	seen := map[bool]int{} // by whether they are IPv4
	out := make([]uint32, 0, len(m.lease.Addresses))
	for _, a := range m.lease.Addresses {
		n := seen[a.Prefix.Addr().Is4()]
		if n == len(numbers) {
			t, err := m.nextTable(numbers)
			if err != nil {
				return nil, err
			}
			numbers = append(numbers, t)
		}
		out = append(out, numbers[n])
		seen[a.Prefix.Addr().Is4()]++
	}
	return out, nil
}

// nextTable returns the table number after the tables of this plan.
func (m maker) nextTable(mine []uint32) (uint32, error) {
	t := uint32(firstTable)
	if m.rail.Routing.Table != 0 {
		t = m.rail.Routing.Table
	}
	if len(mine) > 0 {
		t = mine[len(mine)-1] + 1
	}
	for reserved(t) || slices.Contains(m.facts.Pod.Tables, t) || (m.rail.Routing.Table == 0 && m.named(t)) {
		if m.rail.Routing.Table != 0 {
			return 0, cnierr.New(cnierr.RouteTaken, "use routing table", fmt.Sprint(t),
				"set routing.table to 0 for the lowest free number, or to a number that ip rule and ip route show table all in the pod do not list",
				"a route or rule of another program in the pod uses it")
		}
		t++
	}
	return t, nil
}

// reserved says whether a table number has a meaning to the kernel
// (RT_TABLE_COMPAT 252, default 253, main 254, local 255).
func reserved(t uint32) bool { return t >= 252 && t <= 255 }

// named says whether a route of IPAM, or the configuration of a later rail,
// names a table.
func (m maker) named(table uint32) bool {
	later := func(r Rail) bool { // for a table below its first table the difference is huge, modulo 2^32
		return r.Routing.Table != 0 && table-r.Routing.Table < uint32(len(r.Lease.Addresses))
	}
	return slices.ContainsFunc(m.behind, later) || slices.ContainsFunc(m.lease.Routes, func(r pool.Route) bool { return r.Table != nil && uint32(*r.Table) == table })
}

// checkRules refuses an address for which a foreign rule wins over ours: the
// packets would leave by a route that is not in the plan.
func (m maker) checkRules(addr netip.Addr) error {
	for _, r := range m.facts.Pod.Rules {
		if r.Priority > m.rail.Routing.Priority || !r.From.Contains(addr) {
			continue
		}
		return cnierr.New(cnierr.RouteTaken, "route packets from", addr.String(),
			fmt.Sprintf("remove the rule from the pod, or set routing.priority below %d", r.Priority),
			"the rule \"from %s lookup %d priority %d\" of another program has precedence over ours", r.From, r.Table, r.Priority)
	}
	return nil
}

// mainDefaults returns the default routes of routing.defaultRoute: one for each
// family that has a gateway. It leaves out those that the other routes contain
// already, or that the plugin of an adopted link has made.
func (m maker) mainDefaults(others []Route) []Route {
	var out []Route
	for _, a := range m.lease.Addresses {
		r := m.defaultVia(a, MainTable, m.rail.Routing.Metric)
		same := func(o Route) bool { return o.Table == r.Table && o.Dst == r.Dst && o.Metric == r.Metric }
		if a.Gateway.IsValid() && !m.stands(r) && !slices.ContainsFunc(others, same) && !slices.ContainsFunc(out, same) {
			out = append(out, r)
		}
	}
	return out
}

func (m maker) stands(r Route) bool {
	is := func(d DefaultRoute) bool {
		return d.Link == r.Link && d.Via == r.Via && d.IPv6 == r.Dst.Addr().Is6() && metricOf(d.Metric, d.IPv6) == metricOf(r.Metric, d.IPv6)
	}
	return m.facts.Adopted != nil && slices.ContainsFunc(m.facts.Pod.Defaults, is)
}

func (m maker) defaultVia(a LeasedAddress, table, metric uint32) Route {
	return Route{
		Link: m.rail.IfName, Table: table, Dst: defaultDst(a.Prefix.Addr()),
		Via: a.Gateway, Src: a.Prefix.Addr(), Metric: metric, OnLink: m.beyond(a.Gateway),
	}
}

func (m maker) checkGateways() error {
	has := func(a LeasedAddress) bool { return a.Gateway.IsValid() }
	if len(m.lease.Addresses) == 0 || slices.ContainsFunc(m.lease.Addresses, has) {
		return nil
	}
	return cnierr.New(cnierr.BadConfig, "add default route through", string(m.rail.IfName),
		"set the gateway in ipam, or remove routing.defaultRoute", "no address has a gateway")
}

// checkDefaults refuses a default route if the pod has a foreign one with the
// same metric: only the metric distinguishes default routes.
func (m maker) checkDefaults(routes []Route) error {
	for _, r := range routes {
		if r.Table != MainTable || r.Dst.Bits() != 0 {
			continue
		}
		for _, d := range m.facts.Pod.Defaults {
			if d.IPv6 != r.Dst.Addr().Is6() || metricOf(d.Metric, d.IPv6) != metricOf(r.Metric, d.IPv6) {
				continue
			}
			hint := "set routing.metric, or the priority of IPAM's route, to another number, or remove routing.defaultRoute"
			if m.req.Linked(m.rail) {
				hint = "remove hostLink: it is for the first network of a pod, and another plugin has made that one"
			}
			return cnierr.New(cnierr.RouteTaken, "add default route through", string(r.Link), hint,
				"the pod has one via %s on %q with the same metric", d.Via, d.Link)
		}
	}
	return nil
}

// metricOf returns the metric that the kernel uses. An IPv6 route without
// metric gets 1024 (IP6_RT_PRIO_USER).
func metricOf(metric uint32, ipv6 bool) uint32 {
	if metric == 0 && ipv6 {
		return 1024
	}
	return metric
}

func onLinkScope(a netip.Addr) Scope {
	if a.Is4() {
		return ScopeLink
	}
	return ScopeGlobal
}

func defaultDst(family netip.Addr) netip.Prefix {
	if family.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// Scope is the scope of an IPv4 route, with the numbers of rtnetlink.
type Scope uint8

// The scopes that a route can have; IPv6 routes are always global.
const (
	ScopeGlobal Scope = 0
	ScopeLink   Scope = 253
)

// MainTable is the number of the main routing table (RT_TABLE_MAIN).
const MainTable = 254

// Route adds a unicast route through a link, with protocol number Protocol. An
// existing route with the same destination, table and metric that is not
// exactly this one is an error. It is never replaced.
type Route struct {
	Link   conf.LinkName `json:"link"`
	Table  uint32        `json:"table"`
	Dst    netip.Prefix  `json:"dst"`          // masked; 0.0.0.0/0 or ::/0 for default
	Via    netip.Addr    `json:"via,omitzero"` // zero: on the link
	Src    netip.Addr    `json:"src,omitzero"` // preferred source; zero: the kernel's choice
	Scope  Scope         `json:"scope,omitempty"`
	Metric uint32        `json:"metric,omitempty"` // 0: the kernel's default (IPv6: 1024)
	MTU    int           `json:"mtu,omitempty"`
	AdvMSS int           `json:"advmss,omitempty"`
	OnLink bool          `json:"onlink,omitempty"` // Via is on the link, but in none of its subnets
}

func (r Route) commands(in namespaces) []string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s route add %s", in.ip(), dstName(r.Dst))
	if r.Via.IsValid() {
		fmt.Fprintf(&b, " via %s", r.Via)
	}
	b.WriteString(shell.Command(" dev %s table %d proto %d", r.Link, r.Table, Protocol))
	if r.Dst.Addr().Is4() {
		fmt.Fprintf(&b, " scope %s", r.Scope)
	}
	if r.Src.IsValid() {
		fmt.Fprintf(&b, " src %s", r.Src)
	}
	for _, o := range []struct {
		name  string
		value int
	}{{"metric", int(r.Metric)}, {"mtu", r.MTU}, {"advmss", r.AdvMSS}} {
		if o.value != 0 {
			fmt.Fprintf(&b, " %s %d", o.name, o.value)
		}
	}
	if r.OnLink {
		b.WriteString(" onlink")
	}
	return []string{b.String()}
}

// String returns the scope as ip-route(8) takes it.
func (s Scope) String() string {
	switch s {
	case ScopeGlobal:
		return "global"
	case ScopeLink:
		return "link"
	}
	return fmt.Sprint(uint8(s))
}

// dstName returns a destination as ip-route(8) takes it. Both families have a
// "default", so it writes the IPv6 one as ::/0.
func dstName(p netip.Prefix) string {
	if p.Bits() == 0 && p.Addr().Is4() {
		return "default"
	}
	return p.String()
}

// Rule sends packets from an address to a table. When Table is 0, it makes them
// fail with "unreachable" (FR_ACT_UNREACHABLE). It carries protocol number
// Protocol. An existing rule counts as done only if it is exactly this one,
// protocol included. The kernel refuses a second equal rule only with
// NLM_F_EXCL (fib_newrule).
type Rule struct {
	From     netip.Prefix `json:"from"` // a /32 or /128
	Table    uint32       `json:"table,omitempty"`
	Priority uint32       `json:"priority"`
}

func (r Rule) commands(in namespaces) []string {
	family := ""
	if r.From.Addr().Is6() {
		family = " -6"
	}
	return []string{fmt.Sprintf("%s%s rule add from %s %s priority %d protocol %d",
		in.ip(), family, r.From, r.action(), r.Priority, Protocol)}
}

func (r Rule) action() string {
	if r.Table == 0 {
		return "unreachable"
	}
	return fmt.Sprintf("lookup %d", r.Table)
}

// leaseRoutes returns the routes that IPAM asks for, without those of a family without
// address and those that another plugin has made. Each goes into the table that it names,
// or else into the table of its address.
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
func (m maker) theirs(r pool.Route, table uint32) bool {
	return m.facts.Adopted != nil && (r.Table != nil || table == MainTable || m.checkVia(r) != nil)
}

// owner returns the index of the address that a route belongs to, -1 if its family has no
// address: the first that fits the route's gateway or destination, else the first of all.
func (m maker) owner(r pool.Route) int {
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
func (m maker) leaseRoute(r pool.Route, a LeasedAddress, table uint32) Route {
	op := Route{
		Link: m.rail.IfName, Table: table, Dst: r.Dst, Via: r.Via,
		Metric: uint32(r.Priority), MTU: min(r.MTU, pool.MaxRouteMTU), AdvMSS: min(r.AdvMSS, pool.MaxAdvMSS),
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
func onLink(r pool.Route) bool { return r.Scope != nil && Scope(*r.Scope) >= ScopeLink }

// connected says whether a route is the one that the kernel makes in main for
// an IPv4 address.
func (m maker) connected(r Route) bool {
	return r == Route{Link: r.Link, Table: MainTable, Dst: r.Dst, Scope: ScopeLink} && !r.Dst.IsSingleIP() &&
		slices.ContainsFunc(m.lease.Addresses, func(a LeasedAddress) bool { return a.Prefix.Masked() == r.Dst })
}

// beyond says whether a gateway is in no subnet of the addresses, as in some clouds. The
// kernel must then be told that it is on the link. IPv6 link-local gateways always are.
func (m maker) beyond(via netip.Addr) bool {
	if !via.IsValid() || (via.Is6() && via.IsLinkLocalUnicast()) {
		return false
	}
	return !slices.ContainsFunc(m.lease.Addresses, func(a LeasedAddress) bool { return a.Prefix.Masked().Contains(via) })
}

// checkVia refuses a gateway that cannot be reached. It does not look at the
// gateways of the addresses: the Gateway operation asks those.
func (m maker) checkVia(r pool.Route) error {
	if !m.beyond(r.Via) ||
		slices.ContainsFunc(m.lease.Addresses, func(a LeasedAddress) bool { return a.Gateway == r.Via }) ||
		slices.ContainsFunc(m.lease.Routes, func(o pool.Route) bool { return onLink(o) && o.Dst.Contains(r.Via) }) {
		return nil
	}
	return cnierr.New(cnierr.BadConfig, "add route to", r.Dst.String(),
		"correct the gateway of the route, or add a route with scope 253 (link) to the gateway",
		"its gateway %s is neither in a subnet of the pod's addresses nor the gateway of one", r.Via)
}
