// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

func (w opened) macvlan() plan.Child { return Attachment(w.Container, w.NIC)[0].Kind.(plan.Child) }

// foreign is a link that roce-cni did not make, with a subnet.
func (w opened) foreign() {
	w.IP("link add eth0 type bridge")
	w.IP("link set eth0 up")
	w.IP("addr add 10.8.0.5/24 dev eth0")
}

func foreignLink(t *testing.T, w opened) {
	w.IP("link add net1 type bridge")
	before := w.Show()
	w.refuses(t, plan.Op{Kind: w.macvlan()}, cnierr.BadEnv)
	w.undo(t, plan.InPod(w.macvlan(), plan.Child{Name: "net1", Mark: w.macvlan().Mark}))
	w.unchanged(t, before)
	// An alias alone is no proof: any program can set one.
	w.IP("link set net1 alias " + w.macvlan().Mark)
	before = w.Show()
	w.refuses(t, plan.Op{Kind: w.macvlan()}, cnierr.BadEnv)
	w.undo(t, plan.InPod(w.macvlan()))
	w.unchanged(t, before)
	wantCode(t, w.Check(t.Context(), plan.Op{Kind: w.macvlan()}), cnierr.Damaged)
}

func unmarkedDuplicate(t *testing.T, w opened) {
	before := w.Show()
	w.must(t, plan.Op{Kind: w.macvlan()})
	marked := w.Show()
	w.IP(`link set net1 alias ""`)
	wantCode(t, w.Check(t.Context(), plan.Op{Kind: w.macvlan()}), cnierr.Damaged)
	w.must(t, plan.Op{Kind: w.macvlan()})
	w.unchanged(t, marked)

	w.IP(`link set net1 alias ""`)
	other := w.macvlan()
	other.MAC[5]++
	w.refuses(t, plan.Op{Kind: other}, cnierr.BadEnv)
	w.undo(t, plan.InPod(other, plan.Child{Name: "net1", Mark: other.Mark}))
	if w.Show() == before {
		t.Error("undo removed a link with neither our alias nor our MAC")
	}
	w.undo(t, plan.InPod(w.macvlan()))
	w.unchanged(t, before)
}

func differentLink(t *testing.T, w opened) {
	w.must(t, plan.Op{Kind: w.macvlan()})
	other := w.macvlan()
	other.MTU, other.MAC[5], other.Mode = 1400, 9, conf.Private
	w.must(t, plan.Op{Kind: other})
	w.holds(t, plan.Op{Kind: other})
}

func foreignRoute(t *testing.T, w opened) {
	ops := w.attach(t)
	w.undo(t, ops[6:])
	w.foreign()
	w.IP("route add default via 10.8.0.1 dev eth0 table 100")
	w.IP("route add default via 10.8.0.1 dev eth0 metric 50")
	w.IP("-6 route add ::/0 dev eth0 table 100 metric 1024")
	before := w.Show()
	for _, op := range ops[6:] {
		r, ok := op.Kind.(plan.Route)
		if !ok || r.Dst.Bits() != 0 || r.Table == plan.MainTable && r.Dst.Addr().Is6() {
			continue
		}
		w.refuses(t, plan.Op{Kind: r}, cnierr.RouteTaken)
		wantCode(t, w.Check(t.Context(), plan.Op{Kind: r}), cnierr.Damaged)
		w.undo(t, plan.InPod(r))
		w.unchanged(t, before)
		r.Metric = 77
		w.must(t, plan.Op{Kind: r})
		w.undo(t, plan.InPod(r))
		w.unchanged(t, before)
	}
}

func otherMetric(t *testing.T, w opened) {
	ops := w.attach(t)
	for _, op := range ops {
		r, ok := op.Kind.(plan.Route)
		if !ok {
			continue
		}
		r.Metric = 77
		w.must(t, plan.Op{Kind: r})
		w.undo(t, plan.Ops{op, op})
		w.holds(t, plan.Op{Kind: r})
		w.undo(t, plan.Ops{op})
		if err := w.Check(t.Context(), plan.Op{Kind: r}); err != nil {
			t.Errorf("a second undo took the route of another metric: %v", err)
		}
		w.undo(t, plan.InPod(r))
		w.must(t, op)
	}
}

