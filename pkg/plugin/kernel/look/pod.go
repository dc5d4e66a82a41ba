// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package look

import (
	"context"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// Pod is what is in a pod's namespace.
type Pod struct {
	links []rtnl.Link
	facts plan.PodFacts // the facts that do not depend on the interface
}

// AtPod reads the links, routes and rules of a namespace, with one dump each.
// Its errors are those of c.
func AtPod(ctx context.Context, c *rtnl.Conn) (Pod, error) {
	links, err := c.Links(ctx)
	if err != nil {
		return Pod{}, err
	}
	routes, err := c.Routes(ctx)
	if err != nil {
		return Pod{}, err
	}
	rules, err := c.Rules(ctx, unix.AF_UNSPEC)
	if err != nil {
		return Pod{}, err
	}
	return Pod{links, plan.PodFacts{Tables: tables(routes, rules), Rules: foreignRules(rules), Defaults: defaults(routes, links)}}, nil
}

// For returns what a plan for an interface of that name needs to know of the
// pod, except Netns and IPv6. The facts of all names share their slices.
func (p Pod) For(name conf.LinkName) plan.PodFacts {
	f := p.facts
	f.Taken = slices.ContainsFunc(p.links, func(l rtnl.Link) bool { return l.Has(string(name)) })
	return f
}

// tables returns the table numbers that are in use, without those that every
// namespace has.
func tables(routes []rtnl.Route, rules []rtnl.Rule) []uint32 {
	var out []uint32
	add := func(t uint32) {
		if t != 0 && (t < unix.RT_TABLE_DEFAULT || t > unix.RT_TABLE_LOCAL) {
			out = append(out, t)
		}
	}
	for _, r := range routes {
		add(r.Table)
	}
	for _, r := range rules {
		add(r.Table)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// foreignRules returns the rules that can catch a packet by its source alone.
func foreignRules(rules []rtnl.Rule) []plan.ForeignRule {
	var out []plan.ForeignRule
	for _, r := range rules {
		if !bySource(r) {
			continue
		}
		out = append(out, plan.ForeignRule{From: sources(r), Table: r.Table, Priority: r.Priority, Protocol: r.Protocol})
	}
	return out
}

// bySource says whether a rule, other than the kernel's own, can catch a packet by its
// source alone.
func bySource(r rtnl.Rule) bool {
	return !r.Narrow && acts(r)
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

// MayCatch says whether a rule, other than the kernel's own, can catch a packet of this
// source. What else the rule looks at may exclude all such packets.
func MayCatch(r rtnl.Rule, from netip.Addr) bool { return acts(r) && sources(r).Contains(from) }

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

// defaults returns the default routes of the main table.
func defaults(routes []rtnl.Route, links []rtnl.Link) []plan.DefaultRoute {
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
