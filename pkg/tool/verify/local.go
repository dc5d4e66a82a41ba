// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/probe"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Names of the tests, which answers have as Check.
const (
	Routing   = "routing"
	GatewayUp = "gateway"
	Duplicate = "duplicate-address"
	Reach     = "reach"
	MTU       = "mtu"
	GID       = "gid"
	Container = "container"
	Handshake = "rdma-handshake"
	Bandwidth = "rdma-bandwidth"
)

// Local tests each rail of the pod alone: rule and table, gateway, and whether another
// host uses its address. The tests of all rails run at the same time.
func (p Pod) Local(ctx context.Context, rails []Rail) []report.Answer {
	answers := make([][]report.Answer, len(rails))
	var wg sync.WaitGroup
	for i, r := range rails {
		wg.Go(func() {
			answers[i] = []report.Answer{p.routing(r), p.gateway(ctx, r), p.duplicate(ctx, r)}
		})
	}
	wg.Wait()
	var out []report.Answer
	for _, a := range answers {
		out = append(out, a...)
	}
	if p.Inside != nil {
		out = append(out, p.Inside(p)...)
	}
	return out
}

// Of names a rail of the pod in an answer.
func (p Pod) Of(r Rail) string { return fmt.Sprintf("rail %d of %s", r.Number, p.Name) }

func answer(check, of string, f report.Finding) report.Answer {
	f.Of = of
	return report.Answer{Check: check, Finding: f}
}

// problem is an answer with the reason why it matters.
func problem(check, of, found, fix, why string) report.Answer {
	return report.Answer{Check: check, Why: why, Finding: report.Finding{Verdict: report.Problem, Of: of, Found: found, Fix: fix}}
}

const restore = "rocectl repair --yes  # on the node; it restores routes and rules"

func (p Pod) routing(r Rail) report.Answer {
	const why = "packets of this rail leave through another interface, or not at all"
	switch {
	case !r.up:
		return problem(Routing, p.Of(r), string(r.Link)+" is down or has no carrier", shell.Command("ip link show %s", r.Link)+"  # then the NIC below it on the node: cable and switch port", why)
	case r.table != 0 && len(r.Reaches) == 0:
		return problem(Routing, p.Of(r), fmt.Sprintf("table %d has no route through %s", r.table, r.Link), restore, why)
	case r.table != 0 && !r.fails:
		return problem(Routing, p.Of(r), fmt.Sprintf("no rule makes packets from %s fail when table %d is empty", r.Addr, r.table), restore, why)
	case r.table == 0:
		return answer(Routing, p.Of(r), report.Finding{Verdict: report.OK, Found: fmt.Sprintf("%s %s uses the main table", r.Link, r.Addr)})
	}
	return answer(Routing, p.Of(r), report.Finding{Verdict: report.OK, Found: fmt.Sprintf("%s %s has table %d", r.Link, r.Addr, r.table)})
}

// How the questions are asked: as often as ADD does by default, so that a lost frame
// is no fault.
const (
	attempts = 3
	interval = 250 * time.Millisecond
)

// ask runs one question of a prober.
func (p Pod) ask(ctx context.Context, kind plan.Kind) error {
	prober := probe.Prober{Enter: p.Enter, Log: slog.New(slog.DiscardHandler), Rand: rand.Reader}
	defer prober.Close()
	return prober.Do(ctx, plan.Op{Place: plan.Pod, Kind: kind})
}

// answers says whether an address answers ARP or neighbour discovery on a rail.
func (p Pod) answers(ctx context.Context, r Rail, target plan.Target) error {
	target.Link, target.MAC, target.Addr = r.Link, r.MAC, r.Addr
	return p.ask(ctx, plan.Gateway{Mode: conf.Require, Attempts: attempts, Timeout: interval, Targets: []plan.Target{target}})
}

func (p Pod) gateway(ctx context.Context, r Rail) report.Answer {
	if !r.Gateway.IsValid() {
		return answer(GatewayUp, p.Of(r), report.Finding{Verdict: report.OK, Found: "it has no gateway"})
	}
	err := p.answers(ctx, r, plan.Target{Gateway: r.Gateway})
	switch {
	case err == nil:
		return answer(GatewayUp, p.Of(r), report.Finding{Verdict: report.OK, Found: r.Gateway.String() + " answers"})
	case cnierr.CodeOf(err) == cnierr.GatewaySilent:
		return problem(GatewayUp, p.Of(r), fmt.Sprintf("the gateway %s does not answer on %s", r.Gateway, r.Link),
			shell.Command("arping -I %s -s %s %s", r.Link, r.Addr, r.Gateway)+"  # then check VLAN and switch port of the NIC, and the gateway",
			"pods reach nothing outside of the rail's subnet")
	}
	return untold(GatewayUp, p.Of(r), err)
}

// taken asks on a rail which other host has an address: the error is a *probe.TakenError then.
func (p Pod) taken(ctx context.Context, r Rail, a netip.Addr) error {
	return p.ask(ctx, plan.Conflict{
		Mode: conf.Require, Probes: attempts, Interval: interval, Wait: interval,
		Targets: []plan.Target{{Link: r.Link, MAC: r.MAC, Addr: a}},
	})
}

func (p Pod) duplicate(ctx context.Context, r Rail) report.Answer {
	err := p.taken(ctx, r, r.Addr)
	var taken *probe.TakenError
	switch {
	case err == nil:
		return answer(Duplicate, p.Of(r), report.Finding{Verdict: report.OK, Found: "no other host has " + r.Addr.String()})
	case errors.As(err, &taken):
		return problem(Duplicate, p.Of(r), taken.Error(),
			shell.Command("arping -I %s -0 %s", r.Link, r.Addr)+"  # the MAC belongs to the other host: take the address from it, or delete this pod",
			"packets for the pod reach the other host")
	}
	return untold(Duplicate, p.Of(r), err)
}

// untold is the answer of a test that could not run.
func untold(check, of string, err error) report.Answer {
	return answer(check, of, report.Finding{
		Verdict: report.CannotTell, Found: err.Error(), Missing: "the capability NET_RAW in the pod, or rocectl verify --pid as root on the node",
	})
}
