// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// tunings are what tuning can set, and the property that roce then finds changed.
var tunings = []struct {
	key     string
	value   any
	changed string
}{
	{"mtu", 1400, "MTU"},
	{"mac", "02:00:00:00:00:99", "MAC"},
	{"sysctl", map[string]any{"net.ipv4.conf.IFNAME.arp_ignore": "0"}, "arp_ignore"},
}

// then returns the attachment with another plugin behind roce.
func (a attachment) then(t testing.TB, plugin map[string]any) attachment {
	t.Helper()
	a.path = append(a.path[:len(a.path):len(a.path)], upstream(t))
	a.after = append(a.after[:len(a.after):len(a.after)], plugin)
	return a
}

func TestCheckAcceptsWhatTuningSets(t *testing.T) {
	t.Parallel()
	for _, tune := range tunings {
		t.Run(tune.key, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := w.pod(t)
			before := p.snapshot(t)
			a := w.attach(w.rail(0), p, "net1").
				then(t, map[string]any{"type": "tuning", tune.key: tune.value, "dataDir": t.TempDir()})
			first := a.mustAdd(t)
			a.mustCheck(t)
			tuned := p.snapshot(t)
			w.reportsChanged(t, p, tune.changed)
			if diff := cmp.Diff(first, a.mustAdd(t)); diff != "" {
				t.Errorf("result (-first +second ADD)\n%s", diff)
			}
			p.unchanged(t, tuned)
			says := "intact"
			if tune.key == "mtu" {
				says = "restored\nip -n " + p.Name + " link set dev net1 mtu 9000 up"
			}
			if out, err := w.rocectl("repair", "--yes"); err != nil || out != "# train/"+p.name+" net1: "+says+"\n" {
				t.Errorf("repair: %v\n%s", err, out)
			}
			if tune.key != "mtu" {
				p.unchanged(t, tuned)
			}
			a.mustDel(t)
			p.unchanged(t, before)
			w.mustBeClean(t)
		})
	}
}

// reportsChanged fails the test unless rocectl check says that the interface is whole,
// and that another program has changed a property.
func (w *world) reportsChanged(t testing.TB, p *pod, property string) {
	t.Helper()
	out, err := w.rocectl("check")
	changed, ok := strings.CutSuffix(out, "train/"+p.name+" net1: ok\n")
	if err != nil || !ok || !strings.Contains(changed, "changed by another program") || !strings.Contains(changed, property) {
		t.Errorf("rocectl check: %v, want that another program has changed %s, got\n%s", err, property, out)
	}
}

// sbr gives each address a table of its own, and moves the routes of the main table there.
// A second ADD must not take the interface from the pod for that.
func TestWhatSBRDoesIsNoDamage(t *testing.T) {
	t.Parallel()
	dual := []any{cnitest.Subnet4(0), cnitest.Subnet6(0)}
	routes := []any{map[string]any{"dst": "198.51.100.0/24"}, map[string]any{"dst": "2001:db8::/32"}}
	for name, change := range map[string]func(network) network{
		"both families": func(c network) network { return c.With("ipam.subnets", dual) },
		"main table": func(c network) network {
			return c.With("ipam.subnets", dual).With("ipam.routes", routes).With("routing.mode", "main")
		},
		"default route": func(c network) network {
			return c.With("ipam.subnets", dual).With("routing.defaultRoute", true).With("routing.metric", 50)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := w.pod(t)
			before := p.snapshot(t)
			a := w.attach(change(w.rail(0)).With("cniVersion", "1.0.0"), p, "net1").then(t, map[string]any{"type": "sbr"})
			res := a.mustAdd(t)
			a.mustCheck(t)
			w.reportsChanged(t, p, "route")
			index := p.MustRun(t, "ip", "-o", "link", "show", "dev", "net1")
			alone := a
			alone.after = nil
			if diff := cmp.Diff(res.IPs, alone.mustAdd(t).IPs); diff != "" {
				t.Errorf("addresses (-first +second ADD)\n%s", diff)
			}
			if got := p.MustRun(t, "ip", "-o", "link", "show", "dev", "net1"); got != index {
				t.Errorf("the second ADD made the interface again:\n%s\nwant\n%s", got, index)
			}
			for _, addr := range addrs(res) {
				w.leaf.MustRun(t, "ping", "-n", "-q", "-c", "1", "-W", "3", addr.String())
			}
			a.mustDel(t)
			p.unchanged(t, before)
			w.noRecords(t)
		})
	}
}
