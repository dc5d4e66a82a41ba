// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// refusal is a Linux that refuses one request: the one after so many others.
type refusal struct{ after int }

var errRefused = fmt.Errorf("the request of the test: %w", unix.EIO)

// next says whether a request is the one.
func (r *refusal) next() bool {
	r.after--
	return r.after == -1
}

// refusing is a socket of that Linux.
type refusing struct {
	nlsock.Socket
	refusal *refusal
}

func (s refusing) Dump(ctx context.Context, req nlsock.Request) ([][]byte, error) {
	if s.refusal.next() {
		return nil, errRefused
	}
	return s.Socket.Dump(ctx, req)
}

// Exchange does the other requests, as Linux does.
func (s refusing) Exchange(ctx context.Context, reqs ...nlsock.Request) ([]nlsock.Reply, error) {
	one := slices.IndexFunc(reqs, func(nlsock.Request) bool { return s.refusal.next() })
	if one < 0 {
		return s.Socket.Exchange(ctx, reqs...)
	}
	others := slices.Delete(slices.Clone(reqs), one, one+1)
	if n := len(others); n > 0 && one == n {
		others[n-1].Flags |= unix.NLM_F_ACK
	}
	replies, err := s.Socket.Exchange(ctx, others...)
	return slices.Insert(replies, one, nlsock.Reply{Err: errRefused}), err
}

// strict is a machine that refuses requests.
type strict struct {
	*kernel.Kernel
	node    *kerneltest.Node
	pod     *kerneltest.Netns
	refusal *refusal
}

func refusingMachine(t *testing.T) strict {
	t.Helper()
	return refusingAbove(t, func(s nlsock.Socket) nlsock.Socket { return s })
}

func refusingAbove(t *testing.T, below func(nlsock.Socket) nlsock.Socket) strict {
	t.Helper()
	node, pod, k := machine(t)
	r := &refusal{-1}
	if err := k.Through(func(s nlsock.Socket) nlsock.Socket { return refusing{below(s), r} }); err != nil {
		t.Fatal(err)
	}
	return strict{k, node, pod, r}
}

// each calls try again and again. Each time another request is refused, until none is.
func (s strict) each(try func() error, then func(request int, err error)) {
	for i := 0; ; i++ {
		s.refusal.after = i
		err := try()
		if s.refusal.after >= 0 {
			s.refusal.after = -1
			return
		}
		s.refusal.after = -1
		then(i, err)
	}
}

// show returns what is in host and pod.
func (s strict) show(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	look := func() error {
		c, err := rtnl.Dial()
		if err != nil {
			return err
		}
		defer c.Close()
		links, err1 := c.Links(t.Context())
		addrs, err2 := c.Addresses(t.Context(), 0)
		routes, err3 := c.Routes(t.Context())
		rules, err4 := c.Rules(t.Context(), unix.AF_UNSPEC)
		for _, l := range links {
			fmt.Fprintln(&b, l.Name, l.Alias, l.Address, l.MTU, l.Flags&unix.IFF_UP)
		}
		for _, a := range addrs {
			fmt.Fprintln(&b, a.Prefix)
		}
		for _, r := range routes {
			if r.Table != unix.RT_TABLE_LOCAL { // changes some time later, for IPv6
				fmt.Fprintln(&b, r)
			}
		}
		fmt.Fprintln(&b, rules)
		return errors.Join(err1, err2, err3, err4)
	}
	if err := errors.Join(s.EnterHost(look), s.Enter(look)); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// said wants an error to have the kernel's words. What could not be asked is no damage.
func said(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, errRefused) || cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("%s: got %v, code %d, want what was refused", what, err, cnierr.CodeOf(err))
	}
}

