// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"context"
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The kinds of links that have attributes of their own.
const (
	macvlanKind = "macvlan"
	ipvlanKind  = "ipvlan"
	vlanKind    = "vlan"
)

// Child is a macvlan or an ipvlan to be made. The kernel chooses what is zero.
type Child struct {
	Kind       string // macvlan or ipvlan
	Name       string
	Lower      Lower
	Address    []byte // of a macvlan: an ipvlan gets the MAC of the link below it
	MTU        int
	Mode       string // as ip link prints it
	BCQueueLen uint32 // of a macvlan
}

// AddChild makes a macvlan or an ipvlan in the namespace of the socket. It cannot set an
// alias: the kernel ignores an alias at creation (rtnl_newlink does not read IFLA_IFALIAS).
// The mode of an ipvlan is that of all ipvlans of a NIC: the kernel changes it for those
// that are there (ipvlan_set_port_mode).
func AddChild(c Child) Change {
	mode := modeNumber(c.Kind, c.Mode)
	if c.Kind == ipvlanKind {
		return Change{stackedOn(c.Lower, c.Name, c.MTU, kind(ipvlanKind, nl.NewRtAttr(nl.IFLA_IPVLAN_MODE, nl.Uint16Attr(uint16(mode)))))}
	}
	req := stackedOn(c.Lower, c.Name, c.MTU,
		kind(macvlanKind, number(unix.IFLA_MACVLAN_MODE, mode), optional(unix.IFLA_MACVLAN_BC_QUEUE_LEN, c.BCQueueLen)))
	if len(c.Address) != 0 {
		req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, c.Address))
	}
	return Change{req}
}

// AddVLAN makes a VLAN of a link in the namespace of the socket, with the MTU of that
// link. EEXIST means that the name is taken, or that there is such a VLAN already, which
// may have another name or be in another namespace. Like AddChild it cannot set an alias.
func AddVLAN(name string, lower int32, id int) Change {
	return Change{stackedOn(Lower{Index: lower, NSID: NoNSID}, name, 0,
		kind(vlanKind, nl.NewRtAttr(nl.IFLA_VLAN_ID, nl.Uint16Attr(uint16(id)))))}
}

// stackedOn returns the request for a link on another one. With an MTU of 0 the kernel
// chooses it.
func stackedOn(l Lower, name string, mtu int, kind *nl.RtAttr) *nl.NetlinkRequest {
	var nsid *nl.RtAttr
	if l.NSID != NoNSID {
		nsid = number(unix.IFLA_LINK_NETNSID, l.NSID)
	}
	return request(unix.RTM_NEWLINK, creation, linkHeader(0),
		text(unix.IFLA_IFNAME, name), number(unix.IFLA_LINK, l.Index), nsid, optional(unix.IFLA_MTU, mtu), kind)
}

// kind returns the attribute with the kind of a new link, and what only this kind has.
func kind(name string, data ...*nl.RtAttr) *nl.RtAttr {
	return nest(unix.IFLA_LINKINFO, nl.NewRtAttr(unix.IFLA_INFO_KIND, []byte(name)), nest(unix.IFLA_INFO_DATA, data...))
}

// VethEnd is one end of a veth pair to be made.
type VethEnd struct {
	Name    string
	Address []byte
	MTU     int
}

// AddVeth makes a pair of links: one in the namespace of the socket, the peer in the
// namespace of a file descriptor. EEXIST means that one of the names is taken there.
// Like AddChild it cannot set an alias.
func AddVeth(here, peer VethEnd, peerNetns int) Change {
	other := nl.NewRtAttr(nl.VETH_INFO_PEER, linkHeader(0).Serialize())
	for _, a := range append(peer.attributes(), number(unix.IFLA_NET_NS_FD, peerNetns)) {
		if a != nil {
			other.AddChild(a)
		}
	}
	return Change{request(unix.RTM_NEWLINK, creation, linkHeader(0), append(here.attributes(), kind("veth", other))...)}
}

func (e VethEnd) attributes() []*nl.RtAttr {
	return []*nl.RtAttr{text(unix.IFLA_IFNAME, e.Name), nl.NewRtAttr(unix.IFLA_ADDRESS, e.Address), optional(unix.IFLA_MTU, e.MTU)}
}

