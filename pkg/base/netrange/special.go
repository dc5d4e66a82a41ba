// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package netrange

import (
	"fmt"
	"net/netip"
)

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
