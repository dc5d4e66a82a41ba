// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plan"
)

// strays are the rules of an attachment whose record is lost, and the links of
// its rails but for the first, which is plan.Macvlan's.
type strays struct {
	*Kernel
	op plan.Strays
}

func (s strays) do(context.Context) error { return s.onlyUndone() }

func (s strays) check(context.Context) error { return s.onlyUndone() }

func (s strays) onlyUndone() error {
	return cnierr.New(cnierr.Bug, "do", string(s.op.Link), "", "stray rules are only ever undone")
}

// undo removes the rules that carry our protocol number and an address of one
// of the links, and then the links. While a rule is left the links stay: their
// addresses are all that tells whose rules those are.
func (s strays) undo(ctx context.Context) error {
	const action = "delete stray rules of"
	links, err := s.pod.Links(ctx)
	if err != nil {
		return classify(action, string(s.op.Link), err)
	}
	first, ok := macvlan{s.Kernel, plan.Macvlan{Name: s.op.Link, Mark: s.op.Mark}}.among(links)
	rails := slices.DeleteFunc(slices.Clone(links), func(l rtnl.Link) bool { return !s.isRail(l) })
	if !ok && len(rails) == 0 {
		return nil
	}
	rules, err := s.rules(ctx, append([]rtnl.Link{first}, rails...))
	if err != nil {
		return classify(action, string(s.op.Link), err)
	}
	var errs []error
	for _, err := range s.pod.Each(ctx, rules...) {
		errs = append(errs, classify(action, string(s.op.Link), ignore(err, unix.ENOENT)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return remove(ctx, s.pod, rails, links)
}

// isRail says whether a link is that of another rail: its mark is that of the
// first, a slash and a number.
func (s strays) isRail(l rtnl.Link) bool {
	rail, ok := strings.CutPrefix(l.Alias, s.op.Mark+"/")
	_, err := strconv.ParseUint(rail, 10, 32)
	return ok && err == nil && l.Kind == "macvlan"
}

// rules returns what removes the rules of ours that are for addresses of links.
func (s strays) rules(ctx context.Context, links []rtnl.Link) ([]rtnl.Change, error) {
	addrs, err := s.pod.Addresses(ctx, 0)
	if err != nil {
		return nil, err
	}
	ours := map[netip.Addr]bool{}
	for _, a := range addrs {
		if slices.ContainsFunc(links, func(l rtnl.Link) bool { return l.Index == a.Index }) {
			ours[a.Prefix.Addr()] = true
		}
	}
	rules, err := s.pod.Rules(ctx, unix.AF_UNSPEC)
	if err != nil {
		return nil, err
	}
	var out []rtnl.Change
	for _, r := range rules {
		if r.Protocol == plan.Protocol && r.From.IsSingleIP() && ours[r.From.Addr()] {
			out = append(out, rtnl.DeleteRule(r))
		}
	}
	return out, nil
}
