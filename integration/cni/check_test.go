// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// ADD refuses such a rule with error 105. The plugin sbr makes a rule that wins, too, but
// its table has the same route. That is no damage: TestWhatSBRDoesIsNoDamage.
func TestCheckFindsARuleThatWinsOverOurs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	a := w.attach(w.rail(0), p, "net1")
	addr := addrOfResult(t, a.mustAdd(t))
	p.IP(t, "route add unreachable 203.0.113.0/24 table 51820")
	ours := fmt.Sprintf("from %s lookup 100 priority 32000 protocol 82", addr)
	for _, rule := range []string{
		"from all lookup main priority 5", "from 172.16.0.0/12 unreachable priority 7",
		"from all iif lo lookup main priority 5", "not from all fwmark 51820 lookup 51820 priority 5",
		"from all lookup main priority 32000",
	} {
		p.IP(t, "rule add "+rule)
		p.IP(t, "rule del "+ours+"\nrule add "+ours) // of two rules with one priority the first wins
		err := a.check(t)
		if err == nil || !strings.Contains(err.Msg, "wins over it") || !strings.Contains(err.Msg, addr.String()) {
			t.Errorf("CHECK with the rule %s: got %v, want a finding about the rule of %s", rule, err, addr)
		}
		w.remedy(t, "rule")
		a.mustCheck(t)
	}
	p.IP(t, "rule add from all lookup main priority 5 suppress_prefixlength 0") // as wg-quick does: default routes do not count
	a.mustCheck(t)
}

// remedy runs the command that rocectl check prints about the pod, which has one finding.
func (w *world) remedy(t *testing.T, about string) {
	t.Helper()
	out, err := w.rocectl("check")
	_, command, ok := strings.Cut(out, "restore it: ")
	command, _, _ = strings.Cut(command, "\n")
	if err == nil || !ok || !strings.Contains(command, about+" del ") {
		t.Fatalf("rocectl check: %v, want a command about the %s\n%s", err, about, out)
	}
	w.MustRun(t, "sh", "-c", command)
}

// The kernel deletes the first rule that agrees with what the command names.
func TestTheRemedyDeletesNoOtherRule(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	a := w.attach(w.rail(0).With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)}), p, "net1")
	a.mustAdd(t)
	add := func(rule string) { p.MustRun(t, "ip", strings.Fields(rule)...) }
	add("-4 rule add from 192.0.2.1 lookup 50 priority 5")
	add("-6 rule add from 2001:db8::1 lookup 50 priority 5")
	add("-4 rule add from all fwmark 7 lookup main priority 3")
	add("-4 rule add to 198.51.100.0/24 lookup main priority 4")
	add("-4 rule add from all goto 4 priority 1")     // it does not lead past ours
	add("-4 rule add from all goto 99999 priority 2") // there is no such rule
	before := p.snapshot(t)
	for _, rule := range []string{
		"-4 rule add from all lookup main priority 5", "-4 rule add from all goto 32766 priority 5", "-4 rule add from all unreachable priority 5", "-6 rule add from all blackhole priority 5",
		"-4 rule add not from 192.0.2.1 lookup main priority 5", "-4 rule add from 172.16.0.0/12 prohibit priority 5", "-6 rule add from fd00::/8 prohibit priority 5 protocol 77",
	} {
		add(rule)
		if err := a.check(t); err == nil || !strings.Contains(err.Msg, "wins over it") {
			t.Errorf("CHECK after %s: got %v", rule, err)
		}
		w.remedy(t, "rule")
		p.unchanged(t, before)
	}
	add("-4 rule add from all fwmark 7 lookup main priority 6")
	add("-4 rule add from all lookup main priority 6")
	if err := a.check(t); err == nil || strings.Contains(err.Details, "rule del") || !strings.Contains(err.Details, "rule show priority 6") {
		t.Errorf("CHECK with two rules that one command means: got %v", err)
	}
}

// ADD refuses a table that another program uses. A route in it may also come later.
func TestCheckFindsARouteOfOthersInOurTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	p.IP(t, "addr add fd00:99::2/64 dev eth0 nodad")
	a := w.attach(w.rail(0).With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)}), p, "net1")
	first := a.mustAdd(t)
	p.IP(t, `
		route add 198.51.100.0/24 via 172.16.10.253 dev net1 table 100
		route add default via 10.244.1.1 dev eth0 table 100 metric 7
		rule add from 192.0.2.1 lookup 100 priority 40000`)
	before := p.snapshot(t)
	a.mustCheck(t)
	for _, route := range []string{
		"203.0.113.0/24 table 100 via 10.244.1.1 dev eth0", "203.0.113.1/32 table 100 dev eth0 metric 5", "172.16.10.128/25 table 100 dev eth0",
		"203.0.113.0/24 tos 0x10 table 100 via 10.244.1.1 dev eth0", "unreachable 203.0.113.0/24 tos 0x08 table 100", "default tos 0x04 table 100 via 10.244.1.1 dev eth0 metric 9",
		"unreachable 203.0.113.0/24 table 100", "blackhole 203.0.113.0/24 table 100",
		"203.0.113.0/24 table 100 nexthop via 10.244.1.1 dev eth0 nexthop via 10.244.1.3 dev eth0",
		"2001:db8::/32 table 100 via fd00:99::1 dev eth0", "::/0 table 100 via fd00:99::1 dev eth0 metric 3", "unreachable 2001:db8::/32 table 100",
	} {
		p.IP(t, "route add "+route)
		err := a.check(t)
		if err == nil || !strings.Contains(err.Msg, "wins over it with a route") {
			t.Errorf("CHECK with the route %s: got %v", route, err)
			p.IP(t, "route del "+route)
			continue
		}
		if diff := cmp.Diff(first, a.mustAdd(t)); diff != "" {
			t.Errorf("a repeated ADD with the route %s made another interface (-first +second)\n%s", route, diff)
		}
		if out, err := w.rocectl("repair", "--yes"); err == nil || !strings.Contains(out, "wins over it") {
			t.Errorf("rocectl repair with the route %s: %v\n%s", route, err, out)
		}
		w.remedy(t, "route")
		p.unchanged(t, before)
	}
}

func TestCheckFindsANICThatIsDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	a := w.attach(w.rail(0), p, "net1")
	first := a.mustAdd(t)
	w.IP(t, "link set dev rail0 down")
	if err := a.check(t); err == nil || !strings.Contains(err.Msg, "its NIC rail0 is down") {
		t.Errorf("CHECK: got %v, want a finding about the NIC", err)
	}
	if out, err := w.rocectl("check"); err == nil || !strings.Contains(out, "ip link set dev rail0 up") {
		t.Errorf("rocectl check: %v, want the command that brings the NIC up\n%s", err, out)
	}
	if diff := cmp.Diff(first, a.mustAdd(t)); diff != "" {
		t.Errorf("a repeated ADD made another interface (-first +second)\n%s", diff)
	}
	w.IP(t, "link set dev rail0 up")
	w.AwaitCarrier(t)
	w.leaf.IP(t, "link set dev leaf0 down")
	if err := a.check(t); err == nil || !strings.Contains(err.Msg, "its NIC rail0 has no carrier") {
		t.Errorf("CHECK: got %v, want a finding about the carrier", err)
	}
	w.leaf.IP(t, "link set dev leaf0 up")
	w.AwaitCarrier(t)
	p.AwaitCarrier(t)
	a.mustCheck(t)
}
