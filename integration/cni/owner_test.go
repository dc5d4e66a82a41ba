// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// pooled returns the configuration of one of upstream's plugins on rail 0, which leases
// from roce-ipam, without quarantine.
func (w *world) pooled(plugin string, subnets ...any) map[string]any {
	c := map[string]any{
		"type": plugin,
		"ipam": map[string]any{"type": "roce-ipam", "quarantine": "0s", "subnets": subnets},
	}
	switch plugin {
	case "macvlan":
		c["master"], c["mode"] = "rail0", "bridge"
	case "bridge":
		c["bridge"] = "br0"
	}
	return c
}

// secondRail returns the attachment of a pod by a list of such a plugin and of roce,
// which makes the interface rdma0 on rail 1 with addresses of its own. Both lease from
// the pool that has the name of the network.
func (w *world) secondRail(t testing.TB, p *pod, plugin string, subnet map[string]any) attachment {
	t.Helper()
	c := w.rail(1).With("name", "both").With("master", nil).Unasked()
	c = c.With("rails", []any{map[string]any{"master": "rail1", "ifName": "rdma0"}})
	c = c.With("ipam.subnets", []any{subnet}).With("ipam.quarantine", "0s")
	a := w.attach(c, p, "net1")
	a.path = append(a.path, upstream(t))
	a.before = []any{w.pooled(plugin, cnitest.Subnet4(0))}
	return a
}

// addresses returns the IPv4 addresses of an interface in the pod.
func (p *pod) addresses(t testing.TB, ifName string) []netip.Addr {
	t.Helper()
	out, err := p.Run("ip", "-4", "-oneline", "addr", "show", "dev", ifName)
	if err != nil {
		return nil // there is no such interface
	}
	var addrs []netip.Addr
	for line := range strings.Lines(out) {
		addrs = append(addrs, netip.MustParsePrefix(strings.Fields(line)[3]).Addr())
	}
	return addrs
}

// one returns the address of an interface that has one.
func (p *pod) one(t testing.TB, ifName string) netip.Addr {
	t.Helper()
	got := p.addresses(t, ifName)
	if len(got) != 1 {
		t.Fatalf("%s of %s has %v, want one address", ifName, p.name, got)
	}
	return got[0]
}

// mustLease fails the test unless exactly these addresses of a pool are leased.
func (w *world) mustLease(t testing.TB, when, pool string, want ...netip.Addr) {
	t.Helper()
	var lines []string
	for _, a := range want {
		lines = append(lines, fmt.Sprint(pool, " ", a))
	}
	got := w.leases(t, "leased")
	slices.Sort(got)
	slices.Sort(lines)
	if !slices.Equal(got, lines) {
		t.Fatalf("%s: leased are %q, want %q", when, got, lines)
	}
}

// host-local knows a lease by container and interface alone. A roce that fails before it
// has asked releases nothing there: the lease is that of the plugin before.
func TestARoceThatFailsBeforeItAskedReleasesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	ipam := map[string]any{
		"type": "host-local", "dataDir": t.TempDir(),
		"ranges": []any{[]any{map[string]any{"subnet": "172.16.10.0/24", "rangeStart": "172.16.10.130", "gateway": "172.16.10.254"}}},
	}
	first := w.pooled("macvlan")
	first["ipam"] = ipam
	a := w.attach(w.rail(0).With("name", "both").With("cniVersion", "1.0.0").With("ipam", ipam), p, "net1")
	a.path = append(a.path, upstream(t))
	a.before = []any{first}
	if _, err := a.add(t); err == nil {
		t.Fatal("two plugins made one interface")
	}
	if _, err := os.Stat(filepath.Join(ipam["dataDir"].(string), "both", p.one(t, "net1").String())); err != nil {
		t.Errorf("the lease of macvlan: %v", err)
	}
	a.mustDel(t)
}

// CNI forbids it, and upstream's ptp calls DEL of the IPAM plugin when it fails.
func TestARepeatedADDOfAnotherPluginKeepsTheLease(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"ptp", "macvlan", "bridge"} {
		t.Run(plugin, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			attached := func(p *pod) attachment {
				a := w.attach(network(w.pooled(plugin, cnitest.Subnet4(0))).With("name", "rail").With("cniVersion", "1.0.0"), p, "net1")
				a.path = append(a.path, upstream(t))
				return a
			}
			p, q := w.pod(t), w.pod(t)
			a, b := attached(p), attached(q)
			a.mustAdd(t)
			first := p.one(t, "net1")
			for range 2 {
				if _, err := a.add(t); err == nil {
					t.Error("ADD was called twice, and succeeded")
				}
				w.mustLease(t, "after the second ADD", "rail", first)
			}
			b.mustAdd(t)
			w.mustLease(t, "after ADD of another pod", "rail", first, q.one(t, "net1"))
			a.mustDel(t)
			a.mustAdd(t)
			w.mustLease(t, "after DEL and ADD", "rail", p.one(t, "net1"), q.one(t, "net1"))
		})
	}
}
