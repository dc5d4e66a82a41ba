// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package netrange

import (
	"math/big"
	"net/netip"
	"slices"
	"sort"
)

// Minus returns the addresses that are in from and not in holes. The result is
// in ascending order, IPv4 before IPv6, and its ranges neither overlap nor
// touch. Both arguments may be in any order and may overlap. Minus changes
// neither.
func Minus(from, holes []Range) []Range {
	from, holes = merged(from), merged(holes)
	var out []Range
	for _, r := range from {
		next := r.First // everything of r before it is dealt with
		for i := Find(holes, next); i < len(holes) && holes[i].Overlaps(r); i++ {
			if next.Less(holes[i].First) {
				out = append(out, Range{next, holes[i].First.Prev()})
			}
			next = holes[i].Last.Next()
		}
		if r.Contains(next) {
			out = append(out, Range{next, r.Last})
		}
	}
	return out
}

// merged returns the same addresses in ascending order. It joins ranges that
// overlap or touch.
func merged(ranges []Range) []Range {
	in := slices.Clone(ranges)
	slices.SortFunc(in, func(a, b Range) int { return a.First.Compare(b.First) })
	var out []Range
	for _, r := range in {
		end := len(out) - 1
		if end < 0 || !(out[end].Overlaps(r) || out[end].Last.Next() == r.First) {
			out = append(out, r)
			continue
		}
		if out[end].Last.Less(r.Last) {
			out[end].Last = r.Last
		}
	}
	return out
}

// Clip returns the parts of ranges that lie in o, in ascending order.
func Clip(ranges []Range, o Range) []Range { return Common(ranges, []Range{o}) }

// Common returns the addresses that are in both sets, in ascending order.
func Common(a, b []Range) []Range {
	a, b = merged(a), merged(b)
	var out []Range
	for i, j := 0, 0; i < len(a) && j < len(b); {
		if a[i].Overlaps(b[j]) {
			out = append(out, Range{higher(a[i].First, b[j].First), lower(a[i].Last, b[j].Last)})
		}
		if a[i].Last.Less(b[j].Last) {
			i++
		} else {
			j++
		}
	}
	return out
}

func lower(a, b netip.Addr) netip.Addr {
	if b.Less(a) {
		return b
	}
	return a
}

func higher(a, b netip.Addr) netip.Addr {
	if a.Less(b) {
		return b
	}
	return a
}

// Has says whether an address is in ranges, which must be in ascending order.
func Has(ranges []Range, a netip.Addr) bool {
	i := Find(ranges, a)
	return i < len(ranges) && ranges[i].Contains(a)
}

// Find returns the index of the first range that ends at or after a. ranges
// must be in ascending order. If a range contains a, it is that one. If all
// ranges end before a, the result is len(ranges).
func Find(ranges []Range, a netip.Addr) int {
	return sort.Search(len(ranges), func(i int) bool { return !ranges[i].Last.Less(a) })
}

// Count returns the number of addresses in ranges that do not overlap. It is a
// big.Int because an IPv6 /64 has one address more than a uint64 can count.
func Count(ranges []Range) *big.Int {
	n := new(big.Int)
	for _, r := range ranges {
		n.Add(n, r.count())
	}
	return n
}

// At returns address number n, counted from 0, of ranges that do not overlap.
// It returns the zero Addr if there are not so many.
func At(ranges []Range, n *big.Int) netip.Addr {
	n = new(big.Int).Set(n)
	for _, r := range ranges {
		size := r.count()
		if n.Cmp(size) >= 0 {
			n.Sub(n, size)
			continue
		}
		n.Add(n, Number(r.First))
		b := r.First.AsSlice()
		a, _ := netip.AddrFromSlice(n.FillBytes(b))
		return a
	}
	return netip.Addr{}
}

func (r Range) count() *big.Int {
	n := Number(r.Last)
	n.Sub(n, Number(r.First))
	return n.Add(n, big.NewInt(1))
}

// Number returns an address as a number.
func Number(a netip.Addr) *big.Int { return new(big.Int).SetBytes(a.AsSlice()) }
