// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"fmt"
	"net/netip"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Child creates the child of a NIC in the pod's namespace, down, and marks
// it with the alias Mark. It is a macvlan, or an ipvlan if Mode is conf.L2. In records
// and in JSON its name is "macvlan".
//
// An existing macvlan with that name is ours if it carries Mark. It is also ours
// if it has this MAC and not the mark of another attachment. The MAC of an ipvlan is that
// of its NIC, so there the name must be the planned one, too. The kernel drops an
// alias that is given at creation (rtnl_newlink does not read IFLA_IFALIAS), so a
// process that died between the two messages leaves a link without alias. Other
// programs may set another alias.
type Child struct {
	Name       conf.LinkName `json:"name"`
	Parent     conf.LinkName `json:"parent"`          // by name, in the host's namespace
	NIC        NIC           `json:"nic,omitzero"`    // which link that was; zero: unknown
	InPod      bool          `json:"inPod,omitempty"` // the parent is in the pod's namespace instead
	VLAN       conf.VLAN     `json:"vlan,omitzero"`   // the parent is this VLAN, which roce has made
	Mode       conf.Mode     `json:"mode"`
	MTU        int           `json:"mtu"`
	MAC        conf.MAC      `json:"mac"`
	BCQueueLen uint32        `json:"bcQueueLen,omitempty"` // 0: the kernel's default
	Mark       string        `json:"mark"`
}

// NIC is the identity of a link that is a parent. Its name may be given to another link.
// Its index changes when its driver is loaded again, its MAC when a program sets another.
type NIC struct {
	Index int32    `json:"index"`
	MAC   conf.MAC `json:"mac"`
}

// commands implements Kind.
func (c Child) commands(in namespaces) []string {
	ip, queue := "ip", ""
	if c.InPod {
		ip = in.ip()
	}
	if c.BCQueueLen != 0 {
		queue = fmt.Sprintf(" bcqueuelen %d", c.BCQueueLen)
	}
	address := shell.Command(" address %s", c.MAC)
	if c.Mode == conf.L2 { // it has that of the NIC
		address = ""
	}
	return []string{
		ip + shell.Command(" link add link %s name %s netns %s", c.Parent, c.Name, in.pod) + address +
			shell.Command(" mtu %d type %s mode %s", c.MTU, c.Mode.Kind(), c.Mode) + queue,
		in.ip() + shell.Command(" link set dev %s alias %s", c.Name, c.Mark),
	}
}

// WithMAC returns the operation for a link that has another MAC now. An operation that
// is not about the MAC of a link stays as it is.
func (o Op) WithMAC(mac conf.MAC) Op {
	switch k := o.Kind.(type) {
	case Child:
		k.MAC = mac
		o.Kind = k
	case Adopt:
		k.MAC = mac
		o.Kind = k
	}
	return o
}

// parentRequest asks for nothing but the link.
func (c Child) parentRequest() conf.Request {
	on := c.Parent
	if c.VLAN.ID != 0 { // which may be gone, too
		on = c.VLAN.NIC
	}
	rail := conf.Rail{IfName: c.Name, Parent: conf.Parent{Name: on}}
	return conf.Request{Rails: []conf.Rail{rail}, MinRails: 1, LinkInContainer: c.InPod, VLAN: c.VLAN.ID, Mode: c.Mode, MTU: c.MTU}
}

// Up brings a link up. Repair also gives it an MTU.
type Up struct {
	Link conf.LinkName `json:"link"`
	MTU  int           `json:"-"` // 0: as it is
}

// commands implements Kind.
func (u Up) commands(in namespaces) []string {
	if u.MTU > 0 {
		return []string{in.ip() + shell.Command(" link set dev %s mtu %d up", u.Link, u.MTU)}
	}
	return []string{in.ip() + shell.Command(" link set dev %s up", u.Link)}
}

// Address puts an address on a link. An IPv6 address gets the flag NODAD,
// because the Conflict operation has already asked the network. A link-local
// address gets the scope of the link, all others get the global scope. An IPv4
// address also gets the broadcast address of its subnet, if there is one.
type Address struct {
	Link   conf.LinkName `json:"link"`
	Prefix netip.Prefix  `json:"prefix"` // not masked
}

// commands implements Kind.
func (a Address) commands(in namespaces) []string {
	extra := ""
	switch {
	case a.Prefix.Addr().Is6():
		extra = " nodad"
	case a.Prefix.Bits() < 31:
		extra = " brd +"
	}
	return []string{in.ip() + shell.Command(" addr add %s dev %s", a.Prefix, a.Link) + extra}
}
