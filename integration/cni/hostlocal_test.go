// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

// hostLocal returns an attachment with addresses from the real host-local, and what
// lists its leases.
func (w *world) hostLocal(t *testing.T, p *pod) (a attachment, leases func() []string) {
	t.Helper()
	dir := upstream(t)
	data := t.TempDir()
	set := func(subnet, first, last, gateway string) []any {
		return []any{map[string]any{"subnet": subnet, "rangeStart": first, "rangeEnd": last, "gateway": gateway}}
	}
	a = w.from(p, dir, map[string]any{
		"type": "host-local", "dataDir": data,
		"ranges": []any{
			set("172.16.10.0/24", "172.16.10.130", "172.16.10.139", "172.16.10.254"),
			set("fd00:10::/64", "fd00:10::130", "fd00:10::139", "fd00:10::fe"),
		},
		"routes": []any{
			map[string]any{"dst": "0.0.0.0/0"},
			map[string]any{"dst": "::/0", "mtu": 1400},
			map[string]any{"dst": "10.1.0.0/16", "gw": "172.16.10.253", "mtu": 1400, "advmss": 1360, "priority": 7, "table": 300},
			map[string]any{"dst": "10.2.0.0/16", "scope": 253},
		},
	})
	return a, func() []string {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(data, "*", "*[0-9a-f]")) // named after addresses
		must(t, err)
		files = slices.DeleteFunc(files, func(f string) bool {
			_, err := netip.ParseAddr(filepath.Base(f))
			return err != nil
		})
		return files
	}
}

// nothing fails the test if leases are left.
func nothing(t *testing.T, leases func() []string) {
	t.Helper()
	if got := leases(); len(got) > 0 {
		t.Errorf("the IPAM plugin still has %q", got)
	}
}

func TestHostLocalFromADDToDEL(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	before := p.snapshot(t)
	a, leases := w.hostLocal(t, p)
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	must(t, os.WriteFile(resolv, []byte("nameserver 10.96.0.10\nsearch cluster.local\n"), 0o600))
	a.network = a.network.With("ipam.resolvConf", resolv)
	res := a.mustAdd(t)
	if got := fmt.Sprint(addrs(res)); got != "[172.16.10.130 fd00:10::130]" || len(leases()) != 2 {
		t.Fatalf("addresses %s, leases %q", got, leases())
	}
	if diff := cmp.Diff(types.DNS{Nameservers: []string{"10.96.0.10"}, Search: []string{"cluster.local"}}, res.DNS); diff != "" {
		t.Errorf("dns (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"default via 172.16.10.254 dev net1 proto 82 src 172.16.10.130",
		"10.2.0.0/16 dev net1 proto 82 scope link src 172.16.10.130",
		"172.16.10.0/24 dev net1 proto 82 scope link src 172.16.10.130",
		"fd00:10::/64 dev net1 proto 82 src fd00:10::130 metric 1024 pref medium",
		"default via fd00:10::fe dev net1 proto 82 src fd00:10::130 metric 1024 mtu 1400 pref medium",
	}, p.routes(t, "100")); diff != "" {
		t.Errorf("table 100 (-want +got)\n%s", diff)
	}
	all(t, "table 300", p.routes(t, "300"), []string{
		"10.1.0.0/16 via 172.16.10.253 dev net1 proto 82 src 172.16.10.130 metric 7 mtu 1400 advmss 1360",
	})
	told := false
	for _, r := range res.Routes {
		told = told || r.Dst.String() == "10.1.0.0/16" && r.MTU == 1400 && r.AdvMSS == 1360 && r.Priority == 7 && r.Table != nil && *r.Table == 300
	}
	if !told {
		t.Errorf("the result has the routes %v", res.Routes)
	}
	for _, addr := range addrs(res) {
		w.leaf.MustRun(t, "ping", "-n", "-q", "-c", "1", "-W", "3", addr.String())
	}
	a.mustCheck(t)
	if diff := cmp.Diff(res, a.mustAdd(t)); diff != "" {
		t.Errorf("result (-first +second ADD)\n%s", diff)
	}
	a.mustDel(t)
	nothing(t, leases)
	p.unchanged(t, before)
	w.noRecords(t)
	a.mustDel(t)

	a.network = a.network.With("dns", map[string]any{"nameservers": []any{"192.0.2.53"}})
	if got := a.mustAdd(t).DNS.Nameservers; !cmp.Equal(got, []string{"192.0.2.53"}) {
		t.Errorf("nameservers %q, want those of the configuration", got)
	}
}
