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
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/roce-cni/roce-cni/pkg/conf/chain"
	"github.com/roce-cni/roce-cni/pkg/conf/pool"
)

// ContainerID is the runtime's identifier of a container (CNI_CONTAINERID).
type ContainerID string

// LinkName is the name of a network interface, or an alternative name of one.
type LinkName string

// Request is one ADD or CHECK, validated: the defaults are filled in, and no
// two fields contradict each other.
type Request struct {
	CNIVersion  string
	Network     string // the network configuration's name
	ContainerID ContainerID
	IfName      LinkName
	// Rail is which interface of the attachment the request is for, from 0.
	Rail int
	// Rails are the requests for each interface of an attachment, when the
	// configuration has "rails"; nil when it is for one interface, this one.
	// They share all settings that are not a rail's own, and have no Rails
	// themselves.
	Rails []Request
	// Match is which NICs the rails stand on, the i-th on the i-th; nil when
	// each rail says its own Parent.
	Match *Match
	// MinRails is how many rails there must be at least; the others may be left
	// out when their NIC cannot serve. 0 when Rails is nil.
	MinRails int

	Netns    string // path of the pod's network namespace
	Pod      Pod
	StateDir string // absolute
	Log      Log
	Status   Status
	DNS      types.DNS

	// Prev is the interface to adopt; nil: roce makes one, as the fields from
	// Parent to BCQueueLen say.
	Prev            *chain.Prev
	Parent          Parent
	LinkInContainer bool // the parent is in the pod's namespace
	Mode            Mode
	MTU             int // 0: the parent's
	MAC             MAC // zero: derived from the address
	BCQueueLen      uint32
	Sysctl          []Sysctl // sorted by family and key; over our defaults

	IPAM    IPAM
	Routing Routing
	Probe   Probe
	RDMA    RDMA
	// DeviceInfoFile is where Multus wants to read what the device is; absolute,
	// "" if nowhere.
	DeviceInfoFile string
}

// Pod is what Kubernetes runtimes tell about the pod in CNI_ARGS; all fields
// may be empty.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// String returns namespace/name, or "" for an attachment without pod.
func (p Pod) String() string {
	if p.Name == "" {
		return ""
	}
	return p.Namespace + "/" + p.Name
}

// Parent selects the host NIC that carries the macvlan: Name alone, or any of
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
}

// Default says whether nothing is asked for: the interface of the default
// route, or, behind another plugin, that plugin's.
func (p Parent) Default() bool {
	return p.Name == "" && p.RDMA == "" && p.PCI == "" && !p.Subnet.IsValid() &&
		len(p.IfNames)+len(p.Vendors)+len(p.DeviceIDs)+len(p.Drivers)+len(p.LinkTypes) == 0
}

// Match selects the NICs of all rails.
type Match struct {
	Parent Parent // the properties that each has; never a name
	Count  int    // how many there must be
	Order  Order  // which is the first
}

// Order is the key rails.order.
type Order string

// The orders: by PCI address, or by the name of the RDMA device, numbers in it
// by value (mlx5_2 before mlx5_10).
const (
	ByPCI  Order = "pci"
	ByRDMA Order = "rdma"
)

// Each returns the requests for the interfaces of the attachment, in the order
// of the rails: Rails, or the request itself.
func (r Request) Each() []Request {
	if r.Rails == nil {
		return []Request{r}
	}
	return r.Rails
}

// Mode is the macvlan mode, spelled as iproute2 does.
type Mode string

// The macvlan modes (ip-link(8)).
const (
	Bridge   Mode = "bridge"
	Private  Mode = "private"
	VEPA     Mode = "vepa"
	Passthru Mode = "passthru"
)

// Sysctl is one per-interface kernel setting of the child.
type Sysctl struct {
	Tree  string // "ipv4/conf", "ipv6/conf", "ipv4/neigh" or "ipv6/neigh"
	Key   string // "arp_ignore"
	Value string
}

// PluginType is the type of the plugin itself.
const PluginType = "roce"

// PoolType is the ipam.type that is served in process.
const PoolType = "roce-ipam"

// IPAM says where addresses come from. Type "" means that the interface gets
// none; PoolType means that the fields below hold; any other type is a CNI
// plugin that gets Raw on its standard input.
type IPAM struct {
	Type       string
	Pool       string
	Subnets    []Subnet
	Quarantine time.Duration
	Requested  []netip.Addr // at most one for each subnet
	Routes     []Route
	Raw        []byte // the whole configuration as it came in
	// FromMaster says that the subnets follow from the NIC's own addresses;
	// Subnets is then empty.
	FromMaster *FromMaster
	// Table is a file that has the subnets of each node and rail; absolute, ""
	// if none. Subnets is then empty.
	Table string
	// RailPool is the pool of the cluster that the addresses are of; nil if none.
	// Pool is then its name, Subnets is empty, and Quarantine counts only once the
	// node has said it.
	RailPool *RailPool
}

// RailPool names a pool that spans nodes.
type RailPool = pool.RailPool

// FromMaster says how a NIC's own addresses make subnets.
type FromMaster = pool.FromMaster

// Derive gives a node a part of the subnet.
type Derive = pool.Derive

// The gateways of FromMaster.
const (
	FirstHost = pool.FirstHost
	LastHost  = pool.LastHost
	NoGateway = pool.NoGateway
)

// Subnet is one subnet of a pool, of which an attachment gets one address.
type Subnet = pool.Subnet

// Route is a route that IPAM asks for.
type Route = pool.Route

// RoutingMode says where routes go.
type RoutingMode string

// The routing modes: a rule and a table for each address, routes in the main
// table as upstream macvlan has them, or none but the kernel's own.
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

// Severity says what a failed check of the wire does.
type Severity string

// The severities: fail the ADD, log, or do not ask.
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

// Conflict is how hard we look for another user of an address: Probes probes,
// Interval apart, and Wait after the last one.
type Conflict struct {
	Mode     Severity
	Probes   int
	Interval time.Duration
	Wait     time.Duration
}

// Gateway is how hard we look for the gateway: Attempts requests, each with
// Timeout to answer.
type Gateway struct {
	Mode     Severity
	Attempts int
	Timeout  time.Duration
}

// RDMAMode is the key rdma.mode.
type RDMAMode string

// The RDMA modes: the system's, shared, exclusive, or no RDMA work at all.
const (
	RDMAAuto      RDMAMode = "auto"
	RDMAShared    RDMAMode = "shared"
	RDMAExclusive RDMAMode = "exclusive"
	RDMAOff       RDMAMode = "off"
)

// RDMA is the key "rdma".
type RDMA struct {
	Mode RDMAMode
	GID  Severity
	// GIDWait is how long the entries of the GID table may take, all together.
	GIDWait time.Duration
	// For connections of a device that moves into the pod; nil: as the host
	// had it.
	TOS          *uint8 // IP type of service that rdma_cm sets
	TrafficClass *uint8 // traffic class that the driver forces, where it can
}

// Status is the key "status": what STATUS fails for. Pool is Require or Off.
type Status struct{ Pool Severity }

// Log is the key "log". File "" means standard error.
type Log struct {
	File  string
	Level string // debug, info, warn or error
}