// otherProtocol has routes that differ from ours only in their protocol number
// (static), as an operator would add them.
func otherProtocol(t *testing.T, w opened) {
	for _, op := range w.attach(t) {
		r, ok := op.Kind.(plan.Route)
		if !ok || !r.Via.IsValid() {
			continue
		}
		w.undo(t, plan.InPod(r))
		family := ""
		if r.Dst.Addr().Is6() {
			family = "-6 "
		}
		route := fmt.Sprintf("%s dev net1 table %d metric %d", r.Dst, r.Table, max(r.Metric, 7))
		r.Metric = max(r.Metric, 7)
		w.IP(fmt.Sprintf("%sroute add %s via %s src %s mtu 1400 proto 4", family, route, r.Via, r.Src))
		before := w.Show()
		w.refuses(t, plan.Op{Kind: r}, cnierr.RouteTaken)
		wantCode(t, w.Check(t.Context(), plan.Op{Kind: r}), cnierr.Damaged)
		w.undo(t, plan.InPod(r))
		w.unchanged(t, before)
		w.IP(family + "route del " + route)
	}
}

func foreignRule(t *testing.T, w opened) {
	ours := plan.Rule{From: netip.MustParsePrefix("10.9.0.5/32"), Table: 100, Priority: 32000}
	w.IP("rule add from 10.9.0.5/32 lookup 100 priority 32000 protocol 4")
	before := w.Show()
	wantCode(t, w.Check(t.Context(), plan.Op{Kind: ours}), cnierr.Damaged)
	w.must(t, plan.Op{Kind: ours})
	w.holds(t, plan.Op{Kind: ours})
	w.undo(t, plan.InPod(ours, ours))
	w.unchanged(t, before)
}

func duplicateRules(t *testing.T, w opened) {
	before := w.Show()
	for _, op := range []plan.Rule{
		{From: netip.MustParsePrefix("10.9.0.5/32"), Table: 300, Priority: 32000},
		{From: netip.MustParsePrefix("10.9.0.5/32"), Priority: 32001},
	} {
		w.must(t, plan.Op{Kind: op})
		w.IP(fmt.Sprintf("rule add from %s lookup %d priority %d protocol %d", op.From, 301, op.Priority, plan.Protocol))
		w.must(t, plan.Op{Kind: op})
		w.undo(t, plan.InPod(op))
		if w.Show() == before {
			t.Error("undo removed a rule with another table")
		}
		w.undo(t, plan.InPod(plan.Rule{From: op.From, Table: 301, Priority: op.Priority}))
		w.unchanged(t, before)
	}
}

func otherLength(t *testing.T, w opened) {
	w.attach(t)
	w.refuses(t, plan.Op{Kind: plan.Address{Link: "net1", Prefix: netip.MustParsePrefix("fd00:9::5/72")}}, cnierr.IO)
}

func impossible(t *testing.T, w opened) {
	m := w.macvlan()
	m.Parent = "nosuch0"
	w.refuses(t, plan.Op{Kind: m}, cnierr.BadParent)
	m = w.macvlan()
	m.MTU = 9000
	w.refuses(t, plan.Op{Kind: m}, cnierr.BadParent)

	route := plan.Route{Link: "net1", Table: 100, Dst: netip.MustParsePrefix("10.10.0.0/16"), Via: netip.MustParseAddr("10.9.0.1")}
	address := plan.Address{Link: "net1", Prefix: netip.MustParsePrefix("10.9.0.5/24")}
	for _, op := range plan.InPod(plan.Up{Link: "net1"}, address, route) {
		w.refuses(t, op, cnierr.IO) // no link
	}
	w.must(t, plan.Op{Kind: w.macvlan()})
	w.refuses(t, plan.Op{Kind: plan.Route{Link: "net1", Table: 100, Dst: route.Dst, Scope: plan.ScopeLink}}, cnierr.IO) // down
	w.must(t, plan.Op{Kind: plan.Up{Link: "net1"}})
	w.refuses(t, plan.Op{Kind: route}, cnierr.BadConfig) // no way to the gateway
	w.must(t, plan.Op{Kind: address})
	w.must(t, plan.Op{Kind: route})

	m = w.macvlan()
	m.Name, m.Mode = "net2", conf.Passthru
	w.refuses(t, plan.Op{Kind: m}, cnierr.BadParent) // not alone
	w.refuses(t, plan.Op{Kind: plan.Gateway{}}, cnierr.Bug)
	wantCode(t, w.Undo(t.Context(), plan.Op{Kind: plan.Gateway{}}), cnierr.Bug)
	wantCode(t, w.Check(t.Context(), plan.Op{Kind: plan.Gateway{}}), cnierr.Bug)
}

