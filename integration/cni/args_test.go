// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

func TestLinkOnlyNetworkHasNeitherAddressNorRoute(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	before, main := p.snapshot(t), p.routes(t, "all")
	a := w.attach(w.rail(0).With("ipam", nil).With("dns", map[string]any{"nameservers": []any{"10.96.0.10"}}), p, "net1")
	res := a.mustAdd(t)
	if len(res.IPs) > 0 || len(res.Routes) > 0 || !cmp.Equal(res.DNS.Nameservers, []string{"10.96.0.10"}) {
		t.Errorf("got %v, want a link and dns", res)
	}
	if got := p.rules(t); len(got) > 0 {
		t.Errorf("rules %q, want none", got)
	}
	for _, route := range p.routes(t, "all") {
		if strings.Contains(route, "net1") && !strings.HasPrefix(route, "multicast ff00::/8") {
			t.Errorf("the route %q goes through net1; before: %q", route, main)
		}
	}
	if got := p.MustRun(t, "ip", "-oneline", "addr", "show", "dev", "net1"); strings.Contains(got, "inet") {
		t.Errorf("net1 has an address: %s", got)
	}
	a.mustDel(t)
	p.unchanged(t, before)
}

func TestSettingsAreThoseOfTheConfigurationOverOurs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	eth0 := p.setting(t, "net/ipv4/conf/eth0/arp_ignore")
	c := w.rail(0).With("sysctl", map[string]any{"net.ipv4.conf.IFNAME.arp_filter": "1", "net.ipv4.conf.IFNAME.rp_filter": 0})
	w.attach(c.With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)}), p, "net1").mustAdd(t)
	want := map[string]string{
		"ipv4/conf/net1/arp_ignore": "1", "ipv4/conf/net1/arp_announce": "2", "ipv4/conf/net1/arp_notify": "1",
		"ipv4/conf/net1/rp_filter": "0", "ipv4/conf/net1/arp_filter": "1", "ipv6/conf/net1/addr_gen_mode": "1",
		"ipv6/conf/net1/accept_ra": "0", "ipv6/conf/net1/disable_ipv6": "0", "ipv6/conf/net1/keep_addr_on_down": "1",
		"ipv6/conf/net1/ndisc_notify": "1", "ipv4/conf/eth0/arp_ignore": eth0,
	}
	for path, value := range want {
		if got := p.setting(t, "net/"+path); got != value {
			t.Errorf("%s is %s, want %s", path, got, value)
		}
	}
}

func TestLogGoesToTheFileAndNeverToStandardOutput(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	file := filepath.Join(t.TempDir(), "log", "roce.log")
	w.log = file
	c := w.rail(0).With("ipam.subnets.0.gateway", "172.16.10.253").With("probe.gateway", map[string]any{"mode": "warn", "timeout": "5ms"})
	a := w.attach(c, w.pod(t), "net1")
	a.mustAdd(t)
	b, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(b), "172.16.10.253") {
		t.Errorf("the log has %q, %v, want the silent gateway in it", b, err)
	}
	if a.stderr.Len() > 0 {
		t.Errorf("standard error has %q, want nothing", a.stderr)
	}
}
