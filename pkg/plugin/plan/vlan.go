// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"fmt"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// VLANMark is the alias of each VLAN that roce has made. It names no attachment, because
// attachments share the VLAN.
const VLANMark = MarkPrefix + "vlan"

// VLAN creates a VLAN of a NIC of the host and brings it up. It is shared: it goes with
// the last attachment that has it. It has the MTU of the NIC.
//
// The node takes no part in the VLAN: it has no address there, and does not forward.
//
// An existing link is ours if it is a VLAN with the alias VLANMark. A VLAN without that
// alias is the operator's, who may also take one of ours by removing the alias.
type VLAN struct {
	Name conf.LinkName `json:"name"`
	conf.VLAN
	Identity NIC `json:"identity,omitzero"` // which link NIC was; zero: unknown
}

func (v VLAN) commands(in namespaces) []string {
	return append([]string{
		in.ip() + shell.Command(" link add link %s name %s type vlan id %s", v.NIC, v.Name, fmt.Sprint(v.ID)),
		in.ip() + shell.Command(" link set dev %s alias %s", v.Name, VLANMark),
	}, append(v.Settings().commands(in), Up{Link: v.Name}.commands(in)...)...)
}

// Settings returns what is set before the VLAN is up. Without it the node would make
// itself a link-local address, obey routers of the VLAN, answer ARP for all its addresses,
// and forward packets from the VLAN to its other networks.
func (v VLAN) Settings() Sysctl {
	return Sysctl{Link: v.Name, Set: []Setting{
		setting("ipv6", v.Name, "disable_ipv6", "1"), setting("ipv4", v.Name, "arp_ignore", "8"), setting("ipv4", v.Name, "forwarding", "0"),
	}}
}

// vlan returns the operation that makes the VLAN below the child, none if the child
// stands on a NIC or on a VLAN of the operator.
func (m maker) vlan() Ops {
	v := m.facts.Parent.VLAN
	if v == nil || v.Foreign {
		return nil
	}
	return Ops{{Place: Host, Shared: true, Kind: VLAN{Name: m.facts.Parent.Name, VLAN: v.VLAN, Identity: v.Identity}}}
}

// OnVLAN is the VLAN of a request: the link that carries the children.
type OnVLAN struct {
	conf.VLAN
	Identity NIC  `json:"identity,omitzero"` // of the NIC
	Foreign  bool `json:"foreign,omitempty"` // the operator has made it
}
