// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

func TestAttachmentGetsAnAddressOfEachSubnet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	p.Set(t, "net/ipv6/conf/all/disable_ipv6", "1") // as runtimes do in IPv4 clusters
	p.Set(t, "net/ipv6/conf/default/disable_ipv6", "1")
	before := p.snapshot(t)
	second := map[string]any{"subnet": "10.9.0.0/24", "ranges": []any{"10.9.0.7"}}
	third := map[string]any{"subnet": "fd00:9::/64", "ranges": []any{"fd00:9::7"}}
	c := w.rail(0).With("ipam.subnets", []any{cnitest.Subnet6(0), second, cnitest.Subnet4(0), third}).
		With("args.cni.ips", []any{"172.16.10.70", "fd00:10::70"})
	a := w.attach(c, p, "net1")
	res := a.mustAdd(t)
	var got []string
	for _, ip := range res.IPs {
		got = append(got, fmt.Sprintf("%s via %s", ip.Address.String(), ip.Gateway))
	}
	if diff := cmp.Diff([]string{
		"fd00:10::70/64 via fd00:10::fe", "10.9.0.7/24 via <nil>",
		"172.16.10.70/24 via 172.16.10.254", "fd00:9::7/64 via <nil>",
	}, got); diff != "" {
		t.Errorf("addresses (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"32000: from 10.9.0.7 lookup 100 proto 82", "32000: from 172.16.10.70 lookup 101 proto 82",
		"32001: from 10.9.0.7 unreachable proto 82", "32001: from 172.16.10.70 unreachable proto 82",
		"32000: from fd00:10::70 lookup 100 proto 82", "32000: from fd00:9::7 lookup 101 proto 82",
		"32001: from fd00:10::70 unreachable proto 82", "32001: from fd00:9::7 unreachable proto 82",
	}, sortedByPriority(p.rules(t))); diff != "" {
		t.Errorf("rules (-want +got)\n%s", diff)
	}
	for _, addr := range []string{"172.16.10.70", "fd00:10::70"} {
		w.leaf.MustRun(t, "ping", "-n", "-q", "-c", "1", "-w", "10", addr)
	}
	a.mustDel(t)
	p.unchanged(t, before)
}

// sortedByPriority sorts rules, IPv4 before IPv6, by priority and then text:
// rules of one priority and different addresses never compete.
func sortedByPriority(rules []string) []string {
	slices.SortStableFunc(rules, func(a, b string) int {
		if six := strings.Compare(family(a), family(b)); six != 0 {
			return six
		}
		return strings.Compare(a, b)
	})
	return rules
}

func family(rule string) string {
	if strings.Contains(rule, "::") {
		return "6"
	}
	return "4"
}

func TestRestartedPodGetsItsAddressAndMACBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	c := w.rail(0).With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)})
	first := w.attach(c, w.podNamed(t, "trainer-0"), "net1")
	was := first.mustAdd(t)
	first.mustDel(t)
	for i := range 3 { // others take addresses meanwhile
		w.attach(c, w.pod(t), fmt.Sprintf("net%d", i)).mustAdd(t)
	}
	is := w.attach(c, w.podNamed(t, "trainer-0"), "net1").mustAdd(t)
	if diff := cmp.Diff(was.IPs, is.IPs); diff != "" {
		t.Errorf("addresses (-before +after)\n%s", diff)
	}
	if was.Interfaces[0].Mac != is.Interfaces[0].Mac {
		t.Errorf("the MAC was %s and is %s", was.Interfaces[0].Mac, is.Interfaces[0].Mac)
	}
}

func TestSecondAddFindsTheAttachmentAsItIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	a := w.attach(w.rail(0).With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)}), p, "net1")
	first := a.mustAdd(t)
	before := p.snapshot(t) // with the index of the link
	monitor := w.leaf.listen(t, "leaf0", nil)
	if diff := cmp.Diff(first, a.mustAdd(t)); diff != "" {
		t.Errorf("result (-first +second)\n%s", diff)
	}
	p.unchanged(t, before)
	for _, addr := range addrs(first) {
		if got := monitor.heard(func(f frame) bool { return f.probe(addr) }); len(got) > 0 {
			t.Errorf("the second ADD asked for %s again: %v", addr, got)
		}
	}
}
