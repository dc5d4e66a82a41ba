// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// rule executes plan.Rule.
type rule struct {
	namespace
	op plan.Rule
}

// rules is a run.
type rules []rule

// do adds the rules. With NLM_F_EXCL the kernel refuses a rule that equals an
// existing one, protocol included (rule_exists).
func (ps rules) do(ctx context.Context) error {
	var changes []rtnl.Change
	for _, p := range ps {
		changes = append(changes, rtnl.AddRule(p.want()))
	}
	for i, err := range ps[0].conn.Each(ctx, changes...) {
		if err := ps[i].added(ctx, err); err != nil {
			return err
		}
	}
	return nil
}

// added interprets what the kernel answers about adding the rule.
func (p rule) added(ctx context.Context, err error) error {
	const action = "add rule"
	if !errors.Is(err, unix.EEXIST) {
		return classify(action, p.subject(), err)
	}
	there, err := p.find(ctx)
	if err != nil {
		return classify(action, p.subject(), err)
	}
	if !there.exact {
		return cnierr.New(cnierr.RouteTaken, action, p.subject(),
			"remove the rule from "+p.place.String()+p.orChoose("routing.priority or routing.table"), "there is another one: %s", there.other)
	}
	return nil
}

// maxDuplicates and ruleTime bound how often, and for how long, undo deletes a rule. do
// makes one rule. Other programs may have made equal ones, and a pod can make any
// number.
const (
	maxDuplicates = 1024
	ruleTime      = 10 * time.Second
)

// undo removes the rules and their twins. The kernel deletes the first rule
// that agrees with the request (rule_find). The request has our protocol
// number, so the rules of others stay. undo deletes each rule twice in one
// message: when the last deletion is refused, no twin is left. Otherwise it
// deletes twice as many in the next message.
func (ps rules) undo(ctx context.Context) error {
	const action = "delete rule"
	limited, cancel := context.WithTimeout(ctx, ruleTime)
	defer cancel()
	var errs []error
	left := slices.Clone(ps)
	slices.Reverse(left)
	for n := 2; n <= maxDuplicates && len(left) > 0 && limited.Err() == nil; n *= 2 {
		var changes []rtnl.Change
		for _, p := range left {
			for range n {
				changes = append(changes, rtnl.DeleteRule(p.want()))
			}
		}
		answers := ps[0].conn.Each(limited, changes...)
		again := rules{}
		for i, p := range left {
			if err := answers[(i+1)*n-1]; err == nil || limited.Err() != nil {
				again = append(again, p)
			} else {
				errs = append(errs, classify(action, p.subject(), ignore(err, unix.ENOENT, unix.EAFNOSUPPORT)))
			}
		}
		left = again
	}
	switch err := errors.Join(errs...); {
	case err != nil || len(left) == 0:
		return err
	case ctx.Err() != nil:
		return classify(action, left[0].subject(), ctx.Err())
	default:
		return cnierr.New(cnierr.IO, action, left[0].subject(), "ip monitor rule in "+left[0].place.String()+" shows which program adds it", "%w", ErrRulesLeft)
	}
}

func (ps rules) check(ctx context.Context) error { return checkEach(ctx, ps) }

func (p rule) check(ctx context.Context) error {
	const action = "check rule"
	there, err := p.find(ctx)
	if err != nil {
		return classify(action, p.subject(), err)
	}
	if !there.exact {
		return damaged(action, p.subject(), p.redo(p.op), "want it with protocol %d, got %s", plan.Protocol, there.other)
	}
	return p.outranked(ctx, there)
}

func (p rule) subject() string {
	return fmt.Sprintf("from %s priority %d", p.op.From, p.op.Priority)
}

// found is what find finds: exactly our rule, or other rules with its source
// and priority.
type found struct {
	exact bool
	other string
	// before are the rules of others that the kernel looks at first, and that can catch
	// a packet of this source.
	before []rtnl.Rule
	all    []rtnl.Rule // of its family
}

func (p rule) find(ctx context.Context) (found, error) {
	want := p.want()
	there, err := p.conn.Rules(ctx, rtnl.Family(p.op.From.Addr()))
	if err != nil {
		return found{}, err
	}
	out := found{other: "none", all: there}
	for _, is := range there {
		if is == want {
			out.exact = true
			continue
		}
		if is.Priority <= want.Priority && is.Protocol != plan.Protocol && mayCatch(is, p.op.From.Addr()) {
			out.before = append(out.before, is)
		}
		if is.From == want.From && is.Priority == want.Priority {
			out.other = fmt.Sprintf("one with table %d, action %d and protocol %d", is.Table, is.Action, is.Protocol)
		}
	}
	return out, nil
}

func (p rule) want() rtnl.Rule {
	w := rtnl.Rule{From: p.op.From, Table: p.op.Table, Priority: p.op.Priority, Action: unix.FR_ACT_TO_TBL, Protocol: plan.Protocol}
	if p.op.Table == 0 {
		w.Action = unix.FR_ACT_UNREACHABLE
	}
	return w
}

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
		if ignore(err, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL) != nil { // those say that it leads nowhere
			return classify(action, p.subject(), err)
		}
		wins := winner(there.before, func(b rtnl.Rule) bool {
			return err != nil && nowhere(b.Action) != "" || err == nil && b.Table == is.Table || p.skipped(b, there.all)
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

// skipped says whether a rule lets the kernel go on after ours. The kernel ignores it as long
// as no rule has the priority that it names.
func (p rule) skipped(by rtnl.Rule, all []rtnl.Rule) bool {
	return by.Action == unix.FR_ACT_GOTO && by.Goto > p.op.Priority &&
		slices.ContainsFunc(all, func(r rtnl.Rule) bool { return r.Priority == by.Goto })
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
	switch {
	case r.Action == unix.FR_ACT_GOTO:
		action = fmt.Sprint("goto ", r.Goto)
	case action == "":
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
