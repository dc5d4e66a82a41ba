// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// Facts has what the plan needs to know of the node and the pod.
type Facts struct {
	Node      string       `json:"node"` // identity of the node; any string that is unique to the node
	Parent    Link         `json:"parent"`
	Adopted   *Adopted     `json:"adopted,omitempty"`   // nil: we make the link
	HostAddrs []netip.Addr `json:"hostAddrs,omitempty"` // all addresses of the host; never leased
	Pod       PodFacts     `json:"pod"`
	RDMA      *RDMA        `json:"rdma,omitempty"` // nil: no RDMA work is asked for
}

// RailFacts has the facts of one rail, or why the rail cannot be made.
type RailFacts struct {
	Facts
	Fault error // nil: the rail can be made; else Facts has only what is known
}

// Only returns the facts of an attachment that has one interface.
func Only(rails []RailFacts, err error) (Facts, error) {
	if err == nil {
		err = rails[0].Fault
	}
	if err != nil {
		return Facts{}, err
	}
	return rails[0].Facts, nil
}

// Link is a network interface that can carry a macvlan, or has an RDMA device.
type Link struct {
	Name  conf.LinkName `json:"name"` // its real name, also if an altname selected it
	MAC   conf.MAC      `json:"mac"`
	MTU   int           `json:"mtu"`
	Index int32         `json:"-"` // in its own namespace; 0: unknown
	// Layers are indexes of links in its own namespace: first the link itself,
	// then the links directly below it (the NIC of a VLAN, the slaves of a
	// bond), and so on down.
	Layers [][]int32 `json:"-"`
	// Device names the device of an adopted link on its bus, if it is known: a PCI address
	// ("0000:0b:00.2"), or the name of an auxiliary device ("mlx5_core.sf.4").
	Device string `json:"-"`
	// Addrs are its own addresses that are valid beyond the link, IPv4 before IPv6.
	Addrs []netip.Prefix `json:"-"`
	// InPod says that it is in the pod's namespace.
	InPod bool `json:"inPod,omitempty"`
	// VLAN says that it is the VLAN that the request asks for. It need not exist yet.
	VLAN *OnVLAN `json:"vlan,omitempty"`
}

// OnNode returns the name of the NIC on the node: that of the link, or of the NIC below
// the VLAN of a request. It is "" if the link is in the pod.
func (l Link) OnNode() conf.LinkName {
	switch {
	case l.InPod:
		return ""
	case l.VLAN != nil:
		return l.VLAN.NIC
	}
	return l.Name
}

// identity returns what tells the link from all others, zero if that is unknown.
func (l Link) identity() NIC {
	if l.Index == 0 {
		return NIC{}
	}
	return NIC{l.Index, l.MAC}
}

// Adopted is the link that another plugin has made for the pod. The plan's
// parent is then the link with the RDMA device that the adopted link uses: for
// a NIC, the adopted link itself. The parent has no other use then.
type Adopted struct {
	MAC   conf.MAC `json:"mac"`
	MTU   int      `json:"mtu"`
	NoARP bool     `json:"noARP,omitempty"` // does without ARP and neighbour discovery
}

// PodFacts is what the pod's namespace holds before we start.
type PodFacts struct {
	Netns    netns.ID       `json:"netns"`
	IPv6     bool           `json:"ipv6"`               // the kernel has IPv6; links may have it disabled
	Taken    bool           `json:"taken"`              // a link, or an altname of one, has the name CNI_IFNAME
	Tables   []uint32       `json:"tables,omitempty"`   // numbers that a route or a rule uses, sorted, without 253 to 255
	Rules    []ForeignRule  `json:"rules,omitempty"`    // rules that can match a packet by its source alone
	Defaults []DefaultRoute `json:"defaults,omitempty"` // of the main table
}

// ForeignRule is a policy rule in the pod that looks only at the source
// address, so that it may win over ours. From is 0.0.0.0/0 or ::/0 for "all".
// The kernel's own rules (tables local, main and default) are left out.
type ForeignRule struct {
	From     netip.Prefix `json:"from"`
	Table    uint32       `json:"table,omitempty"`
	Priority uint32       `json:"priority"`
	Protocol uint8        `json:"protocol,omitempty"`
}

// DefaultRoute is a default route in the pod's main table.
type DefaultRoute struct {
	IPv6   bool          `json:"ipv6,omitempty"`
	Link   conf.LinkName `json:"link"`
	Via    netip.Addr    `json:"via,omitzero"`
	Metric uint32        `json:"metric,omitempty"`
}

// Lease has the addresses that an attachment got, in the order in which they go
// on the link, and the settings that came with them.
type Lease struct {
	Addresses []LeasedAddress `json:"addresses"`
	Routes    []pool.Route    `json:"routes,omitempty"`
	DNS       types.DNS       `json:"dns,omitzero"`
}

// LeasedAddress is one address and its subnet's length and gateway.
type LeasedAddress struct {
	Prefix  netip.Prefix `json:"prefix"` // not masked
	Gateway netip.Addr   `json:"gateway,omitzero"`
	// Early says that the quarantine of the address is not over, and that no
	// other address was left. The network must be asked before the address is
	// used.
	Early bool `json:"early,omitempty"`
}
