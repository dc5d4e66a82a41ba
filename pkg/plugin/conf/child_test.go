// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf_test

import (
	"testing"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

func TestNamesOfVLANsFitTheKernel(t *testing.T) {
	t.Parallel()
	seen := map[conf.LinkName]conf.VLAN{}
	for _, c := range []struct {
		vlan conf.VLAN
		want conf.LinkName
	}{
		{conf.VLAN{ID: 1, NIC: "ens1"}, "ens1.1"},
		{conf.VLAN{ID: 120, NIC: "ens1f0np0"}, "ens1f0np0.120"},
		{conf.VLAN{ID: 12, NIC: "enp11s0f0np0"}, "enp11s0f0np0.12"},
		{conf.VLAN{ID: 120, NIC: "enp11s0f0np0"}, "vlan120.ddbaa1"},
		{conf.VLAN{ID: 4094, NIC: "enp129s0f0np0"}, "vlan4094.5c0f63"},
		{conf.VLAN{ID: 4094, NIC: "enp129s0f1np1"}, "vlan4094.303449"},
	} {
		got := c.vlan.Name()
		if got != c.want || len(got) > 15 {
			t.Errorf("%+v: got %q, want %q", c.vlan, got, c.want)
		}
		if other, taken := seen[got]; taken {
			t.Errorf("%+v and %+v have the name %q", other, c.vlan, got)
		}
		seen[got] = c.vlan
	}
}
