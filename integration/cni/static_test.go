// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"testing"
)

// static returns an attachment with addresses from the real static plugin, as pairs
// of address and gateway.
func (w *world) static(t *testing.T, p *pod, pairs ...string) attachment {
	t.Helper()
	list := []any{}
	for i := 0; i < len(pairs); i += 2 {
		address := map[string]any{"address": pairs[i]}
		if pairs[i+1] != "" {
			address["gateway"] = pairs[i+1]
		}
		list = append(list, address)
	}
	return w.from(p, upstream(t), map[string]any{"type": "static", "addresses": list})
}

// Configurations of macvlan, of which the type alone has changed, and what
// this version needs: rdma off.
func TestConfigurationsOfMacvlanGoOnWorking(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	before := p.snapshot(t)
	for file, want := range map[string][]string{
		"macvlan-static.json": {
			"172.16.10.0/24 dev net1 proto kernel scope link src 172.16.10.70",
			"10.64.0.0/10 via 172.16.10.254 dev net1 proto 82",
		},
		"macvlan-host-local.json": {
			"172.16.10.0/24 dev net1 proto kernel scope link src 172.16.10.130",
			"10.64.0.0/10 via 172.16.10.254 dev net1 proto 82",
		},
	} {
		c := w.example(t, file)
		if file == "macvlan-host-local.json" {
			c = c.With("ipam.dataDir", t.TempDir())
		}
		a := w.attach(c, p, "net1")
		a.path = append(a.path, upstream(t))
		a.mustAdd(t)
		all(t, file, p.routes(t, "main"), append(want, "default via 10.244.1.1 dev eth0"))
		a.mustDel(t)
		p.unchanged(t, before)
	}
}
