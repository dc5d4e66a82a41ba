// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// listed returns the configuration of one network on all rails, each of which
// says its own master and subnets.
func (n *node) listed(subnets ...func(int) map[string]any) network {
	var list []any
	for i := range rails {
		var own []any
		for _, s := range subnets {
			own = append(own, s(i))
		}
		list = append(list, map[string]any{"master": fmt.Sprintf("rail%d", i), "subnets": own})
	}
	return n.allRails(list, nil)
}

// matched returns what listed returns, by a rule. The NICs have no place on the
// PCI bus, so that they are in the order of their names.
func (n *node) matched(subnets ...func(int) map[string]any) network {
	const rail = "{rail+10}"
	var templates []any
	for _, s := range subnets {
		t := map[string]any{}
		for k, v := range s(0) {
			switch v := v.(type) {
			case string:
				t[k] = ofRail(v, rail)
			case []any:
				t[k] = []any{ofRail(v[0].(string), rail)}
			}
		}
		templates = append(templates, t)
	}
	return n.allRails(map[string]any{"match": map[string]any{"ifNames": []any{"rail*"}}, "count": rails}, templates)
}

// ofRail puts the number of a rail in the place of rail 0's.
func ofRail(text, rail string) string {
	return strings.NewReplacer("172.16.10.", "172.16."+rail+".", "fd00:10:", "fd00:"+rail+":").Replace(text)
}

func (n *node) allRails(which any, subnets []any) network {
	return n.rail(0).With("name", "all").With("master", nil).With("rails", which).With("ipam.subnets", subnets)
}

// railName returns the name of the interface on rail i.
func railName(i int) string {
	if i == 0 {
		return "net1"
	}
	return fmt.Sprintf("net1-%d", i)
}

// each returns the interfaces of a result with all rails.
func each(t *testing.T, a attachment, res *current.Result, families int) []attached {
	t.Helper()
	if len(res.Interfaces) != rails || len(res.IPs) != rails*families {
		t.Fatalf("the result has %d interfaces and %d addresses, want %d and %d", len(res.Interfaces), len(res.IPs), rails, rails*families)
	}
	var out []attached
	for i, in := range res.Interfaces {
		if in.Name != railName(i) || in.Sandbox != a.netns || in.Mtu != 9000 || in.Mac == "" {
			t.Errorf("interface %d is %+v, want %s in %s with the master's MTU", i, in, railName(i), a.netns)
		}
		one := attached{attachment: a, rail: i, subnet: 10 + i, mac: in.Mac}
		one.ifName = in.Name
		out = append(out, one)
	}
	for n, ip := range res.IPs {
		if ip.Interface == nil || *ip.Interface != n/families {
			t.Fatalf("address %d is %v, want it on interface %d", n, ip, n/families)
		}
		out[n/families].addrs = append(out[n/families].addrs, addrs(res)[n])
	}
	return out
}

// slots returns the host part of the first address of each rail.
func slots(all []attached) []byte {
	var out []byte
	for _, a := range all {
		b := a.addrs[0].AsSlice()
		out = append(out, b[len(b)-1])
	}
	return out
}

// aligned says whether all rails have one host part.
func aligned(all []attached) bool { return len(slices.Compact(slots(all))) == 1 }

func TestOneAddGivesAPodAllRails(t *testing.T) {
	t.Parallel()
	const families = 2
	w := newWorld(t, rails)
	p := w.pod(t)
	before, node := p.snapshot(t), w.snapshot(t)
	var taps []*tap
	for i := range rails {
		taps = append(taps, w.leaf.listen(t, fmt.Sprintf("leaf%d", i), nil))
	}
	a := w.attach(w.matched(cnitest.Subnet4, cnitest.Subnet6), p, "net1")
	res := a.mustAdd(t)
	all := each(t, a, res, families)
	if !aligned(all) {
		t.Errorf("the rails have the host parts %v, want one for all", slots(all))
	}
	for i, one := range all {
		if got, want := p.parent(t, one.ifName, w.node.namespace), fmt.Sprintf("rail%d", i); got != want {
			t.Errorf("%s is on %s, want %s", one.ifName, got, want)
		}
		if got := p.mac(t, one.ifName); got != one.mac {
			t.Errorf("the MAC of %s is %s, the result says %s", one.ifName, got, one.mac)
		}
		for n, addr := range one.addrs {
			gateway := netip.MustParseAddr(one.gateway(n))
			taps[i].await(t, 1, "a question for "+gateway.String(), func(f frame) bool {
				return (f.kind == arpRequest || f.kind == solicit) && f.to == gateway && f.from == addr && f.src == one.mac
			})
			taps[i].await(t, 1, "an announcement of "+addr.String(), func(f frame) bool { return f.gratuitous(addr) && f.src == one.mac })
			if got := taps[i].heard(func(f frame) bool { return f.probe(addr) }); len(got) != 3 {
				t.Errorf("%d probes for %s, want 3", len(got), addr)
			}
		}
	}
	checkResultTables(t, res, families)
	standing := p.snapshot(t)
	if diff := cmp.Diff(res, a.mustAdd(t)); diff != "" {
		t.Errorf("result of the second ADD (-first +second)\n%s", diff)
	}
	p.unchanged(t, standing)
	a.mustCheck(t)
	a.mustDel(t)
	p.unchanged(t, before)
	w.unchanged(t, node)
	w.mustBeClean(t)
}

// checkResultTables wants a connected route and a default route of each rail
// and family, in the rail's own table.
func checkResultTables(t *testing.T, res *current.Result, families int) {
	t.Helper()
	var got, want []string
	for _, r := range res.Routes {
		if r.Table == nil {
			t.Errorf("the route %v has no table", r)
			continue
		}
		got = append(got, fmt.Sprintf("%s via %s table %d", r.Dst.String(), r.GW, *r.Table))
	}
	for i := range rails {
		want = append(want, fmt.Sprintf("172.16.%d.0/24 via <nil> table %d", 10+i, 100+i),
			fmt.Sprintf("0.0.0.0/0 via 172.16.%d.254 table %d", 10+i, 100+i))
		if families == 2 {
			want = append(want, fmt.Sprintf("fd00:%d::/64 via <nil> table %d", 10+i, 100+i),
				fmt.Sprintf("::/0 via fd00:%d::fe table %d", 10+i, 100+i))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("routes of the result (-want +got)\n%s", diff)
	}
}
