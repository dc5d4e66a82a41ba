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

// Neighbour is a permanent entry of a link's neighbour table.
type Neighbour struct {
	Index   int32
	Addr    netip.Addr
	Address []byte // of the link layer
}

// SetNeighbour adds an entry, or replaces the one of the same address.
func SetNeighbour(n Neighbour) Change {
	req := request(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, n.header())
	req.AddData(nl.NewRtAttr(unix.NDA_DST, n.Addr.AsSlice()))
	req.AddData(nl.NewRtAttr(unix.NDA_LLADDR, n.Address))
	return Change{req}
}

// DeleteNeighbour removes the entry of an address. ENOENT means that there is none.
func DeleteNeighbour(n Neighbour) Change {
	req := request(unix.RTM_DELNEIGH, 0, n.header())
	req.AddData(nl.NewRtAttr(unix.NDA_DST, n.Addr.AsSlice()))
	return Change{req}
}

// HasNeighbour says whether the entry exists, permanent and with this address of the link
// layer.
func (c *Conn) HasNeighbour(ctx context.Context, n Neighbour) (bool, error) {
	req := request(unix.RTM_GETNEIGH, 0, ndmsg{Family: Family(n.Addr)})
	req.AddData(nl.NewRtAttr(unix.NDA_IFINDEX, u32(uint32(n.Index)))) // a node can have thousands of entries on other links
	rows, err := c.dump(ctx, req)
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
