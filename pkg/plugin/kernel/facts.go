// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/parent"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// Facts reads what the plan needs to know of each of the request's rails, except the
// node's identity. It changes nothing. It finds problems now that would otherwise fail
// later, after an address was leased. The fault of a rail says why its parent cannot
// serve. err is an error that concerns all rails; see parent.Select. The facts share
// their slices: do not write to them.
//
// With parents given by name it takes five round trips, for any number of rails: the
// parents and the addresses of the host, and the links, routes and rules of the pod. It
// takes one more if a parent is selected, or is a VLAN or a bond.
func (k *Kernel) Facts(ctx context.Context, req conf.Request) ([]plan.RailFacts, error) {
	if req.Prev != nil {
		f, err := k.adoptFacts(ctx, req)
		return []plan.RailFacts{{Facts: f, Fault: err}}, nil
	}
	const action = "read facts of"
	addrs, err := k.host.Addresses(ctx, 0)
	if err != nil {
		return nil, classify(action, "host", err)
	}
	place := parent.Place{Namespace: k.host, Addrs: addrs, Ask: k.system(req.LinkInContainer), Sys: k.sys}
	if req.LinkInContainer {
		place.Namespace = inPod{k.pod, k.host}
		if place.Addrs, err = k.pod.Addresses(ctx, 0); err != nil {
			return nil, classify(action, k.path, err)
		}
		addrs = append(addrs, place.Addrs...) // the parents' must not be leased either
	}
	rails, err := onParents(ctx, place, req, addrs)
	if err != nil {
		return nil, err
	}
	if req.Mode == conf.L2 && !req.LinkInContainer {
		k.keepModes(ctx, rails)
	}
	in, err := k.viewPod(ctx)
	if err != nil {
		return nil, classify(action, k.path, err)
	}
	for i, one := range req.Rails {
		rails[i].Pod = in.of(one.IfName)
	}
	return rails, nil
}

// inPod is the pod's namespace. The physical functions of its NICs are in the host's.
type inPod struct {
	*rtnl.Conn
	host *rtnl.Conn
}

// VFs implements parent.Namespace.
func (n inPod) VFs(ctx context.Context, pf string) ([]rtnl.VF, error) { return n.host.VFs(ctx, pf) }

// onParents returns the facts of each rail except those of the pod. addrs are
// the addresses that must not be leased.
func onParents(ctx context.Context, place parent.Place, req conf.Request, addrs []rtnl.Address) ([]plan.RailFacts, error) {
	links, faults, err := parent.Select(ctx, place, req)
	if err != nil {
		return nil, classify("read facts of", "master", err)
	}
	taken := unique(addrs)
	var rails []plan.RailFacts
	for i, l := range links {
		rails = append(rails, plan.RailFacts{Facts: plan.Facts{Parent: l, HostAddrs: taken}, Fault: faults[i]})
	}
	return rails, nil
}

// system returns the function that asks for the RDMA devices that are visible
// in the namespace of the parent.
func (k *Kernel) system(inPod bool) parent.System {
	return func(ctx context.Context) (s nldev.System, err error) {
		if !inPod {
			return rdmaSystem(ctx)
		}
		err = k.Enter(func() error {
			s, err = rdmaSystem(ctx)
			return err
		})
		return s, err
	}
}

// rdmaSystem asks in the namespace of the calling thread.
func rdmaSystem(ctx context.Context) (nldev.System, error) {
	c, err := nldev.Dial()
	if err != nil {
		return nldev.System{}, err
	}
	defer c.Close()
	return c.System(ctx)
}

