// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package conf turns the input of a CNI call into one validated, immutable request. It
// reports every fault at once, each with its JSON path.
//
// It does no I/O, and nothing after it parses configuration. Read this file first:
// Request has everything that a configuration can say.
package conf

import (
	"net/netip"
	"reflect"
	"strconv"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// ContainerID is the runtime's identifier of a container (CNI_CONTAINERID).
type ContainerID string

// LinkName is the name of a network interface, or an alternative name of one.
type LinkName string

// Attachment names an attachment by its container and its interface (CNI_IFNAME). With
// several rails that is usually the interface of the first rail. It is the key of
// records and leases.
type Attachment struct {
	ContainerID ContainerID `json:"containerID"`
	IfName      LinkName    `json:"ifName"`
}

// Request is one ADD, CHECK or STATUS, after validation: defaults are filled in, and
// no two fields contradict each other. Settings of the request are those of all its
// rails.
type Request struct {
	CNIVersion string
	Network    string // the network configuration's name
	Attachment
	// Rails are the interfaces of the attachment, at least one. Without the key "rails"
	// there is one.
	Rails []Rail
	// Match selects the NICs of all rails: the first NIC for the first rail,
	// and so on. It is nil when each rail has its own Parent.
	Match *Match
	// MinRails is the least number of rails, at least 1. Above it, a rail is left out
	// when its NIC cannot serve.
	MinRails int

	// MACs has, for CHECK, the MACs of the pod's interfaces in the final result of ADD. A
	// plugin behind roce may have set them.
	MACs map[LinkName]MAC

	Netns  string // path of the pod's network namespace
	Pod    Pod
	Status Status
	DNS    types.DNS

	// Before is, for ADD, the result of the plugins before this one in the list; nil if
	// there are none.
	Before *current.Result
	// Digest tells configurations of roce apart. It leaves out what differs between two
	// calls with one configuration.
	Digest string
	// Prev is the interface to adopt. It is nil when roce makes one, as the
	// fields from LinkInContainer to BCQueueLen say.
	Prev            *Prev
	LinkInContainer bool // the parents are in the pod's namespace
	VLAN            int  // the parents are this VLAN of the NICs; 0: the NICs themselves
	Mode            Mode
	MTU             int // 0: the parent's
	MAC             MAC // zero: derived from the address
	BCQueueLen      uint32
	Sysctl          []Sysctl // sorted by family and key; over our defaults

	IPAM    IPAM
	Routing Routing // of rails without routing of their own
	// HostLink connects the pod with its node; nil: the pod has another network for that.
	HostLink *HostLink
	Probe    Probe
	RDMA     RDMA
	// DeviceInfoFile is the file in which Multus wants to find the device;
	// absolute, "" for none.
	DeviceInfoFile string
}

// Rail is one interface of an attachment: what it does not share with the others.
type Rail struct {
	Number int      // from 0, as the configuration counts; rails may be left out
	IfName LinkName // "" in a STATUS
	Parent Parent
	// Routing is that of the request unless the rail has its OwnRouting. A table number
	// of the request is that of the first rail; the other rails have the next ones.
	Routing    Routing
	OwnRouting bool
	// Subnets are those of a pool. Requested are the requested addresses in them, at
	// most one of each, and Routes the routes through them. If the subnets come from
	// elsewhere than ipam.subnets, all three are empty until Request.WithSubnets.
	Subnets   []pool.Subnet
	Requested []netip.Addr
	Routes    []pool.Route
}

// Pod is what Kubernetes runtimes say about the pod in CNI_ARGS. All fields may
// be empty.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// String returns namespace/name, or "" for an attachment without pod.
func (p Pod) String() string {
	if p.Name == "" || p.Namespace == "" { // a container of podman has a name alone
		return p.Name
	}
	return p.Namespace + "/" + p.Name
}

// Parent selects the host NIC that carries the macvlan: by Name alone, or by
// the other fields, which must together match exactly one NIC. The zero value
// means the interface of the default route.
type Parent struct {
	Name      LinkName     `json:"name,omitempty"` // or an altname
	RDMA      string       `json:"rdma,omitempty"`
	PCI       string       `json:"pci,omitempty"`
	Subnet    netip.Prefix `json:"subnet,omitzero"`
	IfNames   []string     `json:"ifNames,omitempty"` // globs, path.Match syntax
	Vendors   []string     `json:"vendors,omitempty"`
	DeviceIDs []string     `json:"deviceIDs,omitempty"`
	Drivers   []string     `json:"drivers,omitempty"`
	LinkTypes []string     `json:"linkTypes,omitempty"`
	Function  Function     `json:"function,omitempty"`
}

// Function is a kind of PCI or auxiliary function of a NIC.
type Function string

// The functions: the NIC itself (PF), one of its virtual functions (VF, SR-IOV), and
// one of its scalable functions (SF, on the auxiliary bus).
const (
	Physical Function = "physical"
	Virtual  Function = "virtual"
	Scalable Function = "scalable"
)

// Default says whether p selects nothing. It then means the interface of the
// default route, or, behind another plugin, that plugin's interface.
func (p Parent) Default() bool { return reflect.ValueOf(p).IsZero() }

// Match selects the NICs of all rails.
type Match struct {
	Parent Parent // the properties that each has; never a name
	Count  int    // how many there must be
	Order  Order  // which is the first
}

// Order is the key rails.order.
type Order string

// The orders: by PCI address, or by the name of the RDMA device. Numbers in a
// name are sorted by value (mlx5_2 before mlx5_10).
const (
	ByPCI  Order = "pci"
	ByRDMA Order = "rdma"
)

// Mode is the mode of the child, spelled as iproute2 does. It says of which kind the
// child is: L2 is an ipvlan, all others are macvlans.
type Mode string

// The macvlan modes (ip-link(8)).
const (
	Bridge   Mode = "bridge"
	Private  Mode = "private"
	VEPA     Mode = "vepa"
	Passthru Mode = "passthru"
)

// L2 is the ipvlan mode in which the child has ARP and neighbour discovery.
const L2 Mode = "l2"

// Kind returns the kind of the child, as iproute2 and the key "child" spell it.
func (m Mode) Kind() string {
	if m == L2 {
		return "ipvlan"
	}
	return "macvlan"
}

// Article returns Kind with its article.
func (m Mode) Article() string {
	if m == L2 {
		return "an ipvlan"
	}
	return "a macvlan"
}

// SharesMAC says whether the child has the MAC of its master.
func (m Mode) SharesMAC() bool { return m == L2 || m == Passthru }

// Sysctl is one per-interface kernel setting of the child.
type Sysctl struct {
	Tree  string // "ipv4/conf", "ipv6/conf", "ipv4/neigh" or "ipv6/neigh"
	Key   string // "arp_ignore"
	Value string
}

// PluginType is the type of the plugin itself.
const PluginType = "roce"

// PoolType is the ipam.type that roce serves in process.
const PoolType = "roce-ipam"

// IPAM says where addresses come from. Type "" means that the interface gets no
// address. PoolType means that the fields below are used. Any other type is a
// CNI plugin, which gets Raw on its standard input.
type IPAM struct {
	Type       string
	Pool       string
	Quarantine time.Duration
	Requested  []netip.Addr // of all rails, each once
	Routes     []pool.Route // of all rails
	Raw        []byte       // the whole configuration as it came in
	// At most one of the following says where the subnets of the rails come from. If
	// none does, they are those of ipam.subnets. FromMaster makes them from the NICs'
	// own addresses.
	FromMaster *pool.FromMaster
	// Table says that the table of the node has the subnets of each rail.
	Table bool
	// RailPool is the cluster's pool that the addresses are from; nil for none. Pool is
	// then its name. Quarantine is right only after the node file has been read.
	RailPool *pool.RailPool
}

// LeasePool returns the name of the node's pool that has the leases.
func (p IPAM) LeasePool() string {
	if p.RailPool != nil {
		return pool.OfRailPool(p.RailPool.Name)
	}
	return p.Pool
}

// RoutingMode says where routes go.
type RoutingMode string

// The routing modes: a rule and a table for each address; routes in the main
// table, as upstream macvlan has them; or only the kernel's own routes.
const (
	RoutingPolicy RoutingMode = "policy"
	RoutingMain   RoutingMode = "main"
	RoutingNone   RoutingMode = "none"
)

// Routing is the key "routing".
type Routing struct {
	Mode         RoutingMode
	Table        uint32 // 0: the lowest number from 100 that is free in the pod
	Priority     uint32 // of the lookup rule; the unreachable rule has the next
	DefaultRoute bool   // also a default route in the main table
	Metric       uint32 // of that default route; 0: the kernel's choice
}

// Severity says what follows when a check on the network fails.
type Severity string

// The severities: the ADD fails, a warning is logged, or there is no check.
const (
	Require Severity = "require"
	Warn    Severity = "warn"
	Off     Severity = "off"
)

// Probe is the key "probe".
type Probe struct {
	Conflict Conflict
	Gateway  Gateway
}

// Conflict is the effort of the conflict probe: Probes probes, Interval apart,
// and Wait after the last one.
type Conflict struct {
	Mode     Severity
	Probes   int
	Interval time.Duration
	Wait     time.Duration
}

// Gateway is the effort of the search for the gateway: Attempts requests, and
// Timeout for the answer to each.
type Gateway struct {
	Mode     Severity
	Attempts int
	Timeout  time.Duration
}

// RDMAMode is the key rdma.mode.
type RDMAMode string

// The RDMA modes: the mode of the system, shared, exclusive, or no RDMA work at
// all.
const (
	RDMAAuto      RDMAMode = "auto"
	RDMAShared    RDMAMode = "shared"
	RDMAExclusive RDMAMode = "exclusive"
	RDMAOff       RDMAMode = "off"
)

// GIDIndex is the key rdma.gidIndex. A positive number is the GID index of the
// first address of each rail.
type GIDIndex int

// AnyIndex promises nothing. EqualIndex means that the GID indexes are the same on
// all rails of the pod.
const (
	AnyIndex   GIDIndex = 0
	EqualIndex GIDIndex = -1
)

// MaxGIDIndex is the greatest number that the key takes: tables of NICs have 256
// entries or fewer.
const MaxGIDIndex = 255

// String returns the value as the key has it.
func (i GIDIndex) String() string {
	switch i {
	case AnyIndex:
		return "any"
	case EqualIndex:
		return "equal"
	}
	return strconv.Itoa(int(i))
}

// RDMA is the key "rdma".
type RDMA struct {
	Mode RDMAMode
	GID  Severity
	// GIDWait is the longest wait for the GID table entries, for all together.
	GIDWait time.Duration
	// GIDIndex is the promise about the GID indexes.
	GIDIndex GIDIndex
	// UVerbs is what follows when a move changes the file of a device.
	UVerbs Severity
	// Settings for a device that moves into the pod; nil: the host's settings.
	TOS          *uint8 // IP type of service that rdma_cm sets
	TrafficClass *uint8 // traffic class that the driver forces, where it can
}

// Status is the key "status": the reasons for which STATUS fails. Pool is Require or Off. With
// Rails Require, it fails when fewer than MinRails can serve, and with AnyRail when none can.
type Status struct{ Pool, Rails Severity }

// AnyRail is a value of Status.Rails.
const AnyRail Severity = "any"
