// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// static returns an attachment with addresses from the real static plugin, as pairs
// of address and gateway.
func (w *world) static(t *testing.T, p *pod, pairs ...string) attachment {
	t.Helper()
	list := []any{}
	for i := 0; i < len(pairs); i += 2 {
		address := map[string]any{"address": pairs[i]}
		if pairs[i+1] != "" {
			address["gateway"] = pairs[i+1]
		}
		list = append(list, address)
	}
	return w.from(p, upstream(t), map[string]any{"type": "static", "addresses": list})
}

func TestSeveralAddressesOfOneFamily(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.leaf.IP(t, "addr add 172.16.20.254/24 dev leaf0")
	p := w.pod(t)
	before := p.snapshot(t)
	a := w.static(t, p, "172.16.10.70/24", "172.16.10.254", "172.16.20.70/24", "172.16.20.254", "fd00:10::70/64", "fd00:10::fe", "fd00:10::71/64", "")
	a.network = a.network.With("ipam.routes", []any{
		map[string]any{"dst": "10.1.0.0/16"},
		map[string]any{"dst": "10.2.0.0/16", "gw": "172.16.20.253"},
		map[string]any{"dst": "0.0.0.0/0", "gw": "172.16.20.254", "priority": 5},
		map[string]any{"dst": "fd01::/16", "advmss": 1300, "table": 100},
	}).With("ipam.dns", map[string]any{"nameservers": []any{"10.96.0.10"}})
	res := a.mustAdd(t)
	if got := fmt.Sprint(addrs(res)); got != "[172.16.10.70 172.16.20.70 fd00:10::70 fd00:10::71]" {
		t.Errorf("addresses %s", got)
	}
	// The configuration names table 100, so the addresses take the next ones.
	for table, want := range map[string][]string{
		"100": {"fd01::/16 via fd00:10::fe dev net1 proto 82 src fd00:10::70 metric 1024 advmss 1300 pref medium"},
		"101": {
			"default via 172.16.10.254 dev net1 proto 82 src 172.16.10.70",
			"10.1.0.0/16 via 172.16.10.254 dev net1 proto 82 src 172.16.10.70",
			"172.16.10.0/24 dev net1 proto 82 scope link src 172.16.10.70",
			"fd00:10::/64 dev net1 proto 82 src fd00:10::70 metric 1024 pref medium",
			"default via fd00:10::fe dev net1 proto 82 src fd00:10::70 metric 1024 pref medium",
		},
		"102": {
			"default via 172.16.20.254 dev net1 proto 82 src 172.16.20.70 metric 5",
			"10.2.0.0/16 via 172.16.20.253 dev net1 proto 82 src 172.16.20.70",
			"172.16.20.0/24 dev net1 proto 82 scope link src 172.16.20.70",
			"fd00:10::/64 dev net1 proto 82 src fd00:10::71 metric 1024 pref medium",
		},
	} {
		if diff := cmp.Diff(want, p.routes(t, table)); diff != "" {
			t.Errorf("table %s (-want +got)\n%s", table, diff)
		}
	}
	for _, addr := range addrs(res) {
		w.leaf.MustRun(t, "ping", "-n", "-q", "-c", "1", "-W", "3", addr.String())
	}
	if diff := cmp.Diff([]string{"10.96.0.10"}, res.DNS.Nameservers); diff != "" {
		t.Errorf("nameservers (-want +got)\n%s", diff)
	}
	if err := a.check(t); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	a.mustDel(t)
	p.unchanged(t, before)

	a.network = a.network.With("dns", map[string]any{"nameservers": []any{"192.0.2.53"}})
	if got := a.mustAdd(t).DNS.Nameservers; !cmp.Equal(got, []string{"192.0.2.53"}) {
		t.Errorf("nameservers %q, want those of the configuration", got)
	}
}

// What the runtime asks for, static reads itself: with prefix lengths.
func TestStaticReadsWhatTheRuntimeAsksFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	a := w.static(t, p)
	for name, a := range map[string]attachment{
		"capability": a.capable("ips", []string{"172.16.10.71/24", "fd00:10::71/64"}),
		"CNI_ARGS":   a.arg("IP", "172.16.10.71/24,fd00:10::71/64"),
	} {
		if got := fmt.Sprint(addrs(a.mustAdd(t))); got != "[172.16.10.71 fd00:10::71]" {
			t.Errorf("%s: addresses %s", name, got)
		}
		a.mustDel(t)
	}
	if err := a.mustFail(t, 6); err.Details == "" {
		t.Errorf("got %v, want a hint", err)
	}
	w.noRecords(t)
}

// Configurations of macvlan, of which the type alone has changed, and what
// this version needs: rdma off.
func TestConfigurationsOfMacvlanGoOnWorking(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	before := p.snapshot(t)
	for file, want := range map[string][]string{
		"macvlan-static.json": {
			"172.16.10.0/24 dev net1 proto kernel scope link src 172.16.10.70",
			"10.64.0.0/10 via 172.16.10.254 dev net1 proto 82",
		},
		"macvlan-host-local.json": {
			"172.16.10.0/24 dev net1 proto kernel scope link src 172.16.10.130",
			"10.64.0.0/10 via 172.16.10.254 dev net1 proto 82",
		},
	} {
		c := w.example(t, file)
		if file == "macvlan-host-local.json" {
			c = c.With("ipam.dataDir", t.TempDir())
		}
		a := w.attach(c, p, "net1")
		a.path = append(a.path, upstream(t))
		a.mustAdd(t)
		all(t, file, p.routes(t, "main"), append(want, "default via 10.244.1.1 dev eth0"))
		a.mustDel(t)
		p.unchanged(t, before)
	}
}
