// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plan"
)

// policy executes plan.Rule.
type policy struct {
	*Kernel
	op plan.Rule
}

// do adds the rule. With NLM_F_EXCL the kernel refuses a twin, protocol
// included (rule_exists).
func (p policy) do(ctx context.Context) error {
	const action = "add rule"
	err := p.pod.Do(ctx, rtnl.AddRule(p.want()))
	if !errors.Is(err, unix.EEXIST) {
		return classify(action, p.subject(), err)
	}
	there, err := p.find(ctx)
	if err != nil {
		return classify(action, p.subject(), err)
	}
	if !there.exact {
		return cnierr.New(cnierr.RouteTaken, action, p.subject(),
			"remove the rule from the pod, or choose another routing.priority or routing.table", "there is another one: %s", there.other)
	}
	return nil
}

// maxTwins bounds how often undo deletes: do makes one, other tools may have
// made more.
const maxTwins = 100

// undo removes the rule and its twins. The kernel deletes the first rule that
// agrees in what the request says (rule_find), so our protocol number, which
// it says, keeps those of others.
func (p policy) undo(ctx context.Context) error {
	for range maxTwins {
		err := p.pod.Do(ctx, rtnl.DeleteRule(p.want()))
		if err != nil {
			return classify("delete rule", p.subject(), ignore(err, unix.ENOENT, unix.EAFNOSUPPORT))
		}
	}
	return cnierr.New(cnierr.IO, "delete rule", p.subject(), "something adds it again and again: ip monitor rule in the pod shows when", "deleted it %d times", maxTwins)
}

func (p policy) check(ctx context.Context) error {
	const action = "check rule"
	there, err := p.find(ctx)
	if err != nil {
		return classify(action, p.subject(), err)
	}
	if !there.exact {
		return damaged(action, p.subject(), p.redo(p.op), "want it with protocol %d, got %s", plan.Protocol, there.other)
	}
	return nil
}

func (p policy) subject() string {
	return fmt.Sprintf("from %s priority %d", p.op.From, p.op.Priority)
}

// found is what find sees: the very rule, or others of its source and
// priority.
type found struct {
	exact bool
	other string
}

func (p policy) find(ctx context.Context) (found, error) {
	want := p.want()
	there, err := p.pod.Rules(ctx, rtnl.Family(p.op.From.Addr()))
	if err != nil {
		return found{}, err
	}
	out := found{other: "none"}
	for _, is := range there {
		if is == want {
			return found{exact: true}, nil
		}
		if is.From == want.From && is.Priority == want.Priority {
			out.other = fmt.Sprintf("one with table %d, action %d and protocol %d", is.Table, is.Action, is.Protocol)
		}
	}
	return out, nil
}

func (p policy) want() rtnl.Rule {
	w := rtnl.Rule{From: p.op.From, Table: p.op.Table, Priority: p.op.Priority, Action: unix.FR_ACT_TO_TBL, Protocol: plan.Protocol}
	if p.op.Table == 0 {
		w.Action = unix.FR_ACT_UNREACHABLE
	}
	return w
}
