// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
)

// set is a Used made of single addresses.
type set map[netip.Addr]bool

func (s set) used(a netip.Addr) (netip.Addr, bool) {
	if !s[a] {
		return netip.Addr{}, false
	}
	for s[a.Next()] {
		a = a.Next()
	}
	return a, true
}

// FuzzPick checks Pick on a /24: the address is usable and free, there is one
// whenever there can be one, and it is the first one from start on.
func FuzzPick(f *testing.F) {
	f.Add([]byte{}, []byte{}, byte(0))
	f.Add([]byte{10, 20}, []byte{10, 11, 12}, byte(11))
	f.Add([]byte{0, 255}, []byte{255, 0, 1}, byte(255))
	f.Add([]byte{5, 5, 7, 7, 9, 12}, []byte{5, 7, 9, 10, 11, 12}, byte(8))
	f.Fuzz(func(t *testing.T, bounds, taken []byte, start byte) {
		at := func(b byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, b}) }
		var usable []netrange.Range
		slices.Sort(bounds)
		bounds = slices.Compact(bounds)
		for i := 0; i+1 < len(bounds); i += 2 {
			// Ranges that touch are one for Pick.
			if n := len(usable); n > 0 && usable[n-1].Last.Next() == at(bounds[i]) {
				usable[n-1].Last = at(bounds[i+1])
				continue
			}
			usable = append(usable, netrange.Range{First: at(bounds[i]), Last: at(bounds[i+1])})
		}
		used := set{}
		for _, b := range taken {
			used[at(b)] = true
		}
		var want netip.Addr
		for i := range 256 {
			a := at(start + byte(i))
			if !used[a] && slices.ContainsFunc(usable, func(r netrange.Range) bool { return r.Contains(a) }) {
				want = a
				break
			}
		}
		got, ok := ipam.Pick(usable, at(start), used.used)
		if ok != want.IsValid() || got != want {
			t.Errorf("Pick(%v, %v) with %v used = %v, %v; want %v", usable, at(start), taken, got, ok, want)
		}
	})
}

func ExamplePick() {
	usable := []netrange.Range{{First: netip.MustParseAddr("172.16.11.1"), Last: netip.MustParseAddr("172.16.11.200")}}
	used := set{netip.MustParseAddr("172.16.11.9"): true, netip.MustParseAddr("172.16.11.10"): true}
	addr, _ := ipam.Pick(usable, netip.MustParseAddr("172.16.11.9"), used.used)
	fmt.Println(addr)
	// Output: 172.16.11.11
}
