// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"fmt"
	"net/netip"
	"strings"

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

// Adopt says that a link exists that another plugin has made, with its MAC and
// addresses. Do waits until the kernel has finished its search for duplicates
// of the addresses, because until then no route may have one as its source
// (ip6_route_info_create). It changes nothing, so it has nothing to undo. The
// plugin that made the link removes it, after our DEL.
type Adopt struct {
	Link      conf.LinkName  `json:"link"`
	MAC       conf.MAC       `json:"mac"`
	Addresses []netip.Prefix `json:"addresses,omitempty"` // not masked
}

func (a Adopt) commands(in namespaces) []string {
	var have []string
	if !a.MAC.IsZero() { // not known in a plan that is only shown
		have = append(have, "MAC "+a.MAC.String())
	}
	for _, p := range a.Addresses {
		have = append(have, p.String())
	}
	if len(have) == 0 {
		have = []string{"no address"}
	}
	return []string{shell.Command("# %s is there already, with ", a.Link) + strings.Join(have, ", ") + ": " + in.ip() + shell.Command(" addr show dev %s", a.Link)}
}

// FromPrev returns what the plugins before roce reported about the link that they
// make. It is for a plan without a pod, when the kernel cannot be asked yet.
func FromPrev(p conf.Prev) *Adopted {
	l := p.Result.Interfaces[p.Interface]
	mac, err := conf.ParseMAC(l.Mac)
	if err != nil { // the plugins need not report it
		mac = conf.MAC{}
	}
	return &Adopted{MAC: mac, MTU: l.Mtu}
}

// link returns the operations that make the link. They make our own link, or
// adopt the link of another plugin with its addresses.
func (m maker) link(mac conf.MAC, mtu int) Ops {
	if m.facts.Adopted == nil {
		c := Child{
			Name: m.rail.IfName, Parent: m.facts.Parent.Name, NIC: m.facts.Parent.identity(), InPod: m.req.LinkInContainer, Mode: m.req.Mode,
			MTU: mtu, MAC: mac, BCQueueLen: m.req.BCQueueLen, Mark: m.mark,
		}
		if v := m.facts.Parent.VLAN; v != nil && !v.Foreign {
			c.VLAN = v.VLAN
		}
		return InPod(c)
	}
	op := Adopt{Link: m.rail.IfName, MAC: mac}
	for _, a := range m.lease.Addresses {
		op.Addresses = append(op.Addresses, a.Prefix)
	}
	return InPod(op)
}

// silent says that the link does without ARP and neighbour discovery, as an
// ipvlan in a layer 3 mode does: there is no host to ask or to tell.
func (m maker) silent() bool { return m.facts.Adopted != nil && m.facts.Adopted.NoARP }
