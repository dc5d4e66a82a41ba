// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"testing"

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

func TestIPAMPluginNeverGivesTheHostsAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	a := w.attach(w.delegate("172.16.10.1"), w.pod(t), "net1")
	if out, err := a.raw(t, "roce-ipam", "ADD", a.text(t)); err == nil || err.Code != 101 {
		t.Errorf("got %s, %v, want error 101", out, err)
	}
}
