// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/roce-cni/roce-cni/pkg/conf"
)

// Facts is what the plan needs to know of the node and the pod. Reading it
// changes nothing.
type Facts struct {
	Node      string       `json:"node"` // identity of the node; any string that no other node has
	Parent    Link         `json:"parent"`
	Adopted   *Adopted     `json:"adopted,omitempty"`   // nil: we make the link
	HostAddrs []netip.Addr `json:"hostAddrs,omitempty"` // all addresses of the host; never leased
	Pod       PodFacts     `json:"pod"`
	RDMA      *RDMA        `json:"rdma,omitempty"` // nil: no RDMA work is asked for
}

// RailFacts is the facts of one rail, or why there cannot be that rail.
type RailFacts struct {
	Facts
	Fault error // nil: the rail can be made; else Facts has no more than is known
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
	Name conf.LinkName `json:"name"` // its real name, also when it was selected by an altname
	MAC  conf.MAC      `json:"mac"`
	MTU  int           `json:"mtu"`
	// Layers are the indexes of the links that it is made of, in its own
	// namespace: itself, then what it stands on (the NIC of a VLAN, the slaves
	// of a bond), and so on down.
	Layers [][]int32 `json:"-"`
	// Device is what the link is of on its bus, if it is adopted and that is
	// known: a PCI address ("0000:0b:00.2") or the name of an auxiliary device
	// ("mlx5_core.sf.4").
	Device string `json:"-"`
	// Addrs are its own addresses that reach beyond the link, IPv4 before IPv6.
	Addrs []netip.Prefix `json:"-"`
	// InPod says that it is in the pod's namespace, and Layers are indexes there.
	InPod bool `json:"inPod,omitempty"`
}

// onNode returns the link's name if that says anything outside its pod.
func (l Link) onNode() conf.LinkName {
	if l.InPod {
		return ""
	}
	return l.Name
}

// Adopted is the link that another plugin has made for the pod. The plan's
// parent is then the link whose RDMA device it uses, itself if it is a NIC, and
// matters for nothing else.
type Adopted struct {
	MAC   conf.MAC `json:"mac"`
	MTU   int      `json:"mtu"`
	NoARP bool     `json:"noARP,omitempty"` // asks and answers neither ARP nor neighbour discovery
}

// NetnsID tells a network namespace from all that exist at the same time: the
// device and inode numbers of its file in nsfs. Inode numbers are reused at
// once after the namespace is gone.
type NetnsID struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

// PodFacts is what the pod's namespace holds before we start.
type PodFacts struct {
	Netns    NetnsID        `json:"netns"`
	IPv6     bool           `json:"ipv6"`               // the kernel has IPv6, though it may be disabled on links
	Taken    bool           `json:"taken"`              // a link, or an altname of one, has the name CNI_IFNAME
	Tables   []uint32       `json:"tables,omitempty"`   // numbers that a route or a rule uses, sorted, without 253 to 255
	Rules    []ForeignRule  `json:"rules,omitempty"`    // that can catch a packet by its source alone
	Defaults []DefaultRoute `json:"defaults,omitempty"` // of the main table
}

// ForeignRule is a policy rule in the pod that looks at nothing but the source
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

// Lease is the addresses that an attachment was given, in the order in which
// they go on the link, and what came with them.
type Lease struct {
	Addresses []LeasedAddress `json:"addresses"`
	Routes    []conf.Route    `json:"routes,omitempty"`
	DNS       types.DNS       `json:"dns,omitzero"`
}

// LeasedAddress is one address and its subnet's length and gateway.
type LeasedAddress struct {
	Prefix  netip.Prefix `json:"prefix"` // not masked
	Gateway netip.Addr   `json:"gateway,omitzero"`
	// Early says that the address has not rested as long as it should, because
	// nothing else was left: the wire must be asked before it is used.
	Early bool `json:"early,omitempty"`
}
