// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/look"
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
		if is.Priority <= want.Priority && is.Protocol != plan.Protocol && look.MayCatch(is, p.op.From.Addr()) {
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
