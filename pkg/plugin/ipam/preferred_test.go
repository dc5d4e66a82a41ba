// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
)

// ranges reads ranges separated by blanks.
func ranges(t testing.TB, s string) []netrange.Range {
	t.Helper()
	var out []netrange.Range
	for f := range strings.FieldsSeq(s) {
		r, err := netrange.Parse(f)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// usedIn is a Used for runs in a slice. It counts its calls.
func usedIn(runs []netrange.Range, asked *int) Used {
	runs = netrange.Minus(runs, nil)
	return func(a netip.Addr) (netip.Addr, bool) {
		*asked++
		i := netrange.Find(runs, a)
		if i == len(runs) || !runs[i].Contains(a) {
			return netip.Addr{}, false
		}
		return runs[i].Last, true
	}
}

func TestPickTakesTheFirstFreeAddressFromTheStart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, usable, used, start, want string }{
		{"nothing is usable", "", "", "10.0.0.1", ""},
		{"nothing is used", "10.0.0.1-10.0.0.9", "", "10.0.0.5", "10.0.0.5"},
		{"the start is used", "10.0.0.1-10.0.0.9", "10.0.0.5-10.0.0.6", "10.0.0.5", "10.0.0.7"},
		{"the start is inside a run", "10.0.0.1-10.0.0.9", "10.0.0.2-10.0.0.6", "10.0.0.5", "10.0.0.7"},
		{"all behind the start is used", "10.0.0.1-10.0.0.9", "10.0.0.5-10.0.0.20", "10.0.0.7", "10.0.0.1"},
		{"free before the start alone", "10.0.0.1-10.0.0.9", "10.0.0.1-10.0.0.3 10.0.0.5-10.0.0.9", "10.0.0.7", "10.0.0.4"},
		{"free in the next range", "10.0.0.1-10.0.0.3 10.0.0.9-10.0.0.12", "10.0.0.1-10.0.0.10", "10.0.0.2", "10.0.0.11"},
		{"free in the range before", "10.0.0.1-10.0.0.3 10.0.0.9-10.0.0.12", "10.0.0.2-10.0.0.20", "10.0.0.10", "10.0.0.1"},
		{"start between ranges", "10.0.0.1-10.0.0.3 10.0.0.9-10.0.0.12", "", "10.0.0.5", "10.0.0.9"},
		{"start behind all ranges", "10.0.0.1-10.0.0.3", "", "10.0.0.5", "10.0.0.1"},
		{"everything is used", "10.0.0.1-10.0.0.3 10.0.0.9", "10.0.0.0-10.0.0.9", "10.0.0.2", ""},
		{"the last IPv4 address", "255.255.255.250-255.255.255.254", "255.255.255.250-255.255.255.255", "255.255.255.252", ""},
		{"the last IPv6 address", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"},
		{"a /64 with one hole", "2001:db8::1-2001:db8::ffff:ffff:ffff:ffff", "2001:db8::-2001:db8::7fff:ffff:ffff:ffff 2001:db8:0:0:8000::1-2001:db8::ffff:ffff:ffff:ffff", "2001:db8::1234", "2001:db8::8000:0:0:0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			usable, asked := ranges(t, c.usable), 0
			got, ok := Pick(usable, netip.MustParseAddr(c.start), usedIn(ranges(t, c.used), &asked))
			if ok != (c.want != "") || ok && got != netip.MustParseAddr(c.want) {
				t.Errorf("got %v, %v; want %q", got, ok, c.want)
			}
			if asked > len(usable)+1 {
				t.Errorf("asked %d times for %d ranges", asked, len(usable))
			}
		})
	}
}

// FuzzPickInSubnet makes small subnets from bytes: two for each range, exclusion or
// run. What it picks is never used, excluded, reserved or outside, and it picks
// something whenever there is something.
func FuzzPickInSubnet(f *testing.F) {
	f.Add(uint8(24), []byte{1, 200}, []byte{7, 0}, []byte{1, 50}, []byte{9}, uint8(254), "pod-a")
	f.Add(uint8(28), []byte{}, []byte{}, []byte{0, 15}, []byte{}, uint8(0), "full")
	f.Add(uint8(31), []byte{}, []byte{}, []byte{0, 0}, []byte{}, uint8(9), "pair")
	f.Add(uint8(30), []byte{1, 1, 2, 1}, []byte{1, 0}, []byte{}, []byte{2}, uint8(3), "nothing left")
	f.Add(uint8(25), []byte{3, 9, 30, 60}, []byte{5, 1, 33, 2}, []byte{30, 10, 45, 3, 3, 9}, []byte{50, 51}, uint8(1), "")
	f.Fuzz(func(t *testing.T, bits uint8, in, exclude, used, reserved []byte, gateway uint8, pod string) {
		s := Subnet{
			Prefix:  netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, 0}), 24+int(bits)%9),
			Ranges:  pairs(in),
			Exclude: pairs(exclude),
			Gateway: byteAddr(int(gateway)),
		}
		var host []netip.Addr
		for _, b := range reserved {
			host = append(host, byteAddr(int(b)))
		}
		free := map[netip.Addr]bool{}
		for a := s.Prefix.Addr(); s.Prefix.Contains(a); a = a.Next() {
			inRange := len(in) < 2 || inAny(s.Ranges, a)
			if inRange && s.refuse(a, host) == "" && !inAny(pairs(used), a) {
				free[a] = true
			}
		}
		asked, usable := 0, s.usable(host)
		got, ok := Pick(usable, preferred(usable, Owner{PodName: pod, ContainerID: "c"}), usedIn(pairs(used), &asked))
		if ok != (len(free) > 0) || ok && !free[got] {
			t.Errorf("got %v, %v of %d free addresses; usable %v", got, ok, len(free), usable)
		}
	})
}

func pairs(b []byte) []netrange.Range {
	var out []netrange.Range
	for i := 0; i+1 < len(b); i += 2 {
		out = append(out, netrange.Range{First: byteAddr(int(b[i])), Last: byteAddr(min(int(b[i])+int(b[i+1]), 255))})
	}
	return out
}

func byteAddr(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}) }

func inAny(ranges []netrange.Range, a netip.Addr) bool {
	for _, r := range ranges {
		if r.Contains(a) {
			return true
		}
	}
	return false
}

// The start is a hash of the pod's name, so that it comes back to it, and all
// starts are about equally likely.
func TestPreferredAddressStaysAndIsSpreadOut(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"10.0.0.1-10.0.0.16", "10.0.0.1-10.0.0.4 10.0.0.9-10.0.0.20", "2001:db8::/124"} {
		usable, count := ranges(t, s), map[netip.Addr]int{}
		for i := range 1600 {
			o := Owner{PodNamespace: "ns", PodName: fmt.Sprint("job-", i), IfName: "net1", ContainerID: "a"}
			a := preferred(usable, o)
			count[a]++
			if o.ContainerID, o.PodUID = "b", "other"; preferred(usable, o) != a {
				t.Errorf("%v starts elsewhere as another container", o)
			}
			if o.IfName = "net2"; i == 0 && preferred(usable, o) == a && preferred(usable, Owner{PodName: "x"}) == a {
				t.Errorf("everything starts at %v", a)
			}
		}
		for a, n := range count {
			if !inAny(usable, a) || n < 50 || n > 160 {
				t.Errorf("%s: %d of 1600 pods start at %v", s, n, a)
			}
		}
		if len(count) != 16 {
			t.Errorf("%s: %d starts, want 16", s, len(count))
		}
	}
}
