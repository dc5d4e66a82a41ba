// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/kernel/parent"
	"github.com/roce-cni/roce-cni/pkg/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plan"
	"github.com/roce-cni/roce-cni/pkg/rdma/nldev"
)

// Facts reads what the plan needs to know, but for the node's identity, and
// changes nothing. It fails for what would fail later, when an address has
// been spent: see parent.Select.
//
// With a parent given by name it is five requests: the parent and the
// addresses of the host, the links, routes and rules of the pod; one more if
// the parent is a VLAN or a bond.
func (k *Kernel) Facts(ctx context.Context, req conf.Request) (facts []plan.Facts, faults []error, err error) {
	for _, one := range req.Each() {
		f, err := k.railFacts(ctx, one)
		facts, faults = append(facts, f), append(faults, err)
	}
	return facts, faults, nil
}

func (k *Kernel) railFacts(ctx context.Context, req conf.Request) (plan.Facts, error) {
	if req.Prev != nil {
		return k.adoptFacts(ctx, req)
	}
	const action = "read facts of"
	addrs, err := k.host.Addresses(ctx, 0)
	if err != nil {
		return plan.Facts{}, classify(action, "host", err)
	}
	c, local := k.host, addrs
	if req.LinkInContainer {
		c = k.pod
		if local, err = c.Addresses(ctx, 0); err != nil {
			return plan.Facts{}, classify(action, k.path, err)
		}
		addrs = append(addrs, local...) // the parent's must not be leased either
	}
	l, err := parent.Select(ctx, c, local, req, k.system(req.LinkInContainer), k.sys)
	if err != nil {
		return plan.Facts{}, classify(action, "master", err)
	}
	layers, err := layersFor(ctx, c, l, req)
	if err != nil {
		return plan.Facts{}, classify(action, l.Name, err)
	}
	pod, err := k.podFacts(ctx, req.IfName)
	if err != nil {
		return plan.Facts{}, classify(action, k.path, err)
	}
	return plan.Facts{
		Parent:    plan.Link{Name: conf.LinkName(l.Name), MAC: ethernet(l), MTU: l.MTU, Layers: layers},
		HostAddrs: unique(addrs),
		Pod:       pod,
	}, nil
}

// layersFor returns what the parent stands on, which only RDMA work needs.
func layersFor(ctx context.Context, c *rtnl.Conn, l rtnl.Link, req conf.Request) ([][]int32, error) {
	if req.RDMA.Mode == conf.RDMAOff {
		return nil, nil
	}
	return parent.Layers(ctx, c, l)
}

// system returns how to ask for the RDMA devices that the namespace of the
// parent sees.
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

func (k *Kernel) podFacts(ctx context.Context, ifName conf.LinkName) (plan.PodFacts, error) {
	links, err := k.pod.Links(ctx)
	if err != nil {
		return plan.PodFacts{}, err
	}
	routes, err := k.pod.Routes(ctx)
	if err != nil {
		return plan.PodFacts{}, err
	}
	rules, err := k.pod.Rules(ctx, unix.AF_UNSPEC)
	if err != nil {
		return plan.PodFacts{}, err
	}
	return plan.PodFacts{
		Netns:    k.id,
		IPv6:     hasIPv6(),
		Taken:    slices.ContainsFunc(links, func(l rtnl.Link) bool { return l.Has(string(ifName)) }),
		Tables:   tables(routes, rules),
		Rules:    foreignRules(rules),
		Defaults: defaults(routes, links),
	}, nil
}

// tables returns the numbers that are in use, without those that every
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
		if r.Narrow || r.Action == unix.FR_ACT_NOP || kernelsOwn(r) {
			continue
		}
		from := r.From.Masked()
		if r.Inverted { // all but from, so it may be anybody
			from = netip.PrefixFrom(from.Addr(), 0).Masked()
		}
		out = append(out, plan.ForeignRule{From: from, Table: r.Table, Priority: r.Priority, Protocol: r.Protocol})
	}
	return out
}

// kernelsOwn says whether a rule is one that the kernel makes (fib_default_rules_init).
// The one for the local table may be moved, and still catches nothing that
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
