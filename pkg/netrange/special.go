// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package netrange

import "net/netip"

// Special is a block of addresses that no interface of a pod may have,
// whatever subnet is configured.
type Special struct {
	Range
	Why string // completes "the address is ..."
}

// Specials lists the blocks. Link-local and private addresses are not among
// them: a rail may well use them.
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
