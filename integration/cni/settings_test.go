// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// The kernel sets the MTU of IPv6 when a link comes up.
func TestSettingsHoldWhenTheLinkIsUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	c := w.rail(0).With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)}).With("sysctl", map[string]any{
		"net.ipv6.conf.IFNAME.mtu":                     "1300",
		"net.ipv4.conf.IFNAME.arp_filter":              "0x1",
		"net.ipv4.neigh.IFNAME.ucast_solicit":          "05",
		"net.ipv4.neigh.IFNAME.base_reachable_time_ms": 30000,
	})
	a := w.attach(c, p, "net1")
	a.mustAdd(t)
	for path, want := range map[string]string{"ipv6/conf/net1/mtu": "1300", "ipv4/conf/net1/arp_filter": "1", "ipv4/neigh/net1/ucast_solicit": "5"} {
		if got := p.setting(t, "net/"+path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	a.mustCheck(t)
	if out, err := w.rocectl("check"); err != nil || out != "train/"+p.name+" net1: ok\n" {
		t.Errorf("check: %v\n%s", err, out)
	}

	t.Log("repair after the link is gone")
	p.IP(t, "link del net1")
	w.mustRocectl(t, "repair", "--yes")
	if got := p.setting(t, "net/ipv6/conf/net1/mtu"); got != "1300" {
		t.Errorf("after repair, the MTU of IPv6 is %s", got)
	}
	if out, err := w.rocectl("check"); err != nil || out != "train/"+p.name+" net1: ok\n" {
		t.Errorf("check after repair: %v\n%s", err, out)
	}
}

// The kernel counts in ticks, and rounds.
func TestASettingThatTheKernelRoundsIsAnError(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	const value = "1001"
	p.MustRun(t, "sysctl", "-qw", "net.ipv4.neigh.eth0.retrans_time_ms="+value)
	rounded := p.setting(t, "net/ipv4/neigh/eth0/retrans_time_ms")
	before := p.snapshot(t)
	a := w.attach(w.rail(0).With("sysctl", map[string]any{"net.ipv4.neigh.IFNAME.retrans_time_ms": value}), p, "net1")
	if rounded == value { // the kernel counts milliseconds
		a.mustAdd(t)
		return
	}
	err := a.mustFail(t, 7)
	if !strings.Contains(err.Msg, rounded) || !strings.Contains(err.Msg, value) || !strings.Contains(err.Details, rounded) {
		t.Errorf("got %+v, want an error that names %s and %s", err, value, rounded)
	}
	p.unchanged(t, before)
	w.mustBeClean(t)
}

// The kernel limits the metrics of routes.
func TestMetricsOfRoutesThatTheKernelLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	route := map[string]any{"dst": "10.9.0.0/16", "mtu": 65521, "advmss": 65496}
	err := w.attach(w.rail(0).With("ipam.routes", []any{route}), p, "net1").mustFail(t, 7)
	if !strings.Contains(err.Msg, "ipam.routes[0].mtu") || !strings.Contains(err.Msg, "ipam.routes[0].advmss") {
		t.Errorf("got %v", err)
	}
	route["mtu"], route["advmss"] = 65520, 65495
	a := w.attach(w.rail(0).With("ipam.routes", []any{route}), p, "net1")
	a.mustAdd(t)
	a.mustCheck(t)
}