// steps returns an attachment with two rails and a link to the host.
func steps(t *testing.T) plan.Ops {
	ops := kerneltest.Attachment(kerneltest.Container(t), nic, nic)
	v := plan.Veth{Name: "veth1", MAC: conf.MAC{2, 0, 0, 0, 2, 1}, PodEnd: "host0", PodMAC: conf.MAC{2, 0, 0, 0, 2, 2}, MTU: 1500, Mark: ops[0].Kind.(plan.Child).Mark}
	still := func(l conf.LinkName) plan.Sysctl { // else an address comes some time after Up
		return plan.Sysctl{Link: l, Set: []plan.Setting{{Path: "net/ipv6/conf/" + string(l) + "/addr_gen_mode", Value: "1"}}}
	}
	ops = append(ops, plan.OnHost(v, still(v.Name), plan.Up{Link: v.Name})...)
	ops = append(ops, plan.InPod(still(v.PodEnd), plan.Up{Link: v.PodEnd}, plan.Neighbour{Link: v.PodEnd, Addr: netip.MustParseAddr("169.254.1.1"), MAC: v.MAC},
		plan.Adopt{Link: "net1", MAC: ops[0].Kind.(plan.Child).MAC, Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.5/24")}})...)
	return append(ops, plan.OnHost(plan.Route{Link: v.Name, Table: plan.HostLinkTable, Dst: netip.MustParsePrefix("10.9.0.5/32"), Scope: plan.ScopeLink})...)
}

// TestWhatLinuxRefusesIsSaid: no call takes a request that was refused for a success, whichever
// it was. One that fails can be undone; one operation that fails has changed nothing.
func TestWhatLinuxRefusesIsSaid(t *testing.T) {
	t.Parallel()
	s := refusingMachine(t)
	for _, run := range steps(t).Runs() {
		s.sweep(t, run[:1], true)
		s.sweep(t, run, false)
		do(t, s.Kernel, run...)
	}
}

// sweep does a run, does it again, checks and undoes it, each time with another request refused.
// whole says that a run that fails has changed nothing.
func (s strict) sweep(t *testing.T, run plan.Ops, whole bool) {
	t.Helper()
	what := fmt.Sprintf("%d of %T", len(run), run[0].Kind)
	before := s.show(t)
	s.each(func() error { return s.Do(t.Context(), run...) }, func(request int, err error) {
		said(t, fmt.Sprintf("do %s, request %d", what, request), err)
		if now := s.show(t); whole && now != before {
			t.Errorf("do %s, request %d: left\n%s", what, request, now)
		}
		undo(t, s.Kernel, run)
		if now := s.show(t); now != before && run[0].Kind != (plan.Up{Link: run[0].Link()}) {
			t.Errorf("undo %s after request %d: left\n%s", what, request, now)
		}
	})
	done := s.show(t)
	for verb, call := range map[string]func(context.Context, ...plan.Op) error{"do again": s.Do, "check": s.Check} {
		s.each(func() error { return call(t.Context(), run...) }, func(request int, err error) {
			said(t, fmt.Sprintf("%s %s, request %d", verb, what, request), err)
		})
	}
	if now := s.show(t); now != done {
		t.Errorf("%s: was\n%s\nis\n%s", what, done, now)
	}
	s.each(func() error { return s.Undo(t.Context(), run...) }, func(request int, err error) {
		// There may be another way. What is shown has no neighbours.
		if err != nil || s.show(t) != before || s.Check(t.Context(), run...) == nil {
			said(t, fmt.Sprintf("undo %s, request %d", what, request), err)
		}
		do(t, s.Kernel, run...)
	})
	undo(t, s.Kernel, run)
}

// anyLink is a link in a finding: one that cannot be asked for has its index in place of its name.
var anyLink = regexp.MustCompile(`through (interface \d+|\w+) with`)

// TestACheckThatCannotAskFindsNoPeace: with whatever is refused, a check finds the damage that
// it finds without, or says what was refused.
func TestACheckThatCannotAskFindsNoPeace(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"renamed":   "link set net1 down\nlink set net1 name other0",
		"gone":      "link del net1\nlink del host0",
		"changed":   "link set net1 mtu 1400\nlink set net1 address 02:00:00:00:00:99",
		"addresses": "addr flush dev net1\nneigh flush dev host0 nud permanent",
		"subnet":    "route del 10.9.0.0/24 dev net1\n-6 route del fd00:9::/64 dev net1",
		"moved":     "route del 10.9.0.0/24 dev net1\nroute del default metric 50\nrule add from 10.9.0.5 lookup 99 priority 7",
		"routes":    "route flush table 100\n-6 route flush table 100",
		"another's": "route replace default via 10.9.0.9 dev net1 table 100\nroute add blackhole 10.7.0.0/24 table 100",
		"in front":  "link add eth9 type bridge\nlink set eth9 up\naddr add 10.8.0.5/24 dev eth9\nroute add default via 10.8.0.1 dev eth9\nrule add lookup main priority 5",
		"pod end":   "link set host0 name other1",
		"host":      "HOST link set veth1 down\nHOST link set veth1 name other1\nHOST link set " + nic + " down",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := refusingMachine(t)
			ops := steps(t)
			do(t, s.Kernel, ops...)
			for line := range strings.Lines(script) {
				if on, is := strings.CutPrefix(line, "HOST "); is {
					s.node.IP(on)
				} else {
					s.pod.IP(line)
				}
			}
			found := 0
			for _, op := range ops {
				was := s.Check(t.Context(), op)
				if was != nil {
					found++
				}
				s.each(func() error { return s.Check(t.Context(), op) }, func(request int, err error) {
					if was == nil || err == nil || anyLink.ReplaceAllString(err.Error(), "") != anyLink.ReplaceAllString(was.Error(), "") {
						said(t, fmt.Sprintf("check %T, request %d", op.Kind, request), err)
					}
				})
			}
			if found == 0 {
				t.Error("nothing is damaged: the test proves nothing")
			}
		})
	}
}

