// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam

import (
	"math/big"
	"net/netip"

	"github.com/roce-cni/roce-cni/pkg/netrange"
)

// Used says whether an address is used, and if so, the last address of the
// longest run of used addresses that it lies in: the next one is free.
type Used func(netip.Addr) (last netip.Addr, used bool, err error)

// Pick returns the first address at or after start that is in usable and not
// used, going on at the first after the last; false if there is none. usable
// is in ascending order, and its ranges do not touch.
//
// It asks used at most twice for each range: the cost depends on how much is
// excluded, neither on the size of the subnet nor on what is leased.
func Pick(usable []netrange.Range, start netip.Addr, used Used) (netip.Addr, bool, error) {
	n := len(usable)
	if n == 0 {
		return netip.Addr{}, false, nil
	}
	at := netrange.Find(usable, start)
	for i := range n + 1 { // the range that holds start comes twice
		r := usable[(at+i)%n]
		if i == 0 && r.Contains(start) {
			r.First = start
		}
		last, taken, err := used(r.First)
		if err != nil {
			return netip.Addr{}, false, err
		}
		if !taken {
			return r.First, true, nil
		}
		if next := last.Next(); r.Contains(next) {
			return next, true, nil
		}
	}
	return netip.Addr{}, false, nil
}

// home returns the address at which the search for an owner's address starts.
// It depends on who the owner is and on what is usable alone, so that a pod
// that comes back under its name usually gets its address back, and pods that
// start at once do not queue for the same one.
func home(usable []netrange.Range, o Owner) netip.Addr {
	size := netrange.Count(usable)
	if size.Sign() == 0 {
		return netip.Addr{}
	}
	id := o.Identity()
	n := new(big.Int).SetBytes(id[:])
	return netrange.At(usable, n.Mod(n, size))
}
