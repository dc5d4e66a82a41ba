// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"net/netip"

	"github.com/mdlayher/ndp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// group is the bit of the first byte of an Ethernet address that means many hosts.
const group = 1

// claim says that the sender of a frame has an address, or wants it.
type claim struct {
	addr netip.Addr
	by   conf.MAC
	what string
	// to is the address to which the frame is an answer. A frame that answers no
	// question has none: a request, a solicitation, a probe.
	to netip.Addr
	// alone says that an ARP reply was sent to us and not to all hosts.
	alone bool
}

// answers says whether the claim is an answer to the question of an address. This
// proves both directions: the owner has heard the question. Other frames of the owner
// prove only that its frames arrive here (RFC 4861 section 7.3.1 says the same of
// advertisements that were not solicited). By RFC 826, a reply is sent to the host that
// asks. One that is sent to all hosts counts if it names the address that asks. One that
// is sent to us counts whatever it names, because the kernel takes it too (arp_process).
func (c claim) answers(asker netip.Addr) bool {
	return c.to.IsValid() && (c.to == asker || c.alone)
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
		return arpClaim(a, e.dst[0]&group == 0)
	case unix.ETH_P_IPV6:
		n, ok := parseNeighbour(e.payload)
		if !ok {
			return claim{}, false
		}
		return neighbourClaim(n, e.src), true
	}
	return claim{}, false
}

func arpClaim(a arp, alone bool) (claim, bool) {
	switch {
	case !a.sender.IsUnspecified() && a.op == arpRequest:
		return claim{addr: a.sender, by: a.senderMAC, what: "ARP request"}, true
	case !a.sender.IsUnspecified():
		return claim{addr: a.sender, by: a.senderMAC, what: "ARP reply", to: a.target, alone: alone}, true
	case a.op == arpRequest:
		return claim{addr: a.target, by: a.senderMAC, what: "ARP probe"}, true
	}
	return claim{}, false
}

func neighbourClaim(n neighbour, from conf.MAC) claim {
	switch m := n.msg.(type) {
	case *ndp.NeighborAdvertisement:
		return claim{addr: m.TargetAddress, by: from, what: "neighbour advertisement", to: n.dst}
	case *ndp.NeighborSolicitation:
		if n.src.IsUnspecified() {
			return claim{addr: m.TargetAddress, by: from, what: "duplicate address detection"}
		}
	}
	return claim{addr: n.src, by: from, what: "neighbour solicitation"}
}
