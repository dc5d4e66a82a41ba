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

func TestConflictOnOneRailMovesAllToAnotherHostPart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rails)
	c := w.listed(cnitest.Subnet4).With("probe.conflict.wait", "100ms")
	a := w.attach(c, w.podNamed(t, "trainer"), "net1")
	was := each(t, a, a.mustAdd(t), 1)
	a.mustDel(t)
	// The pod would get its addresses back, but for a machine that took one.
	taken := was[5].addrs[0]
	w.leaf.IP(t, fmt.Sprintf("addr add %s/24 dev leaf5", taken))
	again := w.attach(c, w.podNamed(t, "trainer"), "net1")
	is := each(t, again, again.mustAdd(t), 1)
	if !aligned(is) || slots(is)[0] == slots(was)[0] {
		t.Errorf("the rails have the host parts %v, want another one than %d for all", slots(is), slots(was)[0])
	}
	if got, want := w.leases(t, "conflict"), []string{"all " + taken.String()}; !slices.Equal(got, want) {
		t.Errorf("in quarantine for a conflict: %q, want %q", got, want)
	}
	if got := w.leases(t, "leased"); len(got) != rails {
		t.Errorf("leased: %q, want an address for each rail", got)
	}
	if err := again.check(t); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}

func TestAddressesFollowFromTheNICs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	for i := range rails {
		w.wire(t, i)
		w.IP(t, fmt.Sprintf("addr add 172.16.%d.3/24 dev rail%d", 10+i, i))
		w.leaf.IP(t, fmt.Sprintf("addr add 172.16.%d.254/24 dev leaf%d", 10+i, i))
	}
	c := w.matched().With("ipam", map[string]any{
		"type": "roce-ipam", "fromMaster": true, "gateway": "last", "derive": map[string]any{"base": 64, "perHost": 2},
	})
	// The node has .3, and so the addresses from 64 + 3 x 2 on.
	p := w.pod(t)
	before := p.snapshot(t)
	var made []attachment
	var got []byte
	for i := range 2 {
		q := p
		if i > 0 {
			q = w.pod(t)
		}
		a := w.attach(c, q, "net1")
		all := each(t, a, a.mustAdd(t), 1)
		if !aligned(all) {
			t.Errorf("the rails have the host parts %v, want one for all", slots(all))
		}
		made, got = append(made, a), append(got, slots(all)[0])
	}
	slices.Sort(got)
	if want := []byte{70, 71}; !slices.Equal(got, want) {
		t.Errorf("two pods have the host parts %v, want %v", got, want)
	}
	q := w.pod(t)
	w.attach(c, q, "net1").mustFail(t, 101)
	for _, a := range made {
		a.mustDel(t)
	}
	p.unchanged(t, before)
	w.IP(t, "addr del 172.16.16.3/24 dev rail6")
	if err := w.attach(c, q, "net1").mustFail(t, 102); !strings.Contains(err.Msg, "rail6") {
		t.Errorf("%v: want it to name the NIC without address", err)
	}
	w.nothingLeased(t)
	w.noRecords(t)
}

func TestSubnetsOfRailsAreInATableOfTheNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.host = "gpu-01"
	var entries []string
	for i := range rails {
		w.wire(t, i)
		w.leaf.IP(t, fmt.Sprintf("addr add 10.9.%d.2/31 dev leaf%d\naddr add fd00:9:%d::/127 dev leaf%d nodad", i, i, i, i))
		entries = append(entries, fmt.Sprintf(`[{"subnet": "10.9.%[1]d.2/31", "gateway": "10.9.%[1]d.2"}, {"subnet": "fd00:9:%[1]d::/127", "gateway": "fd00:9:%[1]d::"}]`, i))
	}
	file := filepath.Join(t.TempDir(), "rails.json")
	w.table = file
	write := func(node string, entries []string) {
		text := fmt.Sprintf(`{"nodes": {%q: [%s], "other": "whatever"}}`, node, strings.Join(entries, ","))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := w.matched().With("ipam", map[string]any{"type": "roce-ipam", "table": true})
	p := w.pod(t)
	before := p.snapshot(t)
	a := w.attach(c, p, "net1")
	write("gpu-01", entries)
	for i, one := range each(t, a, a.mustAdd(t), 2) {
		want := []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.9.%d.3", i)), netip.MustParseAddr(fmt.Sprintf("fd00:9:%d::1", i))}
		if !slices.Equal(one.addrs, want) {
			t.Errorf("rail %d has %v, want %v", i, one.addrs, want)
		}
		for _, addr := range one.addrs {
			w.leaf.MustRun(t, "ping", "-n", "-q", "-c", "1", "-w", "10", addr.String())
		}
	}
	if err := a.check(t); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	write("gpu-02", entries) // DEL needs no table
	a.mustDel(t)
	p.unchanged(t, before)
	for _, want := range []string{file, "gpu-01", "gpu-02"} {
		if err := a.mustFail(t, 7); !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want it to say %q", err, want)
		}
	}
	write("gpu-01", entries[:7])
	a.mustFail(t, 7)
	p.unchanged(t, before)
	w.nothingLeased(t)
	w.noRecords(t)
}
