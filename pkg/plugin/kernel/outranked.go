// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// ErrOutranked is in the finding of Check about a rule that exists when the packets that
// it is for take another route, because of a rule or a route of another program. Doing
// plan.Rule again would not help.
var ErrOutranked = errors.New("another program wins over it")

// outranked reports that a packet from our address leaves by another link than our table
// says. The reason is a route of another program in our table, or a rule that the kernel
// looks at first. A rule with a table that leads the same way, or nowhere, does no harm.
func (p rule) outranked(ctx context.Context, there found) error {
	const action = "check rule"
	if p.op.Table == 0 {
		return nil
	}
	from := p.op.From.Addr()
	in, err := p.conn.RoutesOf(ctx, rtnl.Family(from), p.op.Table)
	if err != nil {
		return classify(action, p.subject(), err)
	}
	if i := slices.IndexFunc(in, func(r rtnl.Route) bool { return intrudes(r, in) }); i >= 0 {
		return damaged(action, p.subject(), []string{p.deleteRoute(ctx, in[i])}, "%w with a route in the table: %s", ErrOutranked, p.describe(ctx, in[i]))
	}
	if len(there.before) == 0 {
		return nil
	}
	for _, r := range in {
		if r.Type != unix.RTN_UNICAST {
			continue
		}
		to := someHost(r)
		is, err := p.conn.RouteTo(ctx, from, to)
		if err == nil && is.Index == r.Index {
			continue
		}
		wins := winner(there.before, func(b rtnl.Rule) bool {
			return err != nil && nowhere(b.Action) != "" || err == nil && b.Table == is.Table
		})
		return cnierr.New(cnierr.Damaged, action, p.subject(), p.deletion(wins, there.all),
			"%w: %q, so packets to %s take another route", ErrOutranked, text(wins), to)
	}
	return nil
}

// winner returns the rule that caught a packet. The kernel tells its table, which leads
// knows, and not the rule. One that looks at more than the source may not have caught it,
// so others come first.
func winner(before []rtnl.Rule, leads func(rtnl.Rule) bool) rtnl.Rule {
	whole := func(r rtnl.Rule) bool { return leads(r) && !r.Narrow }
	for _, fits := range []func(rtnl.Rule) bool{whole, leads} {
		if i := slices.IndexFunc(before, fits); i >= 0 {
			return before[i]
		}
	}
	return before[0]
}

// intrudes says whether a route in our table is that of another program and leads packets
// elsewhere: through a link that no route of ours has, or nowhere. One of ours with the
// same destination and a lower metric comes before it, unless it has a TOS.
func intrudes(r rtnl.Route, table []rtnl.Route) bool {
	return r.Protocol != plan.Protocol && !slices.ContainsFunc(table, func(ours rtnl.Route) bool {
		return ours.Protocol == plan.Protocol &&
			(ours.Index == r.Index && r.Type == unix.RTN_UNICAST || ours.Dst == r.Dst && r.TOS == 0 && ours.Metric < r.Metric)
	})
}

// deletion says how to delete a rule of another program. all are the rules of its family.
// The kernel deletes the first rule that agrees with what the command names (rule_find).
func (p rule) deletion(r rtnl.Rule, all []rtnl.Rule) string {
	ip := p.ip("rule")
	if r.From.Addr().Is6() {
		ip = p.ip("-6 rule")
	}
	names := func(is rtnl.Rule) bool {
		return is.Priority == r.Priority && is.Action == r.Action && is.Table == r.Table &&
			(r.From.Bits() == 0 || is.From == r.From) && (r.Protocol == 0 || is.Protocol == r.Protocol)
	}
	if first := slices.IndexFunc(all, names); slices.IndexFunc(all[first+1:], names) >= 0 {
		return fmt.Sprintf("%s show priority %d shows similar rules: delete this one with all that its line says", ip, r.Priority)
	}
	protocol := ""
	if r.Protocol != 0 {
		protocol = fmt.Sprint(" protocol ", r.Protocol)
	}
	return "restore it: " + ip + " del " + text(r) + protocol
}

// text returns a rule in the words of ip rule.
func text(r rtnl.Rule) string {
	action := nowhere(r.Action)
	if action == "" {
		action = fmt.Sprint("lookup ", r.Table)
	}
	not := ""
	if r.Inverted {
		not = "not "
	}
	return fmt.Sprintf("%sfrom %s %s priority %d", not, r.From, action, r.Priority)
}

// someHost returns a host that a route leads to.
func someHost(r rtnl.Route) netip.Addr {
	switch {
	case r.Dst.Bits() > 0 && !r.Dst.IsSingleIP():
		return r.Dst.Masked().Addr().Next()
	case r.Dst.IsSingleIP():
		return r.Dst.Addr()
	case r.Dst.Addr().Is4():
		return netip.AddrFrom4([4]byte{203, 0, 113, 1}) // TEST-NET-3 (RFC 5737)
	}
	return netip.AddrFrom16([16]byte{0: 0x20, 1: 0x01, 2: 0x0d, 3: 0xb8, 15: 1}) // RFC 3849
}
