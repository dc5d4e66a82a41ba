// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// protocols are the CNI versions that roce accepts.
var protocols = []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// hasCheck says whether a version has CHECK.
func hasCheck(version string) bool { return !strings.HasPrefix(version, "0.") || version == "0.4.0" }

func TestUpstreamsIPAMPluginsInEveryVersion(t *testing.T) {
	t.Parallel()
	for _, version := range protocols {
		for _, plugin := range []string{"host-local", "static"} {
			t.Run(version+" "+plugin, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 1)
				p := w.pod(t)
				before := p.snapshot(t)
				a := w.static(t, p, "172.16.10.130/24", "172.16.10.254", "fd00:10::130/64", "fd00:10::fe")
				leases := func() []string { return nil }
				if plugin == "host-local" {
					a, leases = w.hostLocal(t, p)
				}
				a.network = a.network.With("cniVersion", version).With("ipam.routes", []any{map[string]any{"dst": "10.1.0.0/16", "gw": "172.16.10.253"}})
				res := a.mustAdd(t)
				if got := fmt.Sprint(addrs(res)); got != "[172.16.10.130 fd00:10::130]" {
					t.Errorf("addresses %s", got)
				}
				if want := "10.1.0.0/16 via 172.16.10.253 dev net1 proto 82 src 172.16.10.130"; !slices.Contains(p.routes(t, "100"), want) {
					t.Errorf("table 100 has %q, want %q", p.routes(t, "100"), want)
				}
				if hasCheck(version) {
					if err := a.check(t); err != nil {
						t.Errorf("CHECK: %v", err)
					}
				}
				if out, err := w.rocectl("check"); err != nil {
					t.Errorf("rocectl check: %v\n%s", err, out)
				}
				a.mustDel(t)
				nothing(t, leases)
				p.unchanged(t, before)
				w.noRecords(t)
			})
		}
	}
}
