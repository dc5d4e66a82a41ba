// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plan"
)

// strays are the rules of an attachment whose record is lost.
type strays struct {
	*Kernel
	op plan.Strays
}

func (s strays) do(context.Context) error { return s.onlyUndone() }

func (s strays) check(context.Context) error { return s.onlyUndone() }

func (s strays) onlyUndone() error {
	return cnierr.New(cnierr.Bug, "do", string(s.op.Link), "", "stray rules are only ever undone")
}

// undo removes the rules that carry our protocol number and one of the link's
// addresses.
func (s strays) undo(ctx context.Context) error {
	const action = "delete stray rules of"
	l, err := macvlan{s.Kernel, plan.Macvlan{Name: s.op.Link, Mark: s.op.Mark}}.ours(ctx)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return classify(action, string(s.op.Link), err)
	}
	addrs, err := s.pod.Addresses(ctx, l.Index)
	if err != nil {
		return classify(action, string(s.op.Link), err)
	}
	rules, err := s.pod.Rules(ctx, unix.AF_UNSPEC)
	if err != nil {
		return classify(action, string(s.op.Link), err)
	}
	var errs []error
	for _, r := range rules {
		from := func(a rtnl.Address) bool { return r.From.IsSingleIP() && r.From.Addr() == a.Prefix.Addr() }
		if r.Protocol == plan.Protocol && slices.ContainsFunc(addrs, from) {
			err := ignore(s.pod.Do(ctx, rtnl.DeleteRule(r)), unix.ENOENT)
			errs = append(errs, classify(action, string(s.op.Link), err))
		}
	}
	return errors.Join(errs...)
}
