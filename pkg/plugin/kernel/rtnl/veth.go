// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// VethEnd is one end of a veth pair to be made.
type VethEnd struct {
	Name    string
	Address []byte
	MTU     int
}

// AddVeth makes a pair of links: one in the namespace of the socket, the peer in the
// namespace of a file descriptor. EEXIST means that one of the names is taken there.
// Like AddMacvlan it cannot set an alias.
func AddVeth(here, peer VethEnd, peerNetns int) Change {
	req := request(unix.RTM_NEWLINK, creation, nl.NewIfInfomsg(unix.AF_UNSPEC))
	for _, a := range here.attributes() {
		req.AddData(a)
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, []byte("veth"))
	data := info.AddRtAttr(unix.IFLA_INFO_DATA, nil)
	other := data.AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(other, unix.AF_UNSPEC)
	for _, a := range peer.attributes() {
		other.AddChild(a)
	}
	other.AddRtAttr(unix.IFLA_NET_NS_FD, u32(uint32(peerNetns)))
	req.AddData(info)
	return Change{req}
}

func (e VethEnd) attributes() []*nl.RtAttr {
	out := []*nl.RtAttr{nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(e.Name)), nl.NewRtAttr(unix.IFLA_ADDRESS, e.Address)}
	if e.MTU != 0 {
		out = append(out, nl.NewRtAttr(unix.IFLA_MTU, u32(uint32(e.MTU))))
	}
	return out
}