func foreignSysctl(t *testing.T, w opened) {
	w.must(t, plan.Op{Kind: w.macvlan()})
	set := func(link conf.LinkName, path string) plan.Sysctl {
		return plan.Sysctl{Link: link, Set: []plan.Setting{{Path: path, Value: "1"}}}
	}
	w.refuses(t, plan.Op{Kind: set("net1", "net/ipv4/conf/lo/arp_ignore")}, cnierr.Bug)
	w.refuses(t, plan.Op{Kind: set("net1", "net/ipv4/conf/net1/../lo/arp_ignore")}, cnierr.Bug)
	w.refuses(t, plan.Op{Kind: set("all", "net/ipv4/conf/all/arp_ignore")}, cnierr.Bug)
	w.refuses(t, plan.Op{Kind: set("net1", "kernel/ipv4/conf/net1/arp_ignore")}, cnierr.Bug)
	w.refuses(t, plan.Op{Kind: set("net2", "net/ipv4/conf/net2/arp_ignore")}, cnierr.BadConfig)
}

// lostRecord undoes an attachment of which only the mark is known.
func lostRecord(t *testing.T, w opened) {
	w.foreign()
	w.IP("rule add from 10.8.0.5/32 lookup 100 priority 32000 protocol 82") // another attachment's
	w.IP("rule add from 10.9.0.5/32 lookup 300 priority 40")                // foreign
	w.undoLost(t, Attachment(w.Container, w.NIC))
}

// undoLost does an attachment, and undoes it twice by its mark.
func (w opened) undoLost(t *testing.T, ops plan.Ops) {
	t.Helper()
	before := w.Show()
	w.must(t, ops...)
	m := ops[0].Kind.(plan.Child)
	lost := plan.InPod(plan.Child{Name: m.Name, Mark: m.Mark}, plan.Orphans{Link: m.Name, Mark: m.Mark})
	for range 2 {
		w.undo(t, lost)
		w.unchanged(t, before)
	}
}

// renamedLink looks at the attachment's link under another name, and then at no
// link.
func renamedLink(t *testing.T, w opened) {
	before := w.Show()
	ops := w.attach(t)
	w.IP("link set net1 down")
	w.IP("link set net1 name other0")
	if err := w.Check(t.Context(), plan.Op{Kind: w.macvlan()}); !errors.Is(err, kernel.ErrRenamed) {
		t.Errorf("check of a renamed link: %v, want ErrRenamed", err)
	}
	w.undo(t, ops.Teardown())
	w.unchanged(t, before)
	if err := w.Check(t.Context(), plan.Op{Kind: w.macvlan()}); err == nil || errors.Is(err, kernel.ErrRenamed) {
		t.Errorf("check of a link that is gone: %v, want another error than ErrRenamed", err)
	}
}

// changedLink looks at the attachment's link with another alias, also under another name.
func changedLink(t *testing.T, w opened) {
	before := w.Show()
	ops := w.attach(t)
	whole := w.Show()
	w.IP("link set net1 alias foo")
	wantCode(t, w.Check(t.Context(), plan.Op{Kind: w.macvlan()}), cnierr.Damaged)
	w.must(t, plan.Op{Kind: w.macvlan()})
	w.unchanged(t, whole)

	w.IP("link set net1 alias foo")
	w.IP("link set net1 down")
	w.IP("link set net1 name other0")
	w.undo(t, ops.Teardown())
	w.unchanged(t, before)
}

// carried undoes the carriers of an address: a link with another alias and MAC is one,
// also with an alias that looks like a mark. A link that is no macvlan is none.
func carried(t *testing.T, w opened) {
	const address = "10.8.0.7"
	gone := plan.InPod(plan.Carriers{Addresses: []netip.Addr{netip.MustParseAddr(address)}})
	before := w.Show()
	ops := w.attach(t)
	w.IP("addr add " + address + "/24 dev net1")
	w.IP("link set net1 alias foo")
	w.IP("link set net1 address 02:00:00:00:00:77")
	w.undo(t, gone)
	w.undo(t, ops.Teardown())
	w.unchanged(t, before)

	ops = w.attach(t)
	w.IP("addr add " + address + "/24 dev net1")
	w.IP("link set net1 alias roce:other/net1") // any pod can set that
	w.undo(t, gone)
	w.undo(t, ops.Teardown())
	w.unchanged(t, before)

	w.foreign()
	w.IP("addr add " + address + "/32 dev eth0")
	before = w.Show()
	w.undo(t, gone)
	w.unchanged(t, before)
}

