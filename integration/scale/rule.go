// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/pace"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// rule is how a node looks for a block that is free. All run the claimer of
// pkg/cluster/block; the others change what it sees.
type rule string

const (
	// asIs is what pkg/cluster/block does.
	asIs rule = ""
	// blind creates one block after the other, without looking whether they are
	// free.
	blind rule = "blind"
	// sharding begins with a list of the blocks of one shard of the pool, and goes
	// on to the next when that is full.
	sharding rule = "list of a shard"
)

// shardBlocks is how many blocks a shard has, about.
const shardBlocks = 256

// total is how many blocks the pool has.
func (s scenario) total() int {
	held := s.Fill - s.Joined
	return (s.Nodes*100 + held - 1) / held
}

// spaces returns the blocks of the pool, in one part for each shard; the other
// designs have none.
func (s scenario) spaces() ([]block.Space, error) {
	if s.Design != blocks {
		return nil, nil
	}
	shards := 1
	if s.Rule == sharding {
		shards = (s.total() + shardBlocks - 1) / shardBlocks
	}
	pool := blockPool((s.total() + shards - 1) / shards)
	var out []block.Space
	for shard := range shards {
		space, err := pool.Space(strconv.Itoa(shard))
		if err != nil {
			return nil, err
		}
		out = append(out, space)
	}
	return out, nil
}

// blockPool is a pool of that many blocks for each shard, of eight rails of IPv6
// subnets that are large enough for any number.
func blockPool(count int) block.Pool {
	last := count*block.DefaultSize - 1
	return block.Pool{Name: "scale", Spec: block.PoolSpec{
		RackLabel: "shard",
		Template: &block.Template{Count: 8, Subnets: []block.Subnet{{
			Subnet: "fd00:{rail}:{rack}::/64",
			Ranges: []string{fmt.Sprintf("fd00:{rail}:{rack}::-fd00:{rail}:{rack}::%x:%x", last>>16, last&0xffff)},
		}}},
	}}
}

// member is the machine of a node. Its hint is its number: as those of NICs that
// are numbered one by one.
func (s scenario) member(a actor) block.Node {
	n := block.Node{Name: a.name(), MachineID: fmt.Sprintf("%032x", a.number+1)}
	if s.Hints {
		own := netip.MustParseAddr("fd00::").As16()
		own[13], own[14], own[15] = byte(a.number>>16), byte(a.number>>8), byte(a.number)
		n.Own = []netip.Addr{netip.AddrFrom16(own)}
	}
	return n
}

// claimBlock lets pkg/cluster/block claim.
func (s scenario) claimBlock(ctx context.Context, a actor, spaces []block.Space) ([]string, error) {
	c := &block.Claimer{
		Doubt: func(error) {},
		Store: a.store, Node: s.member(a), Clock: pace.Clock{Wait: a.wait, Rand: a.rand, Now: a.now},
		// No node has the machine-id of another node.
		Machine: func(context.Context, string) (string, error) { return "", block.ErrNotFound },
	}
	if s.Rule == blind {
		c.Store = blindBlocks{a.store}
	}
	if s.Starting {
		if own, err := c.Own(ctx, spaces[0]); err != nil || len(own) > 0 {
			return nil, fmt.Errorf("node %d has %d blocks already: %w", a.number, len(own), err)
		}
	}
	// The order of the shards is the node's own and the same each time.
	var got block.Claim
	var err error
	for _, i := range rand.New(rand.NewPCG(uint64(a.number), 2)).Perm(len(spaces)) {
		got, err = c.Claim(ctx, spaces[i], nil)
		if err == nil || cnierr.CodeOf(err) != cnierr.PoolExhausted {
			break
		}
	}
	return []string{got.Name}, err
}

// blindBlocks is a store with an empty cache.
type blindBlocks struct{ block.Store }

// Peek is block.Store's.
func (blindBlocks) Peek(context.Context, string) (block.Block, error) {
	return block.Block{}, block.ErrNotFound
}