// TestRepairThatIsRefusedIsSaid does links again that are not as planned.
func TestRepairThatIsRefusedIsSaid(t *testing.T) {
	t.Parallel()
	s := refusingMachine(t)
	ops := steps(t).Runs()
	pair := ops[slices.IndexFunc(ops, func(run plan.Ops) bool { _, is := run[0].Kind.(plan.Veth); return is })]
	for script, run := range map[string]plan.Ops{
		`net1 alias ""`: ops[0], "net1 mtu 1400": ops[0], "net1 address 02:00:00:00:00:99": ops[0],
		`veth1 alias ""`: pair, "veth1 address 02:00:00:00:00:99": pair, "veth1 name other1": pair, "host0 name other1": pair, "host0 address 02:00:00:00:00:99": pair,
	} {
		at := s.pod
		if strings.HasPrefix(script, "veth") {
			at = s.node.Netns
		}
		do(t, s.Kernel, run...)
		at.IP("link set " + script)
		wantCode(t, s.Check(t.Context(), run...), cnierr.Damaged)
		s.each(func() error { return s.Do(t.Context(), run...) }, func(request int, err error) {
			if err != nil || s.Check(t.Context(), run...) != nil {
				said(t, fmt.Sprintf("%s, request %d", script, request), err)
			}
			undo(t, s.Kernel, run)
			do(t, s.Kernel, run...)
			at.IP("link set " + script)
		})
		if err := s.Check(t.Context(), run...); err != nil {
			t.Errorf("%s: %v", script, err)
		}
		undo(t, s.Kernel, run)
	}
}

// TestUndoWithoutARecordThatIsRefusedIsSaid has the operations that are only ever undone.
func TestUndoWithoutARecordThatIsRefusedIsSaid(t *testing.T) {
	t.Parallel()
	s := refusingMachine(t)
	ops := kerneltest.Attachment(kerneltest.Container(t), nic, nic)
	mark := ops[0].Kind.(plan.Child).Mark
	before := s.show(t)
	for i, undone := range []plan.Ops{
		plan.InPod(plan.Child{Name: "net1", Mark: mark}, plan.Orphans{Link: "net1", Mark: mark}),
		plan.InPod(plan.Carriers{Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.5"), netip.MustParseAddr("10.9.1.5")}}),
	} {
		do(t, s.Kernel, ops...)
		for _, run := range slices.Backward(undone.Runs()) {
			left := s.show(t)
			s.each(func() error { return s.Undo(t.Context(), run...) }, func(request int, err error) {
				if err != nil || s.show(t) == left {
					said(t, fmt.Sprintf("undo %T, request %d", run[0].Kind, request), err)
				}
			})
			undo(t, s.Kernel, run)
		}
		if now := s.show(t); strings.Contains(now, "net1") || i == 0 && now != before { // the rules stay where an address alone is known
			t.Errorf("left\n%s", now)
		}
		undo(t, s.Kernel, ops.Teardown())
		if now := s.show(t); now != before {
			t.Errorf("left\n%s", now)
		}
	}
	for _, run := range []plan.Op{{Kind: plan.Orphans{}}, {Kind: plan.Carriers{}}} {
		wantCode(t, s.Do(t.Context(), run), cnierr.Bug)
		wantCode(t, s.Check(t.Context(), run), cnierr.Bug)
	}
}

// TestALinkAsideThatIsRefusedIsSaid is what Do falls back to on kernels before 6.15.
func TestALinkAsideThatIsRefusedIsSaid(t *testing.T) {
	t.Parallel()
	s := refusingMachine(t)
	before := s.show(t)
	s.each(func() error { return s.CreateAside(t.Context(), child(t)) }, func(request int, err error) {
		said(t, fmt.Sprint("request ", request), err)
		undo(t, s.Kernel, plan.InPod(child(t)))
		if now := s.show(t); now != before {
			t.Errorf("request %d left\n%s", request, now)
		}
	})
}

// TestFactsThatCannotBeAskedAreNone: each rail has a fault, or there is an error.
func TestFactsThatCannotBeAskedAreNone(t *testing.T) {
	t.Parallel()
	s := refusingMachine(t)
	s.node.IP("addr add 172.16.0.1/24 dev " + nic)
	s.node.IP("route add default via 172.16.0.2")
	do(t, s.Kernel, steps(t)...)
	on := func(p conf.Parent) []conf.Rail { return []conf.Rail{{IfName: "net9", Parent: p}} }
	for name, req := range map[string]conf.Request{
		"name":    {Rails: on(conf.Parent{Name: nic})},
		"subnet":  {Rails: on(conf.Parent{Subnet: netip.MustParsePrefix("172.16.0.0/24")})},
		"default": {Rails: on(conf.Parent{})},
		"VLAN":    {VLAN: 7, Rails: on(conf.Parent{Name: nic})},
		"in pod":  {LinkInContainer: true, Rails: on(conf.Parent{Name: "net1"})},
		"adopted": {
			RDMA: conf.RDMA{Mode: conf.RDMAShared}, Rails: []conf.Rail{{IfName: "net1"}},
			Prev: &conf.Prev{Result: &current.Result{Interfaces: []*current.Interface{{Name: "net1"}}}},
		},
	} {
		if _, err := plan.Only(s.Facts(t.Context(), req)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		s.each(func() error { _, err := plan.Only(s.Facts(t.Context(), req)); return err }, func(request int, err error) {
			said(t, fmt.Sprintf("facts of %s, request %d", name, request), err)
		})
	}
}
