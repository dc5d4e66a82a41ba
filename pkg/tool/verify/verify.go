// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package verify tests whether the rails of pods work: in one pod, and between pods.
// Each answer names the rail, and where it can the node, that has the fault.
//
// It changes nothing in a pod, and it sends only small tests: ARP and UDP, and by RDMA
// if the caller asks for it. It opens every socket through Pod.Enter. A server answers
// only callers with its token, and trusts them. Read this file first, which tests one pod,
// then pair.go and rdma.go for two, server.go for the protocol between them, and meeting.go
// for many. tally.go counts what these find, blame.go folds it to faults, and page.go shows it.
package verify

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/parent"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/probe"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Pod is a pod to test.
type Pod struct {
	// Name is what answers call it: the name of its node.
	Name string
	// Enter runs fn in the pod's network namespace, on a locked thread.
	Enter func(fn func() error) error
	// Control runs fn where the servers of other pods are reached; nil: Enter.
	Control func(fn func() error) error
	// RDMA returns the GIDs of the pod's addresses; nil: the pod makes no tests by RDMA.
	RDMA func(ctx context.Context) ([]gids.Rail, error)
	// Usable says whether programs of the pod can use the devices of these GIDs; nil: the
	// caller is not in the container, and cannot tell.
	Usable func([]gids.Rail) error
}

// Rail is an interface of a pod that roce made or adopted, with its first address.
type Rail struct {
	Number  int           `json:"rail"`
	Link    conf.LinkName `json:"interface"`
	MAC     conf.MAC      `json:"mac"`
	MTU     int           `json:"mtu"`
	Addr    netip.Addr    `json:"address"`
	Subnet  netip.Prefix  `json:"subnet"`
	Gateway netip.Addr    `json:"gateway,omitzero"`
	// Reaches are the destinations for which the rail has a route.
	Reaches []netip.Prefix `json:"reaches"`
	// UDP is the port of its echo, if the pod serves.
	UDP uint16 `json:"udp,omitempty"`

	index int32
	table uint32 // 0: none but the main table
	up    bool
	ruled bool // a rule sends its packets to the table
	fails bool // it has the rule that makes traffic fail visibly
}

type view struct {
	links  []rtnl.Link
	addrs  []rtnl.Address
	routes []rtnl.Route
	rules  []rtnl.Rule
}

func (p Pod) look(ctx context.Context) (v view, err error) {
	var c *rtnl.Conn
	if err = p.Enter(func() (err error) { c, err = rtnl.Dial(); return err }); err != nil {
		return view{}, failed(err)
	}
	defer c.Close()
	var faults [4]error
	v.links, faults[0] = c.Links(ctx)
	v.addrs, faults[1] = c.Addresses(ctx, 0)
	v.routes, faults[2] = c.Routes(ctx)
	v.rules, faults[3] = c.Rules(ctx, unix.AF_UNSPEC)
	if err := cmp.Or(faults[:]...); err != nil {
		return view{}, failed(err)
	}
	return v, nil
}

func failed(err error) error {
	return cnierr.New(cnierr.IO, "look at", "pod", "run it in the pod, or as root on the node", "%w", err)
}

// Rails returns the rails of the pod in the order of their names. Errors: cnierr.IO,
// and BadConfig if the pod has none.
func (p Pod) Rails(ctx context.Context) ([]Rail, error) {
	v, err := p.look(ctx)
	if err != nil {
		return nil, err
	}
	rails := v.rails()
	if len(rails) == 0 {
		return nil, cnierr.New(cnierr.BadConfig, "look for", "rails", "run it in a pod with a network of roce, or name the pod with --pid or --netns",
			"the namespace has no interface of roce with an address")
	}
	return rails, nil
}

