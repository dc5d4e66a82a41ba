// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plugin

import (
	"slices"
	"testing"
	"testing/fstest"
)

func TestVendorsOfALinkAreThoseOfItsNICs(t *testing.T) {
	t.Parallel()
	sys := fstest.MapFS{
		"class/net/enp1s0/device/vendor": {Data: []byte("0x15b3\n")},
		"class/net/enp2s0/device/vendor": {Data: []byte("0x8086\n")},
		"class/net/bond0/lower_enp1s0":   {},
		"class/net/bond0/lower_enp2s0":   {},
		"class/net/bond0.7/lower_bond0":  {},
		"class/net/dummy0/mtu":           {},
	}
	for link, want := range map[string][]string{
		"enp1s0": {"15b3"}, "bond0": {"15b3", "8086"}, "bond0.7": {"15b3", "8086"}, "dummy0": nil, "none": nil,
	} {
		if got := vendors(sys, link); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", link, got, want)
		}
	}
}
