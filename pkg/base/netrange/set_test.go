// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package netrange_test

import (
	"math/big"
	"net/netip"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
)

// parse reads ranges separated by blanks; print is its inverse.
func parse(t *testing.T, s string) []netrange.Range {
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

func print(ranges []netrange.Range) string {
	var out []string
	for _, r := range ranges {
		out = append(out, r.String())
	}
	return strings.Join(out, " ")
}

func TestMinusLeavesSortedRangesThatDoNotTouch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, from, holes, want string }{
		{"nothing from nothing", "", "10.0.0.1", ""},
		{"no holes", "10.0.0.9 10.0.0.1-10.0.0.3", "", "10.0.0.1-10.0.0.3 10.0.0.9"},
		{"neighbours become one", "10.0.0.4-10.0.0.7 10.0.0.0-10.0.0.3", "", "10.0.0.0-10.0.0.7"},
		{"overlaps become one", "10.0.0.0-10.0.0.9 10.0.0.2-10.0.0.3 10.0.0.5-10.0.0.12", "", "10.0.0.0-10.0.0.12"},
		{"hole in the middle", "10.0.0.0/29", "10.0.0.3", "10.0.0.0-10.0.0.2 10.0.0.4-10.0.0.7"},
		{"holes at both ends", "10.0.0.0/29", "10.0.0.7 10.0.0.0", "10.0.0.1-10.0.0.6"},
		{"hole over the end", "10.0.0.0/29", "10.0.0.5-10.0.0.20", "10.0.0.0-10.0.0.4"},
		{"hole over the beginning", "10.0.0.8/29", "10.0.0.0-10.0.0.9", "10.0.0.10-10.0.0.15"},
		{"hole as large", "10.0.0.0/29", "10.0.0.0/29", ""},
		{"hole over two ranges", "10.0.0.0-10.0.0.3 10.0.0.8-10.0.0.11", "10.0.0.2-10.0.0.9", "10.0.0.0-10.0.0.1 10.0.0.10-10.0.0.11"},
		{"overlapping holes", "10.0.0.0/28", "10.0.0.2-10.0.0.6 10.0.0.4-10.0.0.9 10.0.0.3", "10.0.0.0-10.0.0.1 10.0.0.10-10.0.0.15"},
		{"families are apart", "10.0.0.0/31 2001:db8::/127", "10.0.0.1 2001:db8::", "10.0.0.0 2001:db8::1"},
		{"the last addresses there are", "255.255.255.254/31 ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127", "255.255.255.255 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "255.255.255.254 ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"},
		{"all IPv4 but one", "0.0.0.0/0", "0.0.0.0", "0.0.0.1-255.255.255.255"},
		{"a /64 in the middle", "2001:db8::/64", "2001:db8::8000:0:0:0", "2001:db8::-2001:db8::7fff:ffff:ffff:ffff 2001:db8:0:0:8000::1-2001:db8::ffff:ffff:ffff:ffff"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := print(netrange.Minus(parse(t, c.from), parse(t, c.holes))); got != print(parse(t, c.want)) {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestMinusChangesNoArgument(t *testing.T) {
	t.Parallel()
	from, holes := parse(t, "10.0.0.8/29 10.0.0.0/29"), parse(t, "10.0.0.9 10.0.0.1")
	netrange.Minus(from, holes)
	if got := print(from) + " " + print(holes); got != "10.0.0.8-10.0.0.15 10.0.0.0-10.0.0.7 10.0.0.9 10.0.0.1" {
		t.Errorf("the arguments are now %s", got)
	}
}

func TestClipKeepsWhatLiesInside(t *testing.T) {
	t.Parallel()
	in := parse(t, "10.0.1.250-10.0.2.9 10.0.0.1-10.0.0.9 10.0.0.250-10.0.1.3 10.0.1.7 2001:db8::1")
	got := print(netrange.Clip(in, netrange.Of(netip.MustParsePrefix("10.0.1.0/24"))))
	if want := "10.0.1.0-10.0.1.3 10.0.1.7 10.0.1.250-10.0.1.255"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestCommonIsWhatBothHave(t *testing.T) {
	t.Parallel()
	a, b := parse(t, "10.0.0.1-10.0.0.9 10.0.0.20-10.0.0.29 2001:db8::1"), parse(t, "10.0.0.25-10.0.0.40 10.0.0.5-10.0.0.21 10.0.1.0")
	for _, tt := range []struct {
		got  []netrange.Range
		want string
	}{
		{netrange.Common(a, b), "10.0.0.5-10.0.0.9 10.0.0.20-10.0.0.21 10.0.0.25-10.0.0.29"},
		{netrange.Common(b, a), "10.0.0.5-10.0.0.9 10.0.0.20-10.0.0.21 10.0.0.25-10.0.0.29"},
		{netrange.Common(a, nil), ""},
	} {
		if got := print(tt.got); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}

func TestCountAndAtAgreeBeyondSixtyFourBits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ ranges, count, last string }{
		{"10.0.0.5", "1", "10.0.0.5"},
		{"10.0.0.0/8", "16777216", "10.255.255.255"},
		{"0.0.0.0/0", "4294967296", "255.255.255.255"},
		{"10.0.0.1-10.0.0.3 10.0.0.9", "4", "10.0.0.9"},
		{"2001:db8::/64", "18446744073709551616", "2001:db8::ffff:ffff:ffff:ffff"},
		{"::/0", "340282366920938463463374607431768211456", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
	} {
		ranges := parse(t, c.ranges)
		n := netrange.Count(ranges)
		if a := netrange.At(ranges, big.NewInt(0)); a != ranges[0].First {
			t.Errorf("number 0 of %s is %v", c.ranges, a)
		}
		if a := netrange.At(ranges, new(big.Int).Sub(n, big.NewInt(1))); a.String() != c.last {
			t.Errorf("the last of %s is %v, want %s", c.ranges, a, c.last)
		}
		if a := netrange.At(ranges, n); a.IsValid() {
			t.Errorf("%s has %v addresses and yet one more, %v", c.ranges, n, a)
		}
		if n.String() != c.count { // which At has not changed
			t.Errorf("%s has %v addresses, want %s", c.ranges, n, c.count)
		}
	}
}

func TestFindReturnsTheRangeThatHoldsAnAddressOrTheNext(t *testing.T) {
	t.Parallel()
	ranges := parse(t, "10.0.0.1-10.0.0.3 10.0.0.9")
	for a, want := range map[string]int{"10.0.0.0": 0, "10.0.0.1": 0, "10.0.0.3": 0, "10.0.0.4": 1, "10.0.0.9": 1, "10.0.0.10": 2, "::1": 2} {
		if got := netrange.Find(ranges, netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: got %d, want %d", a, got, want)
		}
	}
}

// Sets of small numbers are checked against the definition, one by one.
func FuzzMinus(f *testing.F) {
	f.Add([]byte{1, 5, 9, 3}, []byte{2, 1, 9, 0})
	f.Add([]byte{0, 255}, []byte{0, 0, 255, 0, 100, 10})
	f.Fuzz(func(t *testing.T, from, holes []byte) {
		in, out := ranges(from), ranges(holes)
		got := netrange.Minus(in, out)
		for i := range 512 {
			a := at(i)
			if want := holds(in, a) && !holds(out, a); holds(got, a) != want {
				t.Errorf("%v in %s minus %s: got %v, want %v", a, print(in), print(out), !want, want)
			}
		}
		for i := 1; i < len(got); i++ {
			if !got[i-1].Last.Next().Less(got[i].First) {
				t.Errorf("%v and %v touch or are out of order", got[i-1], got[i])
			}
		}
	})
}

// ranges makes a range of each two bytes: the first address and how many more.
func ranges(b []byte) []netrange.Range {
	var out []netrange.Range
	for i := 0; i+1 < len(b); i += 2 {
		out = append(out, netrange.Range{First: at(int(b[i])), Last: at(int(b[i]) + int(b[i+1]))})
	}
	return out
}

func at(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }

func holds(ranges []netrange.Range, a netip.Addr) bool {
	for _, r := range ranges {
		if r.Contains(a) {
			return true
		}
	}
	return false
}
