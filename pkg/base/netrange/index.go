// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package netrange

import (
	"encoding/binary"
	"math"
	"net/netip"
)

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
