// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam

import (
	"math/big"
	"net/netip"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
)

// Used says whether an address is used. If it is, last is the last address of
// the longest run of used addresses that contains it: the next address is free.
type Used func(netip.Addr) (last netip.Addr, used bool)

// Pick returns the first address at or after start that is in usable and not
// used. After the last address it goes on with the first. It returns false if
// there is none. usable must be in ascending order, and its ranges must not
// touch.
//
// It calls used at most twice for each range, whatever the size of the subnet and the number
// of leases.
func Pick(usable []netrange.Range, start netip.Addr, used Used) (netip.Addr, bool) {
	n := len(usable)
	if n == 0 {
		return netip.Addr{}, false
	}
	at := netrange.Find(usable, start)
	for i := range n + 1 { // the range that holds start comes twice
		r := usable[(at+i)%n]
		if i == 0 && r.Contains(start) {
			r.First = start
		}
		last, taken := used(r.First)
		if !taken {
			return r.First, true
		}
		if next := last.Next(); r.Contains(next) {
			return next, true
		}
	}
	return netip.Addr{}, false
}

// preferred returns the address at which the search for an owner's address starts. It
// depends only on the owner and on what is usable, so a pod that comes back under its name
// usually gets its address back, and pods that start at once do not compete for one.
func preferred(usable []netrange.Range, o Owner) netip.Addr {
	size := netrange.Count(usable)
	if size.Sign() == 0 {
		return netip.Addr{}
	}
	id := o.Identity()
	n := new(big.Int).SetBytes(id[:])
	return netrange.At(usable, n.Mod(n, size))
}