// SetAlias sets the alias of the link with a name.
func SetAlias(name, alias string) Change {
	return setByName(name, 0, nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(alias)))
}

// SetUp brings the link with a name up, with an MTU unless that is 0.
func SetUp(name string, mtu int) Change {
	return setByName(name, unix.IFF_UP, optional(unix.IFLA_MTU, mtu))
}

// setByName changes the link with a name, and sets flags of it. The name must be the link's
// real name: for an alternative name, the kernel would also rename the link to it.
func setByName(name string, flags uint32, what *nl.RtAttr) Change {
	msg := linkHeader(0)
	msg.Flags, msg.Change = flags, flags
	return Change{request(unix.RTM_SETLINK, 0, msg, text(unix.IFLA_IFNAME, name), what)}
}

// Rename sets the name and the alias of the link with an index.
func Rename(index int32, name, alias string) Change {
	return Change{request(unix.RTM_SETLINK, 0, linkHeader(index),
		text(unix.IFLA_IFNAME, name), nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(alias)))}
}

// DeleteLink removes the link with an index.
func DeleteLink(index int32) Change {
	return Change{request(unix.RTM_DELLINK, 0, linkHeader(index))}
}

// DeleteNamed removes the link with a name.
func DeleteNamed(name string) Change {
	return Change{request(unix.RTM_DELLINK, 0, linkHeader(0), text(unix.IFLA_IFNAME, name))}
}

// setGroup puts the link with an index into a group of links.
func setGroup(index int32, group uint32) Change {
	return Change{request(unix.RTM_SETLINK, 0, linkHeader(index), number(unix.IFLA_GROUP, group))}
}

// deleteGroup removes all links of a group (rtnl_group_dellink). The group must
// not be 0. ENODEV means that the group has no links. EOPNOTSUPP means that one
// of the links is of a kind that cannot be removed; then the kernel removes
// none. Kernels before 4.1 return EINVAL.
func deleteGroup(group uint32) Change {
	return Change{request(unix.RTM_DELLINK, 0, linkHeader(0), number(unix.IFLA_GROUP, group))}
}

func linkHeader(index int32) *nl.IfInfomsg {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = index
	return msg
}

// DeleteLinks removes links and returns the result of each. all are the links
// of the namespace. For a link that is already gone the result is success.
//
// The removal of a single link takes long, because it waits until no code on
// the machine looks at the link any more (synchronize_net in
// unregister_netdevice_many, netdev_run_todo). Links in one group are removed
// together and wait once (rtnl_group_dellink).
func (c *Conn) DeleteLinks(ctx context.Context, doomed, all []Link) []error {
	if len(doomed) > 1 && c.deleteTogether(ctx, doomed, all) {
		return make([]error, len(doomed))
	}
	var changes []Change
	for _, l := range doomed {
		changes = append(changes, DeleteLink(l.Index))
	}
	errs := c.Each(ctx, changes...)
	for i := range errs {
		if errors.Is(errs[i], unix.ENODEV) {
			errs[i] = nil
		}
	}
	return errs
}

// deleteTogether puts the links into a group and removes the group. It says
// whether that worked. It does not work before Linux 4.1, and not while the
// group has a link that cannot be removed, which another program put there. One
// sendmsg has all messages, so that no signal comes between them.
//
// Another roce process that does the same in this namespace may use the same
// group number. Then the first of the two removes the links of both. That is
// correct, because both want their links removed.
func (c *Conn) deleteTogether(ctx context.Context, doomed, all []Link) bool {
	group := freeGroup(all)
	var changes []Change
	for _, l := range doomed {
		changes = append(changes, setGroup(l.Index, group))
	}
	for _, err := range c.Batch(ctx, append(changes, deleteGroup(group))...) {
		if err != nil && !errors.Is(err, unix.ENODEV) {
			return false
		}
	}
	return true
}

// firstGroup is "roce" in ASCII, a number that other programs hardly use.
const firstGroup = 0x726f6365

// freeGroup returns the number of a group without links, so that only the links
// that we put into it are removed with it.
func freeGroup(all []Link) uint32 {
	taken := map[uint32]bool{}
	for _, l := range all {
		taken[l.Group] = true
	}
	group := uint32(firstGroup)
	for taken[group] {
		group++
	}
	return group
}
