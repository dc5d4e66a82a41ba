// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"net/netip"

	"github.com/mdlayher/ndp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/conf"
)

// claim says that the sender of a frame has an address, or wants it.
type claim struct {
	addr netip.Addr
	by   conf.MAC
	what string
	// wanted says that the sender asks, like us, whether the address is free.
	// The sender is then a rival, but this is no sign that a host has the
	// address.
	wanted bool
}

// claimOf reads a frame. It returns false for a frame that claims no address.
func claimOf(frame []byte) (claim, bool) {
	e, ok := parseEther(frame)
	if !ok {
		return claim{}, false
	}
	switch e.proto {
	case unix.ETH_P_ARP:
		a, ok := parseARP(e.payload)
		if !ok {
			return claim{}, false
		}
		return arpClaim(a)
	case unix.ETH_P_IPV6:
		n, ok := parseNeighbour(e.payload)
		if !ok {
			return claim{}, false
		}
		return neighbourClaim(n, e.src), true
	}
	return claim{}, false
}

func arpClaim(a arp) (claim, bool) {
	switch {
	case !a.sender.IsUnspecified() && a.op == arpRequest:
		return claim{addr: a.sender, by: a.senderMAC, what: "ARP request"}, true
	case !a.sender.IsUnspecified():
		return claim{addr: a.sender, by: a.senderMAC, what: "ARP reply"}, true
	case a.op == arpRequest:
		return claim{addr: a.target, by: a.senderMAC, what: "ARP probe", wanted: true}, true
	}
	return claim{}, false
}

func neighbourClaim(n neighbour, from conf.MAC) claim {
	switch m := n.msg.(type) {
	case *ndp.NeighborAdvertisement:
		return claim{addr: m.TargetAddress, by: from, what: "neighbour advertisement"}
	case *ndp.NeighborSolicitation:
		if n.src.IsUnspecified() {
			return claim{addr: m.TargetAddress, by: from, what: "duplicate address detection", wanted: true}
		}
	}
	return claim{addr: n.src, by: from, what: "neighbour solicitation"}
}
