// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"context"
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Macvlan is a macvlan to be made. The kernel chooses what is zero.
type Macvlan struct {
	Name       string
	Lower      Lower
	Address    []byte
	MTU        int
	Mode       string // bridge, private, vepa or passthru
	BCQueueLen uint32
}

// AddMacvlan makes a macvlan in the namespace of the socket. It cannot set an
// alias: the kernel ignores an alias at creation (rtnl_newlink does not read
// IFLA_IFALIAS).
func AddMacvlan(m Macvlan) Change {
	req := stackedOn(m.Lower, m.Name, m.MTU)
	if len(m.Address) != 0 {
		req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, m.Address))
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, []byte(macvlanKind))
	data := info.AddRtAttr(unix.IFLA_INFO_DATA, nil)
	data.AddRtAttr(unix.IFLA_MACVLAN_MODE, u32(modeNumber(m.Mode)))
	if m.BCQueueLen != 0 {
		data.AddRtAttr(unix.IFLA_MACVLAN_BC_QUEUE_LEN, u32(m.BCQueueLen))
	}
	req.AddData(info)
	return Change{req}
}

// stackedOn returns the request for a link on another one. With an MTU of 0 the kernel
// chooses it.
func stackedOn(l Lower, name string, mtu int) *nl.NetlinkRequest {
	req := request(unix.RTM_NEWLINK, creation, nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_LINK, u32(uint32(l.Index))))
	if l.NSID != NoNSID {
		req.AddData(nl.NewRtAttr(unix.IFLA_LINK_NETNSID, u32(uint32(l.NSID))))
	}
	if mtu != 0 {
		req.AddData(nl.NewRtAttr(unix.IFLA_MTU, u32(uint32(mtu))))
	}
	return req
}

// SetAlias sets the alias of the link with a name.
func SetAlias(name, alias string) Change {
	req := setByName(name, 0)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(alias)))
	return Change{req}
}

// SetUp brings the link with a name up, with an MTU unless that is 0.
func SetUp(name string, mtu int) Change {
	req := setByName(name, unix.IFF_UP)
	if mtu > 0 {
		req.AddData(nl.NewRtAttr(unix.IFLA_MTU, u32(uint32(mtu))))
	}
	return Change{req}
}

// setByName returns a request that changes the link with a name and sets flags
// of it. The name must be the link's real name: for an alternative name, the
// kernel would also rename the link to it.
func setByName(name string, flags uint32) *nl.NetlinkRequest {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Flags, msg.Change = flags, flags
	req := request(unix.RTM_SETLINK, 0, msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	return req
}

// Rename sets the name and the alias of the link with an index.
func Rename(index int32, name, alias string) Change {
	req := request(unix.RTM_SETLINK, 0, linkHeader(index))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(alias)))
	return Change{req}
}

// DeleteLink removes the link with an index.
func DeleteLink(index int32) Change {
	return Change{request(unix.RTM_DELLINK, 0, linkHeader(index))}
}

// DeleteNamed removes the link with a name.
func DeleteNamed(name string) Change {
	req := request(unix.RTM_DELLINK, 0, nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	return Change{req}
}

// setGroup puts the link with an index into a group of links.
func setGroup(index int32, group uint32) Change {
	req := request(unix.RTM_SETLINK, 0, linkHeader(index))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, u32(group)))
	return Change{req}
}

// deleteGroup removes all links of a group (rtnl_group_dellink). The group must
// not be 0. ENODEV means that the group has no links. EOPNOTSUPP means that one
// of the links is of a kind that cannot be removed; then the kernel removes
// none. Kernels before 4.1 return EINVAL.
func deleteGroup(group uint32) Change {
	req := request(unix.RTM_DELLINK, 0, linkHeader(0))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, u32(group)))
	return Change{req}
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