// rails finds the interfaces with the mark of roce, and those with an address that
// has a rule or a table of roce. Numbers are positions in the order of the names.
func (v view) rails() []Rail {
	var out []Rail
	for _, l := range v.links {
		marked := strings.HasPrefix(l.Alias, "roce:")
		for _, a := range v.addrs {
			if a.Index != l.Index || a.Prefix.Addr().IsLinkLocalUnicast() || a.Prefix.Addr().IsLoopback() {
				continue
			}
			r := Rail{
				Link: conf.LinkName(l.Name), MTU: l.MTU, Addr: a.Prefix.Addr(), Subnet: a.Prefix.Masked(),
				index: l.Index, up: l.Flags&unix.IFF_LOWER_UP != 0 && l.Flags&unix.IFF_UP != 0,
			}
			if v.policy(&r); !marked && r.table == 0 && !r.fails {
				continue
			}
			copy(r.MAC[:], l.Address)
			r.Gateway, r.Reaches = v.reaches(r)
			out = append(out, r)
			break
		}
	}
	slices.SortFunc(out, func(a, b Rail) int { return parent.Natural(string(a.Link), string(b.Link)) })
	for i := range out {
		out[i].Number = i
	}
	return out
}

// policy finds the rules of roce for the address of a rail, and its table. If the rule that names
// the table is lost, it is the one with routes of roce through the rail.
func (v view) policy(r *Rail) {
	for _, rule := range v.rules {
		switch {
		case rule.Protocol != plan.Protocol || rule.From.Addr() != r.Addr:
		case rule.Action == unix.FR_ACT_TO_TBL:
			r.table, r.ruled = rule.Table, true
		default:
			r.fails = true
		}
	}
	for _, route := range v.routes {
		if r.table == 0 && route.Protocol == plan.Protocol && route.Table != unix.RT_TABLE_MAIN && route.Index == r.index && route.Dst.Addr().Is4() == r.Addr.Is4() {
			r.table = route.Table
		}
	}
}

// reaches returns the gateway of a rail, and the destinations of its routes: those in
// its table, or in the main table if it has none.
func (v view) reaches(r Rail) (gateway netip.Addr, out []netip.Prefix) {
	table := cmp.Or(r.table, unix.RT_TABLE_MAIN)
	for _, route := range v.routes {
		if route.Table != table || route.Index != r.index || route.Dst.Addr().Is4() != r.Addr.Is4() {
			continue
		}
		if route.Dst.Bits() == 0 && route.Via.IsValid() {
			gateway = route.Via
		}
		out = append(out, route.Dst)
	}
	return gateway, out
}