// unique returns the addresses, each once, sorted.
func unique(as []rtnl.Address) []netip.Addr {
	var out []netip.Addr
	for _, a := range as {
		out = append(out, a.Prefix.Addr())
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// HostFacts returns what Facts would return for a pod with a new, empty
// namespace. It looks only at the namespace of the calling thread and needs no
// privileges. It takes a parent inside the pod as the configuration names it.
// Errors are those of Facts.
func HostFacts(ctx context.Context, req conf.Request, sys fs.FS) ([]plan.RailFacts, error) {
	if req.Prev != nil {
		return []plan.RailFacts{{Facts: adoptedHost(req)}}, nil
	}
	host, err := rtnl.Dial()
	if err != nil {
		return nil, classify("open socket of", "host", err)
	}
	defer host.Close()
	addrs, err := host.Addresses(ctx, 0)
	if err != nil {
		return nil, classify("read addresses of", "host", err)
	}
	var rails []plan.RailFacts
	if req.LinkInContainer {
		rails = unseen(req, addrs)
	} else if rails, err = onParents(ctx, parent.Place{Namespace: host, Addrs: addrs, Ask: rdmaSystem, Sys: sys}, req, addrs); err != nil {
		return nil, err
	}
	for i := range rails {
		rails[i].Pod.IPv6 = hasIPv6()
	}
	return rails, nil
}

// unseen returns the facts of rails with parents inside a pod.
func unseen(req conf.Request, addrs []rtnl.Address) (rails []plan.RailFacts) {
	taken := unique(addrs)
	for _, one := range req.Rails {
		var fault error
		if one.Parent.Name == "" {
			fault = cnierr.New(cnierr.BadParent, "select master", "linkInContainer",
				"name the interface in master", "only a look into the pod's namespace can find this interface")
		}
		l := plan.Link{Name: one.Parent.Name, MTU: max(req.MTU, 1500)}
		rails = append(rails, plan.RailFacts{Facts: plan.Facts{Parent: l, HostAddrs: taken}, Fault: fault})
	}
	return rails
}

// HostAddrs returns all addresses of the namespace of the calling thread, each
// once, sorted.
func HostAddrs(ctx context.Context) ([]netip.Addr, error) {
	host, err := rtnl.Dial()
	if err != nil {
		return nil, classify("open socket of", "host", err)
	}
	defer host.Close()
	addrs, err := host.Addresses(ctx, 0)
	return unique(addrs), classify("read addresses of", "host", err)
}

// HasAddress says whether an interface in the namespace at a path has an address that
// reaches beyond its link. It returns ErrNetnsGone, too.
func HasAddress(ctx context.Context, path string, name conf.LinkName) (has bool, err error) {
	ns, err := netns.Open(path)
	if err != nil {
		return false, netnsError(path, err)
	}
	defer ns.Close()
	err = ns.Enter(func() error {
		pod, err := rtnl.Dial()
		if err != nil {
			return err
		}
		defer pod.Close()
		l, err := pod.LinkByName(ctx, string(name))
		if err != nil {
			return ignore(err, unix.ENODEV)
		}
		addrs, err := pod.Addresses(ctx, l.Index)
		has = slices.ContainsFunc(addrs, func(a rtnl.Address) bool { return a.Scope == unix.RT_SCOPE_UNIVERSE })
		return err
	})
	return has, classify("read addresses of", string(name), err)
}

// NetnsID returns the identity of the namespace at a path. Like Open, it
// returns ErrNetnsGone.
func NetnsID(path string) (netns.ID, error) {
	ns, err := netns.Open(path)
	if err != nil {
		return netns.ID{}, netnsError(path, err)
	}
	ns.Close()
	return ns.ID, nil
}

// hasIPv6 says whether the kernel has IPv6. Links may have it disabled.
func hasIPv6() bool {
	_, err := os.Stat(procSys + "/net/ipv6")
	return err == nil
}

// podView is what is in a pod's namespace.
type podView struct {
	links []rtnl.Link
	facts plan.PodFacts // the facts that do not depend on the interface
}

// viewPod reads the links, routes and rules of the pod, with one dump each. Its errors are
// those of rtnl.Conn.
func (k *Kernel) viewPod(ctx context.Context) (podView, error) {
	links, err := k.pod.Links(ctx)
	if err != nil {
		return podView{}, err
	}
	routes, err := k.pod.Routes(ctx)
	if err != nil {
		return podView{}, err
	}
	rules, err := k.pod.Rules(ctx, unix.AF_UNSPEC)
	if err != nil {
		return podView{}, err
	}
	return podView{links, plan.PodFacts{
		Netns: k.ID(), IPv6: hasIPv6(), Tables: tablesOf(routes, rules), Rules: foreignRules(rules), Defaults: defaultsOf(routes, links),
	}}, nil
}

// of returns what a plan for an interface of that name needs to know of the
// pod. The facts of all names share their slices.
func (p podView) of(name conf.LinkName) plan.PodFacts {
	f := p.facts
	f.Taken = slices.ContainsFunc(p.links, func(l rtnl.Link) bool { return l.Has(string(name)) })
	return f
}

// tablesOf returns the table numbers that are in use, without those that every
// namespace has.
func tablesOf(routes []rtnl.Route, rules []rtnl.Rule) []uint32 {
	var out []uint32
	for _, r := range routes {
		out = append(out, r.Table)
	}
	for _, r := range rules {
		out = append(out, r.Table)
	}
	out = slices.DeleteFunc(out, func(t uint32) bool { return t == 0 || t >= unix.RT_TABLE_DEFAULT && t <= unix.RT_TABLE_LOCAL })
	slices.Sort(out)
	return slices.Compact(out)
}

// foreignRules returns the rules that can catch a packet by its source alone.
func foreignRules(rules []rtnl.Rule) []plan.ForeignRule {
	var out []plan.ForeignRule
	for _, r := range rules {
		if !r.Narrow && acts(r) {
			out = append(out, plan.ForeignRule{From: sources(r), Table: r.Table, Priority: r.Priority, Protocol: r.Protocol})
		}
	}
	return out
}

// acts says whether a rule, other than the kernel's own, does something.
func acts(r rtnl.Rule) bool { return r.Action != unix.FR_ACT_NOP && !kernelsOwn(r) }

// sources returns the sources that a rule may match.
func sources(r rtnl.Rule) netip.Prefix {
	from := r.From.Masked()
	if r.Inverted { // it matches all sources but From, so any address may match
		from = netip.PrefixFrom(from.Addr(), 0).Masked()
	}
	return from
}

// mayCatch says whether a rule, other than the kernel's own, can catch a packet of this
// source. What else the rule looks at may exclude all such packets.
func mayCatch(r rtnl.Rule, from netip.Addr) bool { return acts(r) && sources(r).Contains(from) }

// kernelsOwn says whether a rule is one that the kernel makes (fib_default_rules_init).
// The rule for the local table may have another priority: it still matches nothing that
// leaves the pod.
func kernelsOwn(r rtnl.Rule) bool {
	if r.From.Bits() != 0 || r.Action != unix.FR_ACT_TO_TBL {
		return false
	}
	return r.Table == unix.RT_TABLE_LOCAL ||
		r.Table == unix.RT_TABLE_MAIN && r.Priority == 32766 ||
		r.Table == unix.RT_TABLE_DEFAULT && r.Priority == 32767
}

// defaultsOf returns the default routes of the main table.
func defaultsOf(routes []rtnl.Route, links []rtnl.Link) []plan.DefaultRoute {
	var out []plan.DefaultRoute
	for _, r := range routes {
		if !r.IsDefault() {
			continue
		}
		d := plan.DefaultRoute{IPv6: r.Dst.Addr().Is6(), Via: r.Via, Metric: r.Metric}
		for _, l := range links {
			if l.Index == r.Index {
				d.Link = conf.LinkName(l.Name)
			}
		}
		out = append(out, d)
	}
	return out
}
