// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

const (
	arpLen     = 28
	arpRequest = 1
	arpReply   = 2
	// arpHeader is hardware type Ethernet, protocol IPv4 and their address
	// lengths. Ethernet has no other kind of ARP packet (RFC 826).
	arpHeader = "\x00\x01\x08\x00\x06\x04"
)

// arp is an ARP request or reply for IPv4 over Ethernet.
type arp struct {
	op                   uint16
	senderMAC, targetMAC conf.MAC
	sender, target       netip.Addr
}

// marshal returns the 28 bytes of the packet. sender and target must be IPv4.
func (a arp) marshal() []byte {
	sender, target := a.sender.As4(), a.target.As4()
	b := make([]byte, 0, arpLen)
	b = append(b, arpHeader...)
	b = binary.BigEndian.AppendUint16(b, a.op)
	b = append(b, a.senderMAC[:]...)
	b = append(b, sender[:]...)
	b = append(b, a.targetMAC[:]...)
	return append(b, target[:]...)
}

// frame returns the packet as an Ethernet frame from its sender to all hosts.
// The mark is in the padding that such a short frame needs anyway, so it
// disturbs no receiver.
func (a arp) frame(mark []byte) []byte {
	all := conf.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	return ether{dst: all, src: a.senderMAC, proto: unix.ETH_P_ARP, payload: append(a.marshal(), mark...)}.marshal()
}

// parseARP reads a packet. It ignores what follows its 28 bytes. It returns
// false for everything but a request or reply for IPv4 over Ethernet.
func parseARP(b []byte) (arp, bool) {
	if len(b) < arpLen || string(b[:len(arpHeader)]) != arpHeader {
		return arp{}, false
	}
	a := arp{
		op:        binary.BigEndian.Uint16(b[6:8]),
		senderMAC: conf.MAC(b[8:14]), sender: netip.AddrFrom4([4]byte(b[14:18])),
		targetMAC: conf.MAC(b[18:24]), target: netip.AddrFrom4([4]byte(b[24:28])),
	}
	return a, a.op == arpRequest || a.op == arpReply
}
