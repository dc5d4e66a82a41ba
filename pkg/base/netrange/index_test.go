// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package netrange_test

import (
	"math"
	"math/big"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
)

// An address has one host index, which counts from the first address of the subnet and
// leads back to the address. It is in the host indexes of the subnet if and only if the
// address is in the subnet.
func FuzzIndex(f *testing.F) {
	for _, s := range []string{"10.0.0.0/8", "10.0.0.128/25", "0.0.0.0/0", "10.1.2.3/32", "fd00::/64", "fd00::8000:0:0:0/49", "::/0", "::ffff:0:0/95"} {
		for _, a := range []string{"10.0.0.129", "10.255.255.255", "0.0.0.0", "fd00::1", "fd00::ffff:0:0:1", "::ffff:1"} {
			f.Add(netip.MustParseAddr(a).AsSlice(), netip.MustParsePrefix(s).Addr().AsSlice(), netip.MustParsePrefix(s).Bits())
		}
	}
	f.Fuzz(func(t *testing.T, host, network []byte, bits int) {
		a, ok := netip.AddrFromSlice(host)
		n, ok2 := netip.AddrFromSlice(network)
		p, err := n.Prefix(bits)
		if !ok || !ok2 || err != nil || a.BitLen() != n.BitLen() || a.Is4In6() || n.Is4In6() {
			t.Skip()
		}
		i := netrange.Index(a, p)
		if back := netrange.AtIndex(i, p); back != a {
			t.Errorf("%v has host index %v in %v, which is %v", a, i, p, back)
		}
		all := netrange.Of(p).Indexes(p)
		if all.First != netip.IPv6Unspecified() || all.Contains(i) != p.Contains(a) {
			t.Errorf("%v has host indexes %v, and %v has %v", p, all, a, i)
		}
		if p.Contains(a) {
			want := new(big.Int).Sub(netrange.Number(a), netrange.Number(p.Addr()))
			if got := netrange.Number(i); got.Cmp(want) != 0 {
				t.Errorf("%v is number %v in %v, its host index is %v", a, want, p, got)
			}
			if small := netrange.ToNumber(i); want.IsUint64() && small != want.Uint64() || !want.IsUint64() && small != math.MaxUint64 {
				t.Errorf("ToNumber of %v is %d", want, small)
			}
		}
	})
}

func TestNumbersBeyondASubnetAreNoAddressesOfIt(t *testing.T) {
	t.Parallel()
	if n := netrange.ToNumber(netip.MustParseAddr("::1:0:0:0:5")); n != math.MaxUint64 {
		t.Errorf("one past 64 bits is number %d", n)
	}
	if r := netrange.Numbers(7, 1<<32); r.String() != "::7-::1:0:0" {
		t.Errorf("the host indexes 7 to 2^32 are %v", r)
	}
	for subnet, n := range map[string]uint64{
		"10.0.0.0/24": 256, "10.0.1.0/24": 257, "10.0.255.0/24": math.MaxUint64, "0.0.0.0/0": 1 << 32, "fd00::/96": 1 << 32, "10.0.0.1/32": 1,
	} {
		p := netip.MustParsePrefix(subnet)
		if a := netrange.AtNumber(n, p); p.Contains(a) {
			t.Errorf("%s: number %d is %v", subnet, n, a)
		}
		if a := netrange.AtNumber(0, p); a != p.Addr() {
			t.Errorf("%s: number 0 is %v", subnet, a)
		}
	}
}

// Sets of small numbers are checked against the definition, one by one.
func FuzzCommon(f *testing.F) {
	f.Add([]byte{1, 5, 9, 3}, []byte{2, 1, 9, 0})
	f.Add([]byte{0, 255, 7, 7}, []byte{200, 100, 0, 0, 100, 10})
	f.Fuzz(func(t *testing.T, one, other []byte) {
		a, b := ranges(one), ranges(other)
		got := netrange.Common(a, b)
		for i := range 512 {
			if want := holds(a, at(i)) && holds(b, at(i)); holds(got, at(i)) != want || netrange.Has(got, at(i)) != want {
				t.Errorf("%v in %s and %s: got %v, want %v", at(i), print(a), print(b), !want, want)
			}
		}
		if diff := cmp.Diff(print(got), print(netrange.Common(b, a))); diff != "" {
			t.Errorf("the other way round: %s", diff)
		}
	})
}