func (r Rail) reach(a netip.Addr) bool {
	return slices.ContainsFunc(r.Reaches, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Names of the tests, which answers have as Check.
const (
	Routing   = "routing"
	GatewayUp = "gateway"
	Duplicate = "address-conflict"
	Reach     = "reach"
	MTU       = "mtu"
	GID       = "gid"
	Container = "container"
	Handshake = "rdma-handshake"
	Bandwidth = "rdma-bandwidth"
)

// Local tests each rail of the pod alone: rule and table, gateway, and whether another
// host uses its address. The tests of all rails run at the same time. Errors: those of Rails.
func (p Pod) Local(ctx context.Context) ([]report.Answer, error) {
	rails, err := p.Rails(ctx)
	if err != nil {
		return nil, err
	}
	answers := make([][]report.Answer, len(rails))
	var wg sync.WaitGroup
	for i, r := range rails {
		wg.Go(func() {
			answers[i] = []report.Answer{p.routing(r)}
			if r.up {
				answers[i] = append(answers[i], p.gateway(ctx, r), p.duplicate(ctx, r))
			}
		})
	}
	wg.Wait()
	return append(slices.Concat(answers...), p.inside(ctx, rails)...), nil
}

// Of names a rail of the pod in an answer.
func (p Pod) Of(r Rail) string { return fmt.Sprintf("rail %d of %s", r.Number, p.Name) }

func good(check, of, found string) report.Answer {
	return report.Answer{Check: check, Finding: report.Finding{Verdict: report.OK, Of: of, Found: found}}
}

func cannotTell(check, of, found, missing string) report.Answer {
	return report.Answer{Check: check, Finding: report.Finding{Verdict: report.CannotTell, Of: of, Found: found, Missing: missing}}
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
	case r.table == 0 && !r.fails:
		return good(Routing, p.Of(r), fmt.Sprintf("%s %s uses the main table", r.Link, r.Addr))
	case r.table == 0:
		return problem(Routing, p.Of(r), fmt.Sprintf("no rule sends packets from %s to a table of its own", r.Addr), restore, why)
	case !r.ruled:
		return problem(Routing, p.Of(r), fmt.Sprintf("no rule sends packets from %s to table %d", r.Addr, r.table), restore, why)
	case len(r.Reaches) == 0:
		return problem(Routing, p.Of(r), fmt.Sprintf("table %d has no route through %s", r.table, r.Link), restore, why)
	case !r.fails:
		return problem(Routing, p.Of(r), fmt.Sprintf("no rule makes packets from %s fail when table %d is empty", r.Addr, r.table), restore, why)
	}
	return good(Routing, p.Of(r), fmt.Sprintf("%s %s has table %d", r.Link, r.Addr, r.table))
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
		return good(GatewayUp, p.Of(r), "it has no gateway")
	}
	err := p.answers(ctx, r, plan.Target{Gateway: r.Gateway})
	switch {
	case err == nil:
		return good(GatewayUp, p.Of(r), r.Gateway.String()+" answers")
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
		return good(Duplicate, p.Of(r), "no other host has "+r.Addr.String())
	case errors.As(err, &taken):
		return problem(Duplicate, p.Of(r), taken.Error(),
			shell.Command("arping -I %s -0 %s", r.Link, r.Addr)+"  # the MAC belongs to the other host: take the address from it, or delete this pod",
			"packets for the pod reach the other host")
	}
	return untold(Duplicate, p.Of(r), err)
}

// untold is the answer of a test that could not run.
func untold(check, of string, err error) report.Answer {
	return cannotTell(check, of, err.Error(), "the capability NET_RAW in the pod, or rocectl verify --pid as root on the node")
}

// inside tests what RDMA programs of the pod need.
func (p Pod) inside(ctx context.Context, rails []Rail) (out []report.Answer) {
	if p.RDMA == nil {
		return nil
	}
	have, err := p.RDMA(ctx)
	switch {
	case cnierr.CodeOf(err) == cnierr.NoGID:
		return append(out, problem(GID, "all rails of "+p.Name, err.Error(), "rocectl doctor gid-table  # on the node", whyInside))
	case err != nil:
		return append(out, cannotTell(GID, "all rails of "+p.Name, err.Error(), "RDMA devices: rocectl doctor on the node says what is missing"))
	}
	for _, r := range rails {
		i := slices.IndexFunc(have, func(g gids.Rail) bool { return g.Link == r.Link })
		if i < 0 {
			out = append(out, problem(GID, p.Of(r), fmt.Sprintf("no RoCE v2 GID has an address of %s", r.Link), "rocectl doctor gid-table rdma-ports  # on the node", whyInside))
			continue
		}
		out = append(out, good(GID, p.Of(r), fmt.Sprintf("%s of %s has GID index %d of %s", have[i].Addr, r.Link, have[i].Index, have[i].Port)))
	}
	return append(out, p.container(have))
}

const whyInside = "RDMA programs in the pod fail, or do not use this rail"

// container tests the device files and the limit for locked memory.
func (p Pod) container(have []gids.Rail) report.Answer {
	if p.Usable == nil {
		return cannotTell(Container, p.Name, "this is not the container", "rocectl verify in the container: device files and the limit for locked memory")
	}
	if err := p.Usable(have); err != nil {
		return problem(Container, p.Name, err.Error(), cnierr.CNI("rocectl", err).Details, whyInside)
	}
	return good(Container, p.Name, "it can open the RDMA devices and lock memory")
}
