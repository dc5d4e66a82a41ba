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

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// orphans executes plan.Orphans. It leaves out the link of the first rail:
// plan.Child removes that one.
type orphans struct {
	onlyUndone
	namespace
	op plan.Orphans
}

// onlyUndone is a part of what no plan has.
type onlyUndone struct{}

func (onlyUndone) do(context.Context) error {
	return cnierr.New(cnierr.Bug, "do", "operation", "", "it is only ever undone")
}

func (o onlyUndone) check(ctx context.Context) error { return o.do(ctx) }

// undo removes the rules that have our protocol number and an address of one of
// the links, and then the links. While a rule is left, the links stay: only
// their addresses tell to which attachment the rules belong.
func (o orphans) undo(ctx context.Context) error {
	const action = "delete orphaned rules of"
	links, err := o.conn.Links(ctx)
	if err != nil {
		return classify(action, string(o.op.Link), err)
	}
	first, ok := child{o.namespace, plan.Child{Name: o.op.Link, Mark: o.op.Mark}}.among(links)
	rails := slices.DeleteFunc(slices.Clone(links), func(l rtnl.Link) bool { return !o.isRail(l) })
	if !ok && len(rails) == 0 {
		return nil
	}
	rules, err := o.rules(ctx, append([]rtnl.Link{first}, rails...))
	if err != nil {
		return classify(action, string(o.op.Link), err)
	}
	if len(rules) > 0 {
		err = rules.undo(ctx)
	}
	if err != nil && !errors.Is(err, ErrRulesLeft) {
		return err
	}
	return errors.Join(remove(ctx, o.conn, rails, links), err)
}

// isRail says whether a link belongs to a rail after the first: its mark is the
// mark of the first rail, a slash and a number.
func (o orphans) isRail(l rtnl.Link) bool {
	rail, ok := strings.CutPrefix(l.Alias, o.op.Mark+"/")
	_, err := strconv.ParseUint(rail, 10, 32)
	return ok && err == nil && childKind(l)
}

// rules returns the rules for the addresses of links that are as we make them.
func (o orphans) rules(ctx context.Context, links []rtnl.Link) (rules, error) {
	addrs, err := o.conn.Addresses(ctx, 0)
	if err != nil {
		return nil, err
	}
	ours := map[netip.Addr]bool{}
	for _, a := range addrs {
		if slices.ContainsFunc(links, func(l rtnl.Link) bool { return l.Index == a.Index }) {
			ours[a.Prefix.Addr()] = true
		}
	}
	there, err := o.conn.Rules(ctx, unix.AF_UNSPEC)
	if err != nil {
		return nil, err
	}
	var out rules
	seen := map[rule]bool{}
	for _, r := range there {
		p := rule{o.namespace, plan.Rule{From: r.From, Table: r.Table, Priority: r.Priority}}
		if r.From.IsSingleIP() && ours[r.From.Addr()] && r == p.want() && !seen[p] {
			out, seen[p] = append(out, p), true
		}
	}
	return out, nil
}

// carriers executes plan.Carriers.
type carriers struct {
	onlyUndone
	namespace
	op plan.Carriers
}

// undo removes the macvlans and ipvlans that have one of the addresses. It reads the links only if a
// link has one.
func (c carriers) undo(ctx context.Context) error {
	const action = "look for addresses in"
	addrs, err := c.conn.Addresses(ctx, 0)
	if err != nil {
		return classify(action, c.path, err)
	}
	addrs = slices.DeleteFunc(addrs, func(a rtnl.Address) bool { return !slices.Contains(c.op.Addresses, a.Prefix.Addr()) })
	if len(addrs) == 0 {
		return nil
	}
	links, err := c.conn.Links(ctx)
	if err != nil {
		return classify(action, c.path, err)
	}
	doomed := slices.DeleteFunc(slices.Clone(links), func(l rtnl.Link) bool {
		has := func(a rtnl.Address) bool { return a.Index == l.Index }
		return !childKind(l) || !slices.ContainsFunc(addrs, has) // an alias proves nothing: the pod can set one
	})
	return remove(ctx, c.conn, doomed, links)
}
