// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"net/netip"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

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

// commands implements Kind.
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
