// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package netrange_test

import (
	"net/netip"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
)

func TestSpecialsHoldWhatNetipCallsSpecial(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"0.0.0.0": true, "0.1.2.3": true, "127.0.0.1": true, "127.255.255.255": true,
		"224.0.0.1": true, "239.255.255.255": true, "255.255.255.255": true,
		"::": true, "::1": true, "ff02::1": true, "ffff::": true,
		"1.0.0.0": false, "10.0.0.1": false, "126.255.255.255": false, "128.0.0.0": false,
		"169.254.1.1": false, "223.255.255.255": false, "240.0.0.1": false,
		"::2": false, "2001:db8::1": false, "fe80::1": false, "fd00::1": false, "feff::": false,
	} {
		a, got := netip.MustParseAddr(s), false
		for _, b := range netrange.Specials() {
			got = got || b.Contains(a)
		}
		if got != want {
			t.Errorf("%s: got %v, want %v", s, got, want)
		}
		if (a.IsMulticast() || a.IsLoopback() || a.IsUnspecified()) && !got {
			t.Errorf("%s is special for netip and not for us", s)
		}
	}
}

func TestASubnetIsToldWhatItHasThatNoPodMayHave(t *testing.T) {
	t.Parallel()
	const linkLocal = ", link-local or IPv4-mapped addresses"
	for s, want := range map[string]string{
		"10.0.0.0/8": "", "fec0::/10": "", "fd00::/8": "", "169.253.0.0/16": "", "128.0.0.0/8": "",
		"127.3.0.0/16": "127.0.0.0-127.255.255.255, a loopback address", "192.0.0.0/2": "224.0.0.0-239.255.255.255, a multicast address",
		"255.255.255.0/24": "255.255.255.255, the limited broadcast address", "::/64": "::, the unspecified address",
		"169.254.7.0/24": "169.254.0.0/16" + linkLocal, "febf::/16": "fe80::/10" + linkLocal, "fe80::/64": "fe80::/10" + linkLocal, "::ffff:10.0.0.0/104": "::ffff:0:0/96" + linkLocal,
	} {
		if got := netrange.SpecialIn(netip.MustParsePrefix(s)); got != want {
			t.Errorf("%s: got %q, want %q", s, got, want)
		}
	}
}
