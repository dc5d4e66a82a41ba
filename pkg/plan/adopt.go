// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/conf/chain"
)

// Adopt says that a link is there that another plugin has made, with its MAC
// and addresses. Do waits until the kernel has found no duplicate of the
// addresses, because until then no route may have one as its source
// (ip6_route_info_create). It changes nothing, so it has nothing to undo: the
// link goes when the plugin that made it takes it away, which is after us.
type Adopt struct {
	Link      conf.LinkName  `json:"link"`
	MAC       conf.MAC       `json:"mac"`
	Addresses []netip.Prefix `json:"addresses,omitempty"` // not masked
}

// commands implements Kind.
func (a Adopt) commands(in namespaces) []string {
	var have []string
	if !a.MAC.IsZero() { // not known to a plan that is only shown
		have = append(have, "MAC "+a.MAC.String())
	}
	for _, p := range a.Addresses {
		have = append(have, p.String())
	}
	if len(have) == 0 {
		have = []string{"no address"}
	}
	return []string{fmt.Sprintf("# %s is there already, with %s: %s addr show dev %s", a.Link, strings.Join(have, ", "), in.ip(), a.Link)}
}

// Told returns what the plugins before roce told of the link that they made, of
// which nobody can ask the kernel yet.
func Told(p chain.Prev) *Adopted {
	l := p.Result.Interfaces[p.Interface]
	mac, err := conf.ParseMAC(l.Mac)
	if err != nil { // they need not tell
		mac = conf.MAC{}
	}
	return &Adopted{MAC: mac, MTU: l.Mtu}
}

// link returns what makes the link: ours is made, another plugin's is adopted
// with its addresses.
func (m maker) link(mac conf.MAC, mtu int) Ops {
	if m.facts.Adopted == nil {
		return InPod(Macvlan{
			Name: m.req.IfName, Parent: m.facts.Parent.Name, InPod: m.req.LinkInContainer, Mode: m.req.Mode,
			MTU: mtu, MAC: mac, BCQueueLen: m.req.BCQueueLen, Mark: m.mark,
		})
	}
	op := Adopt{Link: m.req.IfName, MAC: mac}
	for _, a := range m.lease.Addresses {
		op.Addresses = append(op.Addresses, a.Prefix)
	}
	return InPod(op)
}

// silent says whether there is nobody on the link to ask or to tell: it does
// without ARP and neighbour discovery, as an ipvlan in a mode of layer 3.
func (m maker) silent() bool { return m.facts.Adopted != nil && m.facts.Adopted.NoARP }
