// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/mdlayher/ndp"
	"golang.org/x/net/icmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

const (
	ipv6Header = 40
	// neighbourHopLimit proves that no router has forwarded a message
	// (RFC 4861 section 7.1).
	neighbourHopLimit = 255
	// neighbourLen is the length of a solicitation or advertisement without
	// options.
	neighbourLen = 24

	typeSolicitation  = 135
	typeAdvertisement = 136

	optSourceAddress = 1
	optNonce         = 14 // RFC 3971 section 5.3.2
)

// neighbour is a neighbour solicitation or advertisement in its IPv6 packet.
type neighbour struct {
	src, dst netip.Addr
	msg      ndp.Message
}

// frame returns the packet in an Ethernet frame from mac to the group dst.
func (n neighbour) frame(mac conf.MAC) ([]byte, error) {
	body, err := ndp.MarshalMessageChecksum(n.msg, n.src, n.dst)
	if err != nil {
		return nil, cnierr.New(cnierr.Bug, "make neighbour message", n.dst.String(), "", "%w", err)
	}
	src, dst := n.src.As16(), n.dst.As16()
	b := make([]byte, 0, ipv6Header+len(body))
	b = append(b, 6<<4, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(body)))
	b = append(b, unix.IPPROTO_ICMPV6, neighbourHopLimit)
	b = append(b, src[:]...)
	b = append(b, dst[:]...)
	b = append(b, body...)
	return ether{dst: groupMAC(n.dst), src: mac, proto: unix.ETH_P_IPV6, payload: b}.marshal(), nil
}

// parseNeighbour reads an IPv6 packet. It returns false for packets that a
// receiver must discard by RFC 4861 sections 7.1.1 and 7.1.2. It returns the
// message without its options: an option that we do not know must not hide a
// conflict.
func parseNeighbour(b []byte) (neighbour, bool) {
	if len(b) < ipv6Header || b[0]>>4 != 6 || b[6] != unix.IPPROTO_ICMPV6 || b[7] != neighbourHopLimit {
		return neighbour{}, false
	}
	n := neighbour{src: netip.AddrFrom16([16]byte(b[8:24])), dst: netip.AddrFrom16([16]byte(b[24:40]))}
	length := int(binary.BigEndian.Uint16(b[4:6]))
	body := b[ipv6Header:]
	if length < neighbourLen || length > len(body) || body[1] != 0 {
		return neighbour{}, false
	}
	body = body[:length]
	options, ok := optionTypes(body[neighbourLen:])
	if !ok || !checksumHolds(n.src, n.dst, body) {
		return neighbour{}, false
	}
	msg, err := ndp.ParseMessage(body[:neighbourLen])
	if err != nil {
		return neighbour{}, false
	}
	n.msg = msg
	return n, n.allowed(options)
}

// allowed checks the rules for the kind of the message.
func (n neighbour) allowed(options []byte) bool {
	switch m := n.msg.(type) {
	case *ndp.NeighborSolicitation:
		probe := n.dst == solicitedNode(m.TargetAddress) && !slices.Contains(options, optSourceAddress)
		return !m.TargetAddress.IsMulticast() && (probe || !n.src.IsUnspecified())
	case *ndp.NeighborAdvertisement:
		return !m.TargetAddress.IsMulticast() && !(m.Solicited && n.dst.IsMulticast())
	}
	return false
}

// optionTypes returns the types of the options. An option of length zero, or
// one that is cut off, makes the message invalid.
func optionTypes(b []byte) ([]byte, bool) {
	var types []byte
	for len(b) > 0 {
		if len(b) < 2 || b[1] == 0 || int(b[1])*8 > len(b) {
			return nil, false
		}
		types = append(types, b[0])
		b = b[int(b[1])*8:]
	}
	return types, true
}

// checksumHolds sums up the pseudo-header and the message with its checksum. A message with
// whole options has no odd byte. The sum is all ones if nothing was damaged (RFC 1071 section 1).
func checksumHolds(src, dst netip.Addr, body []byte) bool {
	b := icmp.IPv6PseudoHeader(src.AsSlice(), dst.AsSlice())
	binary.BigEndian.PutUint32(b[32:36], uint32(len(body)))
	b = append(b, body...)
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return sum == 0xffff
}

// solicitedNode returns the group that the owner of a listens to (RFC 4291
// section 2.7.1).
func solicitedNode(a netip.Addr) netip.Addr {
	g := [16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff}
	b := a.As16()
	copy(g[13:], b[13:])
	return netip.AddrFrom16(g)
}

// groupMAC returns the Ethernet address of an IPv6 group (RFC 2464 section 7).
func groupMAC(group netip.Addr) conf.MAC {
	b := group.As16()
	return conf.MAC{0x33, 0x33, b[12], b[13], b[14], b[15]}
}
