// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package netrange does the arithmetic of address ranges: parse, print, contain,
// overlap, and the addresses of a subnet that no host may have.
//
// It is pure and knows neither configuration nor leases; conf validates with it and
// ipam searches with it. This file is about one range, its host indexes and the blocks
// that pods must not use; set.go has the arithmetic of several ranges.
package netrange

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"strings"
)

// Range is the addresses First to Last, both included, of one family.
type Range struct{ First, Last netip.Addr }

// Parse reads "a-b", a single address, or a prefix.
func Parse(s string) (Range, error) {
	if strings.Contains(s, "/") {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return Range{}, err
		}
		if p.Addr().Is4In6() {
			return Range{}, fmt.Errorf("prefix %q is IPv4-mapped", s)
		}
		return Of(p), nil
	}
	first, last, dashed := strings.Cut(s, "-")
	a, err := parseAddr(first)
	if err != nil {
		return Range{}, err
	}
	if !dashed {
		return Range{a, a}, nil
	}
	b, err := parseAddr(last)
	if err != nil {
		return Range{}, err
	}
	if a.BitLen() != b.BitLen() {
		return Range{}, fmt.Errorf("range %q mixes address families", s)
	}
	if b.Less(a) {
		return Range{}, fmt.Errorf("range %q ends before it starts", s)
	}
	return Range{a, b}, nil
}

// parseAddr reads one end of a range. It refuses zones and IPv4-mapped forms: a
// pool's addresses are the same on every node and have one spelling.
func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(strings.TrimSpace(s))
	if err != nil {
		return netip.Addr{}, err
	}
	if a.Zone() != "" || a.Is4In6() {
		return netip.Addr{}, fmt.Errorf("address %q has a zone or is IPv4-mapped", s)
	}
	return a, nil
}

// Of returns all addresses of a prefix.
func Of(p netip.Prefix) Range {
	return Range{p.Masked().Addr(), last(p)}
}

func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Contains says whether a lies in r. In the order of addresses all of IPv4 are before
// those of IPv6, so none is between two addresses of the other family.
func (r Range) Contains(a netip.Addr) bool { return !a.Less(r.First) && !r.Last.Less(a) }

// Overlaps says whether r and o share an address.
func (r Range) Overlaps(o Range) bool { return !r.Last.Less(o.First) && !o.Last.Less(r.First) }

// Within says whether all of r lies in o.
func (r Range) Within(o Range) bool { return o.Contains(r.First) && o.Contains(r.Last) }

// String prints what Parse reads: "a-b", or "a" for a single address.
func (r Range) String() string {
	if r.First == r.Last {
		return r.First.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

// Unusable returns the addresses of p that no host may get, and why. In an IPv4
// subnet these are network and broadcast (RFC 1122 section 3.2.1.3), but not in
// a /31 or /32 (RFC 3021). In an IPv6 subnet it is the subnet-router anycast
// address (RFC 4291 section 2.6.1), but not in a /127 or /128 (RFC 6164).
func Unusable(p netip.Prefix) map[netip.Addr]string {
	host := p.Addr().BitLen() - p.Bits()
	if host < 2 {
		return nil
	}
	all := Of(p)
	if p.Addr().Is4() {
		return map[netip.Addr]string{all.First: "the network address", all.Last: "the broadcast address"}
	}
	return map[netip.Addr]string{all.First: "the subnet-router anycast address"}
}

// A host index is the number of an address in its subnet: the address without the bits of
// the network. It is an IPv6 address here, whatever the family of the subnet is. So sets
// of host indexes are Ranges, with the arithmetic of this package.

// Index returns the host index of an address in a subnet of its family. The host index of
// an address outside of the subnet is beyond those of the subnet.
func Index(a netip.Addr, subnet netip.Prefix) netip.Addr {
	return xor(a.As16(), subnet)
}

// AtIndex returns the address with a host index in a subnet. If the subnet is too small,
// the address is outside of the subnet.
func AtIndex(index netip.Addr, subnet netip.Prefix) netip.Addr {
	a := xor(index.As16(), subnet)
	if subnet.Addr().Is4() {
		return a.Unmap()
	}
	return a
}

func xor(a [16]byte, subnet netip.Prefix) netip.Addr {
	for i, b := range subnet.Masked().Addr().As16() {
		a[i] ^= b
	}
	return netip.AddrFrom16(a)
}

// Indexes returns the host indexes of the addresses of r in a subnet that contains r.
func (r Range) Indexes(subnet netip.Prefix) Range {
	return Range{Index(r.First, subnet), Index(r.Last, subnet)}
}

// Numbers returns the host indexes first to last.
func Numbers(first, last uint64) Range { return Range{numbered(first), numbered(last)} }

func numbered(n uint64) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[8:], n)
	return netip.AddrFrom16(b)
}

// ToNumber returns a host index as a number, and the highest number if the host index is
// too high for the type.
func ToNumber(index netip.Addr) uint64 {
	b := index.As16()
	if binary.BigEndian.Uint64(b[:8]) != 0 {
		return math.MaxUint64
	}
	return binary.BigEndian.Uint64(b[8:])
}

// AtNumber returns the address with a host index in a subnet, as AtIndex.
func AtNumber(n uint64, subnet netip.Prefix) netip.Addr { return AtIndex(numbered(n), subnet) }

// Special is a block of addresses that no interface of a pod may have,
// whatever subnet is configured.
type Special struct {
	Range
	Why string // completes "the address is ..."
}

// Specials lists the blocks. It leaves out link-local and private addresses: a
// rail may use them.
func Specials() []Special {
	block := func(s, why string) Special { return Special{Of(netip.MustParsePrefix(s)), why} }
	return []Special{
		block("0.0.0.0/8", "an address of this network (RFC 1122 section 3.2.1.3)"),
		block("127.0.0.0/8", "a loopback address"),
		block("224.0.0.0/4", "a multicast address"),
		block("255.255.255.255/32", "the limited broadcast address"),
		block("::/128", "the unspecified address"),
		block("::1/128", "the loopback address"),
		block("ff00::/8", "a multicast address"),
	}
}

// SpecialIn returns the special addresses that a subnet contains, as text for a
// message, or "" if it contains none.
func SpecialIn(p netip.Prefix) string {
	for _, s := range Specials() {
		if s.Overlaps(Of(p)) {
			return fmt.Sprintf("%s, %s", s.Range, s.Why)
		}
	}
	// Link-local addresses say nothing about the subnet they are on, and
	// IPv4-mapped ones are IPv4.
	for _, s := range []string{"169.254.0.0/16", "fe80::/10", "::ffff:0:0/96"} {
		if p.Overlaps(netip.MustParsePrefix(s)) {
			return s + ", link-local or IPv4-mapped addresses"
		}
	}
	return ""
}
