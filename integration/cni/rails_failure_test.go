// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// onRail6 lists what can fail on one rail of eight, by how far ADD gets.
func onRail6() []failure {
	taken := map[string]any{"routing": map[string]any{"defaultRoute": true}, "master": "rail6", "subnets": []any{cnitest.Subnet4(6)}}
	return []failure{
		{"no such master", 102, change("rails.6.master", "rail9")},
		{"the master is down", 102, onNode("link set dev rail6 down")},
		{"the master is another rail's by another name", 7, func(t *testing.T, w *world, _ *pod, c network) network {
			w.IP(t, "link property add dev rail5 altname second-port")
			return c.With("rails.6.master", "second-port")
		}},
		{"the MTU is larger than the master's", 7, func(t *testing.T, w *world, _ *pod, c network) network {
			w.IP(t, "link set dev rail6 mtu 1500")
			return c.With("mtu", 9000)
		}},
		{"a foreign link of the name", 4, inPod("link add net1-6 type bridge\nlink set dev net1-6 addrgenmode none")},
		{"a foreign link with the name as an altname", 4, inPod("link property add dev eth0 altname net1-6")},
		{"the pool is exhausted", 101, func(t *testing.T, w *world, _ *pod, c network) network {
			one := w.rail(6).Unasked().With("ipam.pool", "all").With("ipam.subnets.0.ranges", []any{"172.16.16.64"})
			w.attach(one, w.pod(t), "net1").mustAdd(t)
			return c.With("rails.6.subnets.0.ranges", []any{"172.16.16.64"})
		}},
		{"the table is taken", 105, func(t *testing.T, _ *world, p *pod, c network) network {
			p.IP(t, "route add 192.0.2.0/24 dev eth0 table 206")
			return c.With("routing.table", 200)
		}},
		{"the default route is taken", 105, change("rails.6", taken)},
		{"a foreign rule wins", 105, inPod("rule add from 172.16.16.0/24 lookup 50 priority 100")},
		{"the gateway is silent", 106, func(t *testing.T, w *world, _ *pod, c network) network {
			w.leaf.IP(t, "addr del 172.16.16.254/24 dev leaf6")
			return c.With("probe.gateway.timeout", "5ms")
		}},
		{"every address is taken on the wire", 100, func(t *testing.T, w *world, _ *pod, c network) network {
			// The kernel answers in time, which the test itself might not. No host
			// answers on the other rails.
			w.leaf.IP(t, "route add local 172.16.16.64/26 dev lo")
			return c.With("probe.conflict.wait", "100ms")
		}},
	}
}

// onNode is the spoil of a node on which another program did something before.
func onNode(script string) func(*testing.T, *world, *pod, network) network {
	return func(t *testing.T, w *world, _ *pod, c network) network {
		t.Helper()
		w.IP(t, script)
		return c
	}
}

// ofRail6 matches what tells rail 6 from the others: its interface, its master,
// an address of it, its table.
var ofRail6 = regexp.MustCompile(`net1-6|rail6|172\.16\.16\.|table "206"`)

func TestFailureOnOneRailLeavesNothingOfAll(t *testing.T) {
	t.Parallel()
	for _, f := range onRail6() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, rails)
			p := w.pod(t)
			good := w.listed(cnitest.Subnet4)
			c := f.spoil(t, w, p, good)
			pod, node, leased, files := p.snapshot(t), w.snapshot(t), w.leases(t, "leased"), w.files(t)
			err := w.attach(c, p, "net1").mustFail(t, f.code)
			if !ofRail6.MatchString(err.Error()) {
				t.Errorf("%v: want it to say on which rail", err)
			}
			p.unchanged(t, pod)
			w.unchanged(t, node)
			if got := w.leases(t, "leased"); !slices.Equal(got, leased) {
				t.Errorf("leased: %q, before %q", got, leased)
			}
			if len(files) == 0 {
				w.noRecords(t)
			}
			w.attach(good, p, "net1").mustDel(t) // what a runtime does after a failed ADD
			p.unchanged(t, pod)
		})
	}
}

func TestDelWithoutRecordRemovesAllRails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rails)
	p := w.pod(t)
	other := w.attach(w.rail(0).With("ipam.pool", "other").With("ipam.subnets.0.ranges", []any{"172.16.10.200"}), p, "net2")
	other.mustAdd(t)
	before, node := p.snapshot(t), w.snapshot(t)
	a := w.attach(w.matched(cnitest.Subnet4, cnitest.Subnet6), p, "net1")
	a.mustAdd(t)
	standing := p.snapshot(t)
	// The interfaces of rails are none of their own.
	for _, name := range []string{"net1-1", "net1-7", "net"} {
		b := a
		b.ifName = name
		b.mustDel(t)
	}
	p.unchanged(t, standing)
	if err := os.Remove(filepath.Join(w.state, "attachments", a.id, "net1.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.raw(t, "roce", "DEL", a.text(t)); err != nil {
		t.Fatalf("DEL: %v", err)
	}
	p.unchanged(t, before)
	w.unchanged(t, node)
	if got := w.leases(t, "leased"); len(got) != 1 {
		t.Errorf("leased: %q, want the address of the other attachment", got)
	}
	if err := other.check(t); err != nil {
		t.Errorf("CHECK of the other attachment: %v", err)
	}
	other.mustDel(t)
	w.noRecords(t)
}
