// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

const (
	etherHeader = 14
	// etherMin is the least length of a frame without checksum (IEEE 802.3
	// section 3.2.8); network cards fill up shorter ones.
	etherMin = 60
)

// ether is an untagged Ethernet frame. The kernel takes VLAN tags off before a
// packet socket sees them.
type ether struct {
	dst, src conf.MAC
	proto    uint16
	payload  []byte
}

// marshal returns the frame, filled up with zeros to etherMin.
func (e ether) marshal() []byte {
	b := make([]byte, 0, max(etherMin, etherHeader+len(e.payload)))
	b = append(b, e.dst[:]...)
	b = append(b, e.src[:]...)
	b = binary.BigEndian.AppendUint16(b, e.proto)
	b = append(b, e.payload...)
	return b[:max(etherMin, len(b))]
}

// parseEther shares its payload with b.
func parseEther(b []byte) (ether, bool) {
	if len(b) < etherHeader {
		return ether{}, false
	}
	return ether{
		dst: conf.MAC(b[0:6]), src: conf.MAC(b[6:12]),
		proto:   binary.BigEndian.Uint16(b[12:14]),
		payload: b[etherHeader:],
	}, true
}

// etherType is the protocol that carries the family's neighbour messages.
func etherType(v6 bool) int {
	if v6 {
		return unix.ETH_P_IPV6
	}
	return unix.ETH_P_ARP
}
