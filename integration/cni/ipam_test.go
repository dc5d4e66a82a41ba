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

// delegate is what another main plugin's configuration looks like, with keys
// that only that plugin knows.
func (n *node) delegate(ranges ...any) network {
	subnet := cnitest.Subnet4(0)
	subnet["ranges"] = ranges
	return network{
		"cniVersion": "1.0.0", "name": "sriov-net", "type": "sriov", "deviceID": "0000:0b:00.2", "vlan": 11,
		"ipam": map[string]any{
			"type": "roce-ipam", "pool": "shared", "subnets": []any{subnet},
			"routes": []any{map[string]any{"dst": "10.1.0.0/16"}, map[string]any{"dst": "10.2.0.0/16", "gw": "172.16.10.253"}},
		},
	}
}

func TestIPAMPluginLeasesForOtherPlugins(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	before := p.snapshot(t)
	a := w.attach(w.delegate("172.16.10.64"), p, "net1")
	for range 2 { // idempotent
		out, err := a.raw(t, "roce-ipam", "ADD", a.text(t))
		if err != nil {
			t.Fatal(err)
		}
		want := `{"cniVersion": "1.0.0", "ips": [{"address": "172.16.10.64/24", "gateway": "172.16.10.254"}],
			"routes": [{"dst": "10.1.0.0/16"}, {"dst": "10.2.0.0/16", "gw": "172.16.10.253"}]}`
		if diff := cmp.Diff(parse(t, want), parse(t, string(out))); diff != "" {
			t.Errorf("result (-want +got)\n%s", diff)
		}
	}
	p.unchanged(t, before)
	if got := w.leases(t, "leased"); !slices.Equal(got, []string{"shared 172.16.10.64"}) {
		t.Errorf("leased: %q", got)
	}
	if _, err := a.raw(t, "roce-ipam", "CHECK", a.text(t)); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	for range 2 {
		if _, err := a.raw(t, "roce-ipam", "DEL", a.text(t)); err != nil {
			t.Fatal(err)
		}
	}
	w.nothingLeased(t)
	if _, err := a.raw(t, "roce-ipam", "CHECK", a.text(t)); err == nil {
		t.Error("CHECK without lease: no error")
	}
}

func TestIPAMPluginSharesPoolsWithRoce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	ours := w.rail(0).With("ipam.pool", "shared").With("ipam.subnets.0.ranges", []any{"172.16.10.64-172.16.10.65"})
	theirs := w.attach(w.delegate("172.16.10.64-172.16.10.65"), p, "net1")
	out, err := theirs.raw(t, "roce-ipam", "ADD", theirs.text(t))
	if err != nil {
		t.Fatal(err)
	}
	got := addrOfResult(t, w.attach(ours, p, "net2").mustAdd(t))
	if strings.Contains(string(out), got.String()) {
		t.Errorf("roce gave %s, roce-ipam %s", got, out)
	}
	other := w.pod(t)
	full := w.attach(w.delegate("172.16.10.64-172.16.10.65"), other, "net1")
	if _, err := full.raw(t, "roce-ipam", "ADD", full.text(t)); err == nil || err.Code != 101 || !strings.HasPrefix(err.Msg, "roce-ipam[101] ") {
		t.Errorf("a full pool: got %v, want error 101 of roce-ipam", err)
	}
	w.attach(ours, other, "net1").mustFail(t, 101)
	if _, err := theirs.raw(t, "roce-ipam", "DEL", theirs.text(t)); err != nil {
		t.Fatal(err)
	}
	w.attach(ours, other, "net1").mustAdd(t)
}

func TestIPAMPluginNeverGivesTheHostsAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	a := w.attach(w.delegate("172.16.10.1"), w.pod(t), "net1")
	if out, err := a.raw(t, "roce-ipam", "ADD", a.text(t)); err == nil || err.Code != 101 {
		t.Errorf("got %s, %v, want error 101", out, err)
	}
}

func TestIPAMPluginDeletesWithAnyConfiguration(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	for i, spoil := range []func(attachment) attachment{
		func(a attachment) attachment { a.network = a.network.With("ipam.subnetz", 1); return a },
		func(a attachment) attachment { a.network = a.network.With("ipam.subnets", "all"); return a },
		func(a attachment) attachment { a.netns = ""; return a },
		func(a attachment) attachment { a.args = [][2]string{{"Unknown", "x"}}; return a },
	} {
		a := w.attach(w.delegate("172.16.10.64-172.16.10.80"), p, fmt.Sprintf("net%d", i))
		if _, err := a.raw(t, "roce-ipam", "ADD", a.text(t)); err != nil {
			t.Fatal(err)
		}
		a = spoil(a)
		if _, err := a.raw(t, "roce-ipam", "DEL", a.text(t)); err != nil {
			t.Errorf("DEL %d: %v", i, err)
		}
		w.nothingLeased(t)
	}
}
