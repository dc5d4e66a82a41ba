// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// In a list, roce passes on what the plugins before it have reported, and adds its own.
func TestRoceAddsItsRailsToTheResultOfThePluginsBefore(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"0.3.1", "1.1.0"} {
		for _, before := range []string{"ptp", "macvlan"} {
			t.Run(version+" "+before, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 2)
				p := w.pod(t)
				a := w.secondRail(t, p, before, cnitest.Subnet4(1))
				a.network = a.network.With("cniVersion", version)
				first := a.before[0].(map[string]any)
				first["dns"] = map[string]any{"nameservers": []any{"192.0.2.53"}}
				first["ipam"].(map[string]any)["routes"] = []any{map[string]any{"dst": "198.51.100.0/24"}}
				alone := a
				alone.network, alone.before = network(maps.Clone(first)), nil
				alone.network["name"], alone.network["cniVersion"] = "both", version
				want := alone.mustAdd(t)
				alone.mustDel(t)
				res := a.mustAdd(t)
				n := len(want.Interfaces)
				if len(res.Interfaces) != n+1 || res.Interfaces[n].Name != "rdma0" || res.Interfaces[n].Sandbox != p.Path {
					t.Fatalf("interfaces: %v, want those of %s and then rdma0", res.Interfaces, before)
				}
				if len(res.IPs) != 2 || *res.IPs[1].Interface != n || res.IPs[1].Address.IP.String() != p.one(t, "rdma0").String() {
					t.Fatalf("addresses: %v, want that of %s and then that of rdma0", res.IPs, before)
				}
				if diff := cmp.Diff(want, part(res, want), cmp.FilterPath(chosen, cmp.Ignore())); diff != "" {
					t.Errorf("what %s reported changed (-want +got)\n%s", before, diff)
				}
				a.mustCheckBehind(t, res)
				a.mustDel(t)
				w.mustBeClean(t)
			})
		}
	}
}

// mustCheckBehind calls CHECK of roce behind an upstream plugin, and of the whole list.
// Upstream's plugins look for all addresses of the result on their own interface, and do
// not find those of the rails (ValidateExpectedInterfaceIPs).
func (a attachment) mustCheckBehind(t testing.TB, res *current.Result) {
	t.Helper()
	if a.network["cniVersion"] == "0.3.1" {
		return // it has no CHECK
	}
	checked := a
	checked.network = maps.Clone(a.network)
	checked.network["prevResult"] = res
	if _, err := checked.raw(t, "roce", "CHECK", checked.text(t)); err != nil {
		t.Errorf("CHECK of roce: %v", err)
	}
	ours := fmt.Sprintf("Failed to match addr %s on interface net1", &res.IPs[len(res.IPs)-1].Address)
	if err := a.check(t); err == nil || err.Msg != ours {
		t.Errorf("CHECK of the list: got %v; upstream said %q", err, ours)
	}
}

// part returns the beginning of a result: as much as another one has.
func part(res, other *current.Result) *current.Result {
	out := *res
	out.Interfaces, out.IPs = res.Interfaces[:len(other.Interfaces)], res.IPs[:len(other.IPs)]
	out.Routes = res.Routes[:min(len(res.Routes), len(other.Routes))]
	return &out
}

// chosen says whether a plugin chooses a value again in each ADD.
func chosen(p cmp.Path) bool {
	path := p.GoString()
	return strings.Contains(path, "Interfaces[0]") && !strings.HasSuffix(path, ".Sandbox") || strings.Contains(path, ".Mac")
}

// A record describes one roce of a list. A second one must not pass for the first.
func TestASecondRoceInAListIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	own := func(c network) network {
		return c.With("ipam", map[string]any{"type": "roce-ipam", "subnets": []any{cnitest.Subnet4(0)}}).Unasked().With("rdma", "off")
	}
	main := own(w.rail(0))
	rails := func(i, ifName string) network {
		c := own(w.rail(1)).With("master", nil).With("rails", []any{map[string]any{"master": i, "ifName": ifName}})
		return c.With("ipam.subnets", []any{cnitest.Subnet4(1)})
	}
	adopt := network{"type": "roce", "rdma": "off"}
	macvlan := network(w.pooled("macvlan", cnitest.Subnet4(0)))
	for name, list := range map[string][]network{
		"master, rails":               {main, rails("rail1", "r1")},
		"master, the same master":     {main, main},
		"rails, other rails":          {rails("rail0", "r0"), rails("rail1", "r1")},
		"rails, the same rails":       {rails("rail0", "r0"), rails("rail0", "r0")},
		"rails, macvlan, other rails": {rails("rail0", "r0"), macvlan, rails("rail1", "r1")},
		"master, adopt":               {main, adopt},
		"macvlan, adopt, rails":       {macvlan, adopt, rails("rail1", "r1")},
		"macvlan, rails, adopt":       {macvlan, rails("rail1", "r1"), adopt},
		"macvlan, adopt, the same":    {macvlan, adopt, adopt},
		"macvlan, adopt, adopt":       {macvlan, adopt, adopt.With("routing", map[string]any{"mode": "main"})},
	} {
		t.Run(name, func(t *testing.T) {
			p := w.pod(t)
			a := w.attach(list[len(list)-1].With("name", "list").With("cniVersion", "1.0.0"), p, "net1")
			a.path = append(a.path, upstream(t))
			for _, c := range list[:len(list)-1] {
				a.before = append(a.before, map[string]any(c))
			}
			if _, err := a.add(t); err == nil || err.Code != 7 || !strings.Contains(err.Details, "only once") {
				t.Errorf("got %+v, want error 7", err)
			}
			a.mustDel(t)
			w.mustBeClean(t)
			if out, err := a.plan(t); err == nil || !strings.Contains(out, "[7]") {
				t.Errorf("rocectl plan: %v\n%s", err, out)
			}
		})
	}
}

// plan returns what rocectl plan says of the list.
func (a attachment) plan(t testing.TB) (string, error) {
	t.Helper()
	list, err := a.call().List()
	must(t, err)
	file := filepath.Join(t.TempDir(), "list.json")
	must(t, os.WriteFile(file, list.Bytes, 0o600))
	return a.node.Run(filepath.Join(programs, "rocectl"), "plan", file)
}
