// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// nl finds out the byte order when it first needs it, and keeps it in a
// variable without lock. This call makes it do so at the start of the program,
// so that goroutines do not race for it.
var _ = nl.NativeEndian()

// request returns a request with its fixed part; attributes follow with
// AddData.
func request(typ, flags int, fixed nl.NetlinkRequestData) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(typ, flags)
	req.AddData(fixed)
	return req
}

// creation makes the kernel refuse to create what exists already.
const creation = unix.NLM_F_CREATE | unix.NLM_F_EXCL

// addr reads an address attribute. It returns the zero value if b is not an
// address.
func addr(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// prefix returns the prefix of an address attribute. Without address it returns
// the prefix of all addresses of the family.
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
