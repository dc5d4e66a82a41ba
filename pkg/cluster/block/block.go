// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package block decides which addresses of a RailPool belong to this node. A block is
// a range of host indexes on every rail, and the node that creates its object owns it.
//
// It never leases an address, never runs in a plugin, never tries a second name
// before the first is answered, and has neither clock nor randomness of its own.
// Package ipam leases the addresses, from the file that package nodefile writes. The
// store is a parameter: package kube has the store on an API server, blocktest the
// store in memory. Read this file first, then space.go for what a block is and
// claim.go for how a node gets one, and hold.go for how it keeps and loses one. Package
// sticky makes leases a node's own by the same rules: store.go and hold.go have them.
package block

import "time"

// Pool is a RailPool: cluster-scoped, group roce-cni.io/v1alpha1.
type Pool struct {
	// Name is a DNS label. The names of the blocks begin with it.
	Name    string
	UID     string // distinguishes two pools with the same name
	Created time.Time
	// InUse says that the pool has our finalizer: a deleted pool stays until the nodes
	// have released their blocks. Blocks are claimed only from such pools.
	InUse bool
	// Deleted says that the pool was deleted and waits for its finalizer.
	Deleted bool
	Spec    PoolSpec
}

// PoolSpec is what an operator writes. Exactly one of Rails, Template and Racks has
// the subnets. The subnets and BlockSize must not change while there are blocks,
// because they give a block its addresses. Excludes and reservations may grow.
type PoolSpec struct {
	// Rails has an entry for each rail, in the order in which attachments number
	// them. Its strings may have {rack}.
	Rails []Rail `json:"rails,omitempty"`
	// Template is for rails that are alike.
	Template *Template `json:"template,omitempty"`
	// Racks is a table: the rails of each rack.
	Racks []Rack `json:"racks,omitempty"`
	// RackLabel is the label of a Node with its rack: a number for {rack}, a name for
	// Racks. It is needed only for these two.
	RackLabel string `json:"rackLabel,omitempty"`

	// Fabric names the network that the rails are on. It is needed if there are
	// several networks that are not connected. Only pools of different fabrics may
	// have the same addresses.
	Fabric string `json:"fabric,omitempty"`

	// BlockSize is how many slots a block has; 0 means DefaultSize. A node of 8 pods
	// needs 16 if the quarantine is as long as the life of a pod.
	BlockSize int `json:"blockSize,omitempty"`
	// MaxBlocksPerNode is how many blocks a node claims; 0 means any number. A node that
	// has more keeps them.
	MaxBlocksPerNode int `json:"maxBlocksPerNode,omitempty"`
	// Quarantine is the quarantine of an address, as ipam.quarantine; "" means 120s.
	Quarantine string `json:"quarantine,omitempty"`
	// NodeSelector is the labels of the nodes that claim blocks; none: all nodes.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Reservations are addresses that no block has.
	Reservations []Reservation `json:"reservations,omitempty"`
	// Sticky keeps the addresses of a pod that comes back under its name: see package
	// sticky.
	Sticky *Sticky `json:"sticky,omitempty"`
}

// Rail is the subnets of one rail. An attachment gets one address of each subnet.
type Rail struct {
	Subnets []Subnet `json:"subnets"`
}

// Template makes rails: {rail} in its strings is the number of the rail, from 0,
// {rack} that of the node's rack; {rail+11}, {rail*2} and {rail*2+1} too.
type Template struct {
	Count   int      `json:"count"`
	Subnets []Subnet `json:"subnets"`
}

// Rack is the rails of the nodes in one rack.
type Rack struct {
	Name  string `json:"name"` // a DNS label: the names of its blocks have it
	Rails []Rail `json:"rails"`
}

// Subnet is a subnet, written as an element of ipam.subnets.
type Subnet struct {
	Subnet  string   `json:"subnet"`
	Ranges  []string `json:"ranges,omitempty"` // none: all of it
	Exclude []string `json:"exclude,omitempty"`
	Gateway string   `json:"gateway,omitempty"`
	OnLink  bool     `json:"onLink,omitempty"` // the gateway may be outside of the subnet
}

// Reservation keeps addresses from all blocks.
type Reservation struct {
	Ranges []string `json:"ranges"` // addresses, ranges or prefixes, of any rail
	Reason string   `json:"reason"` // for people
}

// Sticky keeps the addresses of a pod for the next one of its namespace, name and
// interface.
type Sticky struct {
	TTL string `json:"ttl"` // how long an address is kept; at least the pool's quarantine
	// Slots is the range of these host indexes, "first-last". No block has them: the
	// first would begin a block and the last would end one. It must not change.
	Slots string `json:"slots"`
}

// Block is a RailBlock: cluster-scoped. The node that created it owns it. Its name is
// "<pool>-<index>", with racks "<pool>.<rack>-<index>".
type Block = Object[Spec]

// Spec never changes.
type Spec struct {
	Pool  string `json:"pool"`
	Rack  string `json:"rack,omitempty"`
	Index int    `json:"index"` // its slots begin at Index x Size
	// Size is the pool's BlockSize when the block was made. It shows if the BlockSize
	// of the pool was changed later, which is forbidden.
	Size int `json:"size"`
	Owner
}

// Usage counts slots that pods may have on all rails. A slot is leased if one of its addresses
// is, on any rail. Size is the sum of the other fields.
type Usage struct {
	Size        int `json:"size"`
	Used        int `json:"used"`        // leased
	Quarantined int `json:"quarantined"` // in quarantine
	Free        int `json:"free"`
}

// The sizes of blocks, and the maximum number of blocks of a pool. Addresses beyond
// that are not used.
const (
	DefaultSize = 16
	MaxSize     = 4096
	MaxBlocks   = 1 << 20
)

// Selects says whether a node with these labels claims blocks.
func (s PoolSpec) Selects(labels map[string]string) bool {
	for key, want := range s.NodeSelector {
		if got, ok := labels[key]; !ok || got != want {
			return false
		}
	}
	return true
}
