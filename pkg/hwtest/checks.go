// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// checks makes two faults in a pod that CHECK must find, and removes them.
func (p *pod) checks(ctx context.Context, v view, other *pod) []report.Finding {
	of := p.ports[0].String()
	var addr netip.Addr
	for a := range p.indexes() {
		if a.Is4() {
			addr = a
		}
	}
	s, end, err := p.subsystem()
	if err != nil {
		return []report.Finding{cannotTell(of, err.Error(), "the namespace of the pod")}
	}
	defer end()
	_, _, hidden, err := entries(s, plan.RDMADevice{Name: p.ports[0].Device.Name, Port: p.ports[0].Number})
	if err != nil {
		return []report.Finding{cannotTell(of, err.Error(), "the GID table")}
	}
	var out []report.Finding
	if hidden {
		out = append(out, cannotTell(of, "the driver hides the entry of the other pod", "the kernel's own driver"))
	} else {
		out = append(out, p.twice(ctx, other, addr))
	}
	return append(out, p.shifted(ctx, addr))
}

// twice gives another pod the address, too.
func (p *pod) twice(ctx context.Context, other *pod, addr netip.Addr) report.Finding {
	of := p.ports[0].String()
	if err := other.change(ctx, rtnl.AddAddress, alone(addr)); err != nil {
		return cannotTell(of, err.Error(), "the right to set an address")
	}
	err := p.wait(ctx, func() error { return p.reports(ctx, "RoCE v2 entries") })
	err = errors.Join(err, other.change(ctx, rtnl.DeleteAddress, alone(addr)), p.wait(ctx, func() error { return p.Attach.Check(ctx, p.req) }))
	if err != nil {
		return problem(of, "an address of two pods: "+err.Error(), aKnownFault)
	}
	return ok(of, "CHECK finds the address %s of two pods", addr)
}

// reports returns an error if CHECK does not report something.
func (p *pod) reports(ctx context.Context, what string) error {
	if says := fmt.Sprint(p.Attach.Check(ctx, p.req)); !strings.Contains(says, what) {
		return fmt.Errorf("CHECK says %s, want %q", says, what)
	}
	return nil
}

// shifted takes the address away, gives its index to another address, and sets it again.
// At the end the address has its index again, for the steps that follow.
func (p *pod) shifted(ctx context.Context, addr netip.Addr) report.Finding {
	of := p.ports[0].String()
	filler := netip.AddrFrom4([4]byte{198, 18, 254, 1})
	own := netip.PrefixFrom(addr, 24) // as Bench.subnets has it
	p.more = append(p.more, filler)
	_, err := p.steps(ctx, []step{
		{rtnl.DeleteAddress, own, nil, []netip.Addr{addr}},
		{rtnl.AddAddress, alone(filler), []netip.Addr{filler}, nil},
		{rtnl.AddAddress, own, []netip.Addr{addr, filler}, nil},
	})
	if err != nil {
		return cannotTell(of, err.Error(), "an address that can be changed")
	}
	var moved *rdma.MovedError
	if err := p.Attach.Check(ctx, p.req); !errors.As(err, &moved) {
		return problem(of, fmt.Sprintf("the entry of %s moved, and CHECK says: %v", addr, err), aKnownFault)
	}
	back, err := p.steps(ctx, []step{
		{rtnl.DeleteAddress, own, nil, []netip.Addr{addr}},
		{rtnl.DeleteAddress, alone(filler), nil, []netip.Addr{filler}},
		{rtnl.AddAddress, own, []netip.Addr{addr}, nil},
	})
	if err != nil || back[addr] != moved.Was {
		return cannotTell(of, fmt.Sprintf("%s does not get index %d again, but %d (%v)", addr, moved.Was, back[addr], err), "a node on which no other pod starts or ends")
	}
	return ok(of, "CHECK finds that the index of %s changed from %d to %d", addr, moved.Was, moved.Is)
}

// step changes an address of a pod. After it, some addresses have entries, and others have
// none.
type step struct {
	how        func(int32, netip.Prefix) rtnl.Change
	addr       netip.Prefix
	set, unset []netip.Addr
}

// steps does steps one by one, each when the entries of the one before are there. It
// returns the indexes after the last one.
func (p *pod) steps(ctx context.Context, all []step) (at map[netip.Addr]int, err error) {
	s, end, err := p.subsystem()
	if err != nil {
		return nil, err
	}
	defer end()
	for _, one := range all {
		if err := p.change(ctx, one.how, one.addr); err != nil {
			return nil, err
		}
		if at, err = s.Place(ctx, p.rail(), one.set, one.unset); err != nil {
			return nil, err
		}
	}
	return at, nil
}
