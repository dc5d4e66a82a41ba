// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"bytes"
	"encoding/binary"
	"iter"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// nl finds the byte order out when it first needs it and keeps it in a variable
// without lock; asked here, nobody races for it.
var _ = nl.NativeEndian()

// request returns a request with its fixed part; attributes follow with
// AddData.
func request(typ, flags int, fixed nl.NetlinkRequestData) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(typ, flags)
	req.AddData(fixed)
	return req
}

// creation makes the kernel refuse what exists already.
const creation = unix.NLM_F_CREATE | unix.NLM_F_EXCL

// attributes yields the attributes of a message, without the flags in their
// types.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	const header = unix.SizeofRtAttr
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= header {
			n := int(binary.NativeEndian.Uint16(b))
			if n < header || n > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&nl.NLA_TYPE_MASK, b[header:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}

// number reads a 32-bit attribute, 0 if it is shorter.
func number(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// text reads a string attribute, with or without its final zero.
func text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// addr reads an address attribute, the zero value if it is none.
func addr(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// prefix returns the prefix of an address attribute; without one it is that
// of all addresses of the family.
func prefix(family uint8, b []byte, bits uint8) netip.Prefix {
	a := addr(b)
	if !a.IsValid() {
		a = netip.IPv4Unspecified()
		if family == unix.AF_INET6 {
			a = netip.IPv6Unspecified()
		}
	}
	return netip.PrefixFrom(a, int(bits))
}

// Family returns the address family of a.
func Family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func u32(v uint32) []byte { return nl.Uint32Attr(v) }