// damage is something that happens to an attachment.
type damage struct {
	name string
	do   func(w opened)
	want []string // the kinds of operations that Check finds damaged
	left bool     // undoing leaves something that is no longer ours
}

func damages() []damage {
	ip := func(commands ...string) func(opened) {
		return func(w opened) {
			for _, c := range commands {
				w.IP(c)
			}
		}
	}
	onLink := []string{"Address", "Child", "Route", "Sysctl", "Up"}
	return []damage{
		{name: "nothing", do: ip()},
		{name: "a link that is gone", do: ip("link del net1"), want: onLink},
		{name: "a link that was renamed", do: ip("link set net1 down", "link set net1 name gone0"), want: onLink},
		{name: "a link that is down", do: ip("link set net1 down"), want: []string{"Address", "Route", "Up"}},
		{name: "a link that was down", do: ip("link set net1 down", "link set net1 up"), want: []string{"Address", "Route"}},
		{name: "another MAC", do: ip("link set net1 address 02:00:00:00:00:99"), want: []string{"Child"}},
		{name: "another MTU", do: ip("link set net1 mtu 1400"), want: []string{"Child"}},
		{name: "another alias", do: ip("link set net1 alias theirs"), want: []string{"Child"}},
		{name: "an IPv4 address that is gone", do: ip("addr del 10.9.0.5/24 dev net1"), want: []string{"Address", "Route"}},
		{name: "an IPv6 address that is gone", do: ip("addr del fd00:9::5/64 dev net1"), want: []string{"Address", "Route"}},
		{name: "an IPv4 subnet's route that is gone", do: ip("route del 10.9.0.0/24 dev net1"), want: []string{"Address"}},
		{name: "an IPv6 subnet's route that is gone", do: ip("-6 route del fd00:9::/64 dev net1"), want: []string{"Address"}},
		{name: "subnets' routes that only another link has", do: ip("link add eth9 type bridge", "link set eth9 up",
			"addr add 10.9.0.9/24 dev eth9", "route del 10.9.0.0/24 dev net1", "addr add fd00:9::9/64 dev eth9", "-6 route del fd00:9::/64 dev net1"), want: []string{"Address"}, left: true},
		{name: "a rule that is gone", do: ip("rule del from 10.9.0.5/32 lookup 100 priority 32000"), want: []string{"Rule"}},
		{name: "an unreachable rule that is gone", do: ip("-6 rule del from fd00:9::5/128 unreachable priority 32001"), want: []string{"Rule"}},
		{name: "a default route that is gone", do: ip("route del default dev net1 metric 50"), want: []string{"Route"}},
		{name: "a table that is empty", do: ip("route del 0.0.0.0/0 dev net1 table 100", "route del 10.9.0.0/24 dev net1 table 100"), want: []string{"Route"}},
		{name: "an IPv6 route that is gone", do: ip("-6 route del ::/0 dev net1 table 100"), want: []string{"Route"}},
		{name: "another gateway", do: ip("route del default dev net1 table 100", "route add default via 10.9.0.9 dev net1 table 100 proto 82"), want: []string{"Route"}, left: true},
		{name: "another setting", do: func(w opened) { w.Sysctl("net/ipv4/conf/net1/arp_ignore", "0") }, want: []string{"Sysctl"}},
	}
}

func (d damage) run(t *testing.T, w opened) {
	before := w.Show()
	ops := w.attach(t)
	d.do(w)
	damaged := w.Show()
	var got []string
	for _, op := range ops {
		if err := w.Check(t.Context(), op); err != nil {
			wantCode(t, err, cnierr.Damaged)
			got = append(got, reflect.TypeOf(op.Kind).Name())
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(d.want, slices.Compact(got)); diff != "" {
		t.Errorf("operations whose check fails (-want +got):\n%s", diff)
	}
	w.unchanged(t, damaged)
	w.undo(t, ops)
	if !d.left {
		w.unchanged(t, before)
	}
}
