// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// Address is an address on a link.
type Address struct {
	Index  int32
	Prefix netip.Prefix // not masked
	Flags  uint32       // IFA_F_*
	Scope  uint8        // RT_SCOPE_*
}

// AddAddress puts an address on a link. The kernel does not probe for an IPv6
// address (IFA_F_NODAD). An IPv4 address gets the broadcast address of its
// subnet, if there is one. EEXIST means that the same link has the address,
// maybe with another prefix length. Other links may have it too.
func AddAddress(index int32, p netip.Prefix) Change {
	return changeAddress(unix.RTM_NEWADDR, creation, index, p)
}

// DeleteAddress takes an address off a link. EADDRNOTAVAIL means that the link
// does not have this address.
func DeleteAddress(index int32, p netip.Prefix) Change {
	return changeAddress(unix.RTM_DELADDR, 0, index, p)
}

func changeAddress(typ, flags int, index int32, p netip.Prefix) Change {
	a := p.Addr()
	msg := nl.NewIfAddrmsg(int(Family(a)))
	msg.Prefixlen, msg.Index = uint8(p.Bits()), uint32(index)
	if a.IsLinkLocalUnicast() {
		msg.Scope = unix.RT_SCOPE_LINK
	}
	if a.Is6() {
		msg.Flags = unix.IFA_F_NODAD
	}
	var broadcast *nl.RtAttr
	if a.Is4() && p.Bits() < 31 {
		b := a.As4()
		highest := binary.BigEndian.Uint32(b[:]) | ^uint32(0)>>p.Bits()
		broadcast = nl.NewRtAttr(unix.IFA_BROADCAST, binary.BigEndian.AppendUint32(nil, highest))
	}
	return Change{request(typ, flags, msg, ip(unix.IFA_LOCAL, a), ip(unix.IFA_ADDRESS, a), broadcast)}
}

// Addresses returns the addresses of a link, or of all links for index 0. An
// answer for one link may be inconsistent if it takes more than one message:
// the kernel does not report changes between them (inet_dump_ifaddr sets no
// sequence then). One message has room for some 400 addresses.
func (c *Conn) Addresses(ctx context.Context, index int32) ([]Address, error) {
	msg := nl.NewIfAddrmsg(unix.AF_UNSPEC)
	msg.Index = uint32(index)
	rows, err := c.dump(ctx, request(unix.RTM_GETADDR, 0, msg))
	if err != nil {
		return nil, err
	}
	var out []Address
	for _, b := range rows {
		if a := parseAddress(b); a.Prefix.IsValid() && (index == 0 || a.Index == index) {
			out = append(out, a)
		}
	}
	return out, nil
}

func parseAddress(b []byte) Address {
	msg := nl.DeserializeIfAddrmsg(b)
	a := Address{Index: int32(msg.Index), Flags: uint32(msg.Flags), Scope: msg.Scope}
	var ip netip.Addr
	for typ, v := range nlsock.Attributes(b[msg.Len():]) {
		switch {
		case typ == unix.IFA_LOCAL, typ == unix.IFA_ADDRESS && !ip.IsValid():
			ip = addr(v) // on point-to-point links IFA_ADDRESS is the peer's
		case typ == unix.IFA_FLAGS:
			a.Flags = nlsock.Number(v)
		}
	}
	a.Prefix = netip.PrefixFrom(ip, int(msg.Prefixlen))
	return a
}

// Neighbour is a permanent entry of a link's neighbour table.
type Neighbour struct {
	Index   int32
	Addr    netip.Addr
	Address []byte // of the link layer
}

// SetNeighbour adds an entry, or replaces the one of the same address.
func SetNeighbour(n Neighbour) Change {
	return Change{request(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, n.header(),
		ip(unix.NDA_DST, n.Addr), nl.NewRtAttr(unix.NDA_LLADDR, n.Address))}
}

// DeleteNeighbour removes the entry of an address. ENOENT means that there is none.
func DeleteNeighbour(n Neighbour) Change {
	return Change{request(unix.RTM_DELNEIGH, 0, n.header(), ip(unix.NDA_DST, n.Addr))}
}

// HasNeighbour says whether the entry exists, permanent and with this address of the link
// layer.
func (c *Conn) HasNeighbour(ctx context.Context, n Neighbour) (bool, error) {
	// A node can have thousands of entries on other links.
	rows, err := c.dump(ctx, request(unix.RTM_GETNEIGH, 0, ndmsg{Family: Family(n.Addr)}, number(unix.NDA_IFINDEX, n.Index)))
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(rows, n.is), nil
}

func (n Neighbour) is(row []byte) bool {
	index, state := int32(binary.NativeEndian.Uint32(row[4:])), binary.NativeEndian.Uint16(row[8:])
	var dst netip.Addr
	var lladdr []byte
	for typ, v := range nlsock.Attributes(row[unix.SizeofNdMsg:]) {
		switch typ {
		case unix.NDA_DST:
			dst = addr(v)
		case unix.NDA_LLADDR:
			lladdr = v
		}
	}
	return index == n.Index && state&unix.NUD_PERMANENT != 0 && dst == n.Addr && bytes.Equal(lladdr, n.Address)
}

func (n Neighbour) header() ndmsg {
	return ndmsg{Family: Family(n.Addr), Ifindex: n.Index, State: unix.NUD_PERMANENT}
}

// ndmsg is a struct ndmsg.
type ndmsg unix.NdMsg

// Len implements nl.NetlinkRequestData.
func (ndmsg) Len() int { return unix.SizeofNdMsg }

// Serialize implements nl.NetlinkRequestData.
func (m ndmsg) Serialize() []byte {
	b := []byte{m.Family, 0, 0, 0}
	b = binary.NativeEndian.AppendUint32(b, uint32(m.Ifindex))
	b = binary.NativeEndian.AppendUint16(b, m.State)
	return append(b, m.Flags, m.Type)
}
