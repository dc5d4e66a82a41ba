// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package netrange_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
)

func TestParseReadsRangesAddressesAndPrefixes(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"10.0.0.1":             "10.0.0.1",
		"10.0.0.1-10.0.0.9":    "10.0.0.1-10.0.0.9",
		" 10.0.0.1 - 10.0.0.9": "10.0.0.1-10.0.0.9",
		"10.0.0.1-10.0.0.1":    "10.0.0.1",
		"10.0.0.0/30":          "10.0.0.0-10.0.0.3",
		"10.0.0.7/32":          "10.0.0.7",
		"0.0.0.0/0":            "0.0.0.0-255.255.255.255",
		"10.0.0.5/24":          "10.0.0.0-10.0.0.255",
		"10.128.0.0/9":         "10.128.0.0-10.255.255.255",
		"2001:DB8::/64":        "2001:db8::-2001:db8::ffff:ffff:ffff:ffff",
		"fd00::1-fd00::ff":     "fd00::1-fd00::ff",
		"::/0":                 "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	} {
		r, err := netrange.Parse(in)
		if err != nil || r.String() != want {
			t.Errorf("%q: got %v, %v, want %s", in, r, err, want)
		}
	}
}

func TestParseRefusesWhatHasNoOneSpelling(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                           "unable to parse IP",
		"-":                          "unable to parse IP",
		"10.0.0.1-":                  "unable to parse IP",
		"10.0.0.1-10.0.0.3-10.0.0.5": "ParseAddr",
		"10.0.0":                     "IPv4 address too short",
		"10.0.0.01":                  "leading zero",
		"10.0.0.0/33":                "prefix length out of range",
		"10.0.0.0/24-10.0.1.0/24":    "ParsePrefix",
		"10.0.0.9-10.0.0.1":          "ends before it starts",
		"10.0.0.1-fd00::1":           "mixes address families",
		"fd00::1-10.0.0.1":           "mixes address families",
		"::ffff:10.0.0.1":            "IPv4-mapped",
		"::ffff:10.0.0.0/120":        "IPv4-mapped",
		"10.0.0.1-::ffff:10.0.0.9":   "IPv4-mapped",
		"fe80::1%eth0":               "zone",
		"fe80::1-fe80::2%eth0":       "zone",
		"fe80::%eth0/64":             "zone",
	} {
		if r, err := netrange.Parse(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, %v, want an error with %q", in, r, err, want)
		}
	}
}

func TestRangesCompareWithinTheirFamily(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b             string
		overlaps, within bool // b within a
	}{
		{"10.0.0.1-10.0.0.9", "10.0.0.1-10.0.0.9", true, true},
		{"10.0.0.1-10.0.0.9", "10.0.0.9-10.0.0.12", true, false},
		{"10.0.0.1-10.0.0.9", "10.0.0.10-10.0.0.12", false, false},
		{"10.0.0.4-10.0.0.9", "10.0.0.1-10.0.0.5", true, false},
		{"10.0.0.1-10.0.0.9", "10.0.0.4", true, true},
		{"10.0.0.4", "10.0.0.1-10.0.0.9", true, false},
		{"0.0.0.0/0", "::/0", false, false},
		{"::/0", "10.0.0.1", false, false},
		{"::/0", "fd00::/8", true, true},
	} {
		a, b := parse(t, c.a)[0], parse(t, c.b)[0]
		if got := a.Overlaps(b); got != c.overlaps || b.Overlaps(a) != got {
			t.Errorf("%v and %v overlap: got %v and %v, want %v", a, b, got, b.Overlaps(a), c.overlaps)
		}
		if got := b.Within(a); got != c.within {
			t.Errorf("%v within %v: got %v, want %v", b, a, got, c.within)
		}
		if a.Contains(b.First) != a.Overlaps(netrange.Range{First: b.First, Last: b.First}) {
			t.Errorf("%v: Contains(%v) and Overlaps differ", a, b.First)
		}
	}
	if parse(t, "0.0.0.0/0")[0].Contains(netip.Addr{}) || parse(t, "::/0")[0].Contains(netip.Addr{}) {
		t.Error("a range contains the zero address")
	}
}

func TestUnusableAddressesAreThoseOfTheRFCs(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]map[string]string{
		"172.16.11.0/24": {"172.16.11.0": "the network address", "172.16.11.255": "the broadcast address"},
		"172.16.11.5/24": {"172.16.11.0": "the network address", "172.16.11.255": "the broadcast address"},
		"172.16.11.4/30": {"172.16.11.4": "the network address", "172.16.11.7": "the broadcast address"},
		"172.16.11.4/31": {}, "172.16.11.4/32": {},
		"fd00::/64":  {"fd00::": "the subnet-router anycast address"},
		"fd00::/126": {"fd00::": "the subnet-router anycast address"},
		"fd00::/127": {}, "fd00::/128": {},
	} {
		got := map[string]string{}
		for a, why := range netrange.Unusable(netip.MustParsePrefix(in)) {
			got[a.String()] = why
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", in, d)
		}
	}
}

// What Parse accepts is printed as text that Parse reads as the same range. The
// range has one family, is not IPv4-mapped, and contains its own ends.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"10.0.0.1", "10.0.0.1-10.0.0.9", "10.0.0.0/24", "fd00::1-fd00::ff", "fd00::/64", "::ffff:10.0.0.0/104",
		"::ffff:1.2.3.4-::ffff:1.2.3.5", "fe80::1%a-fe80::2%a", "10.0.0.9-10.0.0.1", "1-2-3", "/", "-", " 1.1.1.1 ", "0.0.0.0/0", "::/0",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := netrange.Parse(s)
		if err != nil {
			if r != (netrange.Range{}) {
				t.Errorf("%q: %v together with %v", s, r, err)
			}
			return
		}
		if again, err := netrange.Parse(r.String()); err != nil || again != r {
			t.Errorf("%q prints as %q, which reads as %v, %v", s, r, again, err)
		}
		if r.First.Is4() != r.Last.Is4() || r.First.Is4In6() || r.First.Zone() != "" || r.Last.Less(r.First) {
			t.Errorf("%q: %#v", s, r)
		}
		if !r.Contains(r.First) || !r.Contains(r.Last) || !r.Within(r) || !r.Overlaps(r) {
			t.Errorf("%q: %v does not hold its own ends", s, r)
		}
		if p, err := netip.ParsePrefix(s); err == nil && !prefixEnds(r, p) {
			t.Errorf("%q is %v", s, r)
		}
	})
}

// prefixEnds says whether r is all of p, by asking netip about its ends.
func prefixEnds(r netrange.Range, p netip.Prefix) bool {
	before, after := r.First.Prev(), r.Last.Next()
	return p.Contains(r.First) && p.Contains(r.Last) && !p.Contains(before) && !p.Contains(after)
}
