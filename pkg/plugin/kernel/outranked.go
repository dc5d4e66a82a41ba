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

	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
)

// ErrOutranked is in the finding of Check about a rule that exists when the packets that
// it is for take another route, because of a rule of another program. Doing plan.Rule
// again would not help.
var ErrOutranked = errors.New("a rule of another program wins over it")

// outranked reports that a packet from our address leaves by another link than our table
// says. before are the rules that may be the reason. Without them, the kernel is not asked.
// A rule with a table that leads the same way, or nowhere, does no harm.
func (p rule) outranked(ctx context.Context, before []rtnl.Rule) error {
	const action = "check rule"
	if len(before) == 0 || p.op.Table == 0 {
		return nil
	}
	from := p.op.From.Addr()
	ours, err := p.conn.RoutesOf(ctx, rtnl.Family(from), p.op.Table)
	if err != nil {
		return classify(action, p.subject(), err)
	}
	for _, r := range ours {
		if r.Type != unix.RTN_UNICAST {
			continue
		}
		to := someHost(r)
		is, err := p.conn.RouteTo(ctx, from, to)
		if err == nil && is.Index == r.Index {
			continue
		}
		first := before[0]
		if i := slices.IndexFunc(before, func(b rtnl.Rule) bool { return err == nil && b.Table == is.Table }); i >= 0 {
			first = before[i]
		}
		fix := p.ip("rule del priority %d", first.Priority)
		if from.Is6() {
			fix = p.ip("-6 rule del priority %d", first.Priority)
		}
		return damaged(action, p.subject(), []string{fix}, "%w: %q, so packets to %s take another route", ErrOutranked, text(first), to)
	}
	return nil
}

// text returns a rule in the words of ip rule.
func text(r rtnl.Rule) string {
	return fmt.Sprintf("from %s lookup %d priority %d", r.From, r.Table, r.Priority)
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
