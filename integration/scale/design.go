// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/roce-cni/roce-cni/integration/scale/rival"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// design is a way by which nodes come by addresses.
type design string

const (
	// blocks is ours: a node creates an object that stands for a block of every
	// rail.
	blocks design = "blocks"
	// locked is what whereabouts does for each address: one Lease for the cluster,
	// a list of all pools, one object for each pool and one for each address.
	locked design = "lease, list of pools"
	// shared is one object for each pool, written by compare and swap.
	shared design = "one object a pool"
)

// scenario is who wants what at once.
type scenario struct {
	Design design `json:"design"`
	Rule   rule   `json:"rule,omitempty"` // blocks alone
	Nodes  int    `json:"nodes"`
	// Fill is how full the pool is in the end, in percent; blocks alone.
	Fill int `json:"fill,omitempty"`
	// Joined is how full it is before.
	Joined int  `json:"joined,omitempty"`
	Hints  bool `json:"hints,omitempty"`
	// Starting nodes ask for the blocks that they have before they claim one, as an
	// agent does that has been started.
	Starting bool `json:"starting,omitempty"`
	// Parallel is how many of the nodes are at work at one time.
	Parallel int `json:"parallel"`
	// Rails is of how many pools each node needs an address; blocks have them all.
	Rails int `json:"rails"`
	// Spread is within which time the nodes begin.
	Spread time.Duration `json:"spread,omitempty"`
}

// actor is a node at work, in the world or in the model.
type actor struct {
	number  int
	store   block.Store
	objects rival.Objects
	wait    func(context.Context, time.Duration) error
	rand    func() float64
	now     func() time.Duration
	tally   *tally
}

func (a actor) name() string { return fmt.Sprintf("node-%05d", a.number) }

// claim does what a node does to come by its addresses, and returns their names.
func (s scenario) claim(ctx context.Context, a actor, spaces []block.Space) ([]string, error) {
	if s.Design == blocks {
		return s.claimBlock(ctx, a, spaces)
	}
	node := rival.Node{Name: a.name(), Objects: a.objects, Wait: a.wait, Rand: a.rand, Failed: func() { a.tally.add(failedADD) }}
	one := node.Swap
	if s.Design == locked {
		one = node.UnderLease
	}
	var names []string
	for rail := range s.Rails {
		n, err := one(ctx, rival.PoolName(rail))
		if err != nil {
			return names, err
		}
		names = append(names, fmt.Sprintf("%s/%d", rival.PoolName(rail), n))
	}
	return names, nil
}
