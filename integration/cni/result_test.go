// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// addrs returns the addresses of a result.
func addrs(res *current.Result) []netip.Addr {
	out := make([]netip.Addr, 0, len(res.IPs))
	for _, ip := range res.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		out = append(out, a.Unmap())
	}
	return out
}

// addrOfResult returns the only address of a result.
func addrOfResult(t testing.TB, res *current.Result) netip.Addr {
	t.Helper()
	got := addrs(res)
	if len(got) != 1 {
		t.Fatalf("the result has the addresses %v, want one", got)
	}
	return got[0]
}

// detailed is a network with results that have a value in every field.
func detailed(n *node, version string) network {
	return n.rail(0).With("cniVersion", version).With("mac", "02:00:00:00:00:07").
		With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)}).
		With("args.cni.ips", []any{"172.16.10.70", "fd00:10::70"}).
		With("ipam.routes", []any{
			map[string]any{"dst": "10.1.0.0/16", "mtu": 1400, "advmss": 1360, "priority": 7},
			map[string]any{"dst": "10.2.0.0/16", "gw": "172.16.10.253", "table": 254},
			map[string]any{"dst": "10.3.0.0/16", "scope": 253, "table": 300},
		}).
		With("dns", map[string]any{"nameservers": []any{"10.96.0.10"}, "domain": "cluster.local", "search": []any{"svc"}, "options": []any{"ndots:5"}})
}

// resultOf is what an ADD of a detailed network says, in a version.
func resultOf(version, netns string) string {
	const dns = `"dns": {"nameservers": ["10.96.0.10"], "domain": "cluster.local", "search": ["svc"], "options": ["ndots:5"]}`
	link := fmt.Sprintf(`"name": "net1", "mac": "02:00:00:00:00:07", "sandbox": %q`, netns)
	family4, family6 := "", ""
	routes := `{"dst": "10.2.0.0/16", "gw": "172.16.10.253"}`
	switch version {
	case "0.3.1", "0.4.0":
		family4, family6 = `"version": "4", `, `"version": "6", `
	case "1.1.0":
		link += `, "mtu": 9000`
		routes = `{"dst": "172.16.10.0/24", "table": 100, "scope": 253},
			{"dst": "0.0.0.0/0", "gw": "172.16.10.254", "table": 100},
			{"dst": "fd00:10::/64", "table": 100},
			{"dst": "::/0", "gw": "fd00:10::fe", "table": 100},
			{"dst": "10.1.0.0/16", "gw": "172.16.10.254", "table": 100, "mtu": 1400, "advmss": 1360, "priority": 7},
			{"dst": "10.2.0.0/16", "gw": "172.16.10.253"},
			{"dst": "10.3.0.0/16", "table": 300, "scope": 253}`
	}
	return fmt.Sprintf(`{
		"cniVersion": %q, "interfaces": [{%s}],
		"ips": [{%s"interface": 0, "address": "172.16.10.70/24", "gateway": "172.16.10.254"},
			{%s"interface": 0, "address": "fd00:10::70/64", "gateway": "fd00:10::fe"}],
		"routes": [%s], %s}`, version, link, family4, family6, routes, dns)
}

func TestResultsAreInTheVersionAskedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	before := p.snapshot(t)
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		a := w.attach(detailed(w.node, version), p, "net1")
		stdin := a.text(t)
		out, err := a.raw(t, "roce", "ADD", stdin)
		if err != nil {
			t.Fatalf("ADD in version %s: %v", version, err)
		}
		if diff := cmp.Diff(parse(t, resultOf(version, p.Path)), parse(t, string(out))); diff != "" {
			t.Errorf("result of version %s (-want +got)\n%s", version, diff)
		}
		if out, err = a.raw(t, "roce", "DEL", stdin); err != nil || len(out) > 0 {
			t.Fatalf("DEL in version %s: %q, %v", version, out, err)
		}
		p.unchanged(t, before)
		w.noRecords(t)
	}
}

// text returns the configuration as a plugin gets it.
func (a attachment) text(t testing.TB) string {
	t.Helper()
	b, err := json.Marshal(a.network)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func parse(t testing.TB, text string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}
