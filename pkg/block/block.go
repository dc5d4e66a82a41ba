// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package block decides which addresses of a RailPool belong to this node. A block is
// a range of host indexes on every rail, and the node that creates its object owns it.
//
// It never leases an address, never runs in a plugin, never tries a second name before
// the first is answered, and has neither clock nor randomness of its own. It stands
// beside ipam, which leases from the file that package nodefile writes. The store is a
// parameter: package kube has the one on an API server, blocktest the one in memory.
// Read this file first, then space.go for what a block is and claim.go for how a node
// gets one; package reap is how a node loses one.
package block

import "time"

// Pool is a RailPool: cluster-scoped, group roce-cni.io/v1alpha1.
type Pool struct {
	// Name is a DNS label: the names of the blocks begin with it.
	Name string
	Spec PoolSpec
}

// PoolSpec is what an operator writes. Exactly one of Rails, Template and Racks
// says which subnets there are. Those and BlockSize must not change while there
// are blocks: a block's addresses follow from them. Excludes and reservations
// may grow.
//
// +kubebuilder:object:generate=true
type PoolSpec struct {
	// Rails has an entry for each rail, in the order in which attachments number
	// them. Its strings may have {rack}.
	Rails []Rail `json:"rails,omitempty"`
	// Template is for rails that are alike.
	Template *Template `json:"template,omitempty"`
	// Racks is a table: the rails of each rack.
	Racks []Rack `json:"racks,omitempty"`
	// RackLabel is the label of a Node that says in which rack it is: a number
	// for {rack}, a name for Racks. Needed for those, and for nothing else.
	RackLabel string `json:"rackLabel,omitempty"`

	// Fabric names the network that the rails are on, if there are several that are
	// not connected: only pools of different ones may have the same addresses.
	Fabric string `json:"fabric,omitempty"`

	// BlockSize is how many slots a block has; 0 means DefaultSize. A node of 8
	// pods whose addresses rest as long as pods live needs 16.
	BlockSize int `json:"blockSize,omitempty"`
	// Quarantine is how long an address rests, as ipam.quarantine; "" means 120s.
	Quarantine string `json:"quarantine,omitempty"`
	// NodeSelector is the labels of the nodes that claim blocks; none: all nodes.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Reservations are addresses that no block has.
	Reservations []Reservation `json:"reservations,omitempty"`
	// Sticky keeps the addresses of a pod that comes back under its name: see package
	// sticky.
	Sticky *Sticky `json:"sticky,omitempty"`
}

// Rail is the subnets of one rail, of each of which an attachment gets an
// address.
//
// +kubebuilder:object:generate=true
type Rail struct {
	Subnets []Subnet `json:"subnets"`
}

// Template makes rails: {rail} in its strings is the number of the rail, from 0,
// {rack} that of the node's rack; {rail+11}, {rail*2} and {rail*2+1} too.
//
// +kubebuilder:object:generate=true
type Template struct {
	Count   int      `json:"count"`
	Subnets []Subnet `json:"subnets"`
}

// Rack is the rails of the nodes in one rack.
//
// +kubebuilder:object:generate=true
type Rack struct {
	Name  string `json:"name"` // a DNS label: the names of its blocks have it
	Rails []Rail `json:"rails"`
}

// Subnet is a subnet, written as an element of ipam.subnets.
//
// +kubebuilder:object:generate=true
type Subnet struct {
	Subnet  string   `json:"subnet"`
	Ranges  []string `json:"ranges,omitempty"` // none: all of it
	Exclude []string `json:"exclude,omitempty"`
	Gateway string   `json:"gateway,omitempty"`
}

// Reservation keeps addresses from all blocks.
//
// +kubebuilder:object:generate=true
type Reservation struct {
	Ranges []string `json:"ranges"` // addresses, ranges or prefixes, of any rail
	Reason string   `json:"reason"` // for whoever wonders
}

// Sticky keeps the addresses of a pod for the next one of its namespace, name and
// interface.
//
// +kubebuilder:object:generate=true
type Sticky struct {
	TTL string `json:"ttl"` // for how long; at least the pool's quarantine
	// Slots is the host parts that are kept so, "first-last", which no block has:
	// the first begins a block and the last ends one. It must not change.
	Slots string `json:"slots"`
}

// Block is a RailBlock: cluster-scoped. The node that has created it owns it.
type Block struct {
	// Name is "<pool>-<index>", with racks "<pool>.<rack>-<index>": all that two
	// nodes could fight for, so that the API server's rule that names are unique
	// is the lock.
	Name string
	// UID tells two blocks of one name apart. The store makes it.
	UID string
	// ResourceVersion changes whenever the block is written. The store makes it.
	ResourceVersion string
	// Created is when, by the store's clock: for people.
	Created time.Time
	Spec    Spec
}

// Spec never changes.
//
// +kubebuilder:object:generate=true
type Spec struct {
	Pool  string `json:"pool"`
	Rack  string `json:"rack,omitempty"`
	Index int    `json:"index"` // it has the slots from Index x Size on
	// Size is the pool's BlockSize at the time: a pool whose BlockSize was changed
	// all the same is found out by it.
	Size int `json:"size"`
	// NodeName and MachineID together are the owner. A name alone may come back
	// on another machine, and an id is cloned with its image.
	NodeName  string `json:"nodeName"`
	MachineID string `json:"machineID"`
}

// The sizes of blocks, and how many of them a pool has at most: what is beyond
// is not used.
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
