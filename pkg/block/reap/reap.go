// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package reap decides when a block may be freed: its owner has been gone for an hour,
// with all its pods, or was replaced.
//
// It never deletes a block that it has not seen abandoned twice, never uses the clock
// of another machine, and forgets everything when its process ends, which is safe. It
// stands on block, below sticky, which frees leases by the same rules. Everything is
// in this file.
package reap

import (
	"context"
	"errors"
	"time"

	"github.com/roce-cni/roce-cni/pkg/block"
)

// Grace is how long a Node object must be gone before its blocks are anybody's.
// Node objects go and come back: with a label, with an autoscaler, by mistake.
const Grace = time.Hour

// Sightings remembers since when the owners of blocks are gone. The zero value
// remembers nothing, which is safe: whoever reaps anew waits for Grace anew. It
// must be kept by one process, because it counts in that one's clock.
type Sightings struct {
	gone map[string]sighting // by UID of the block
}

// sighting is since when the owner of a block is gone, and the version that the
// block has had ever since: who writes it lives.
type sighting struct {
	since   time.Duration
	version string
}

// Cluster is what a reaper asks about nodes. The answers must come from the
// API server, not from a cache.
type Cluster interface {
	// Machine returns the machine-id that the Node object of that name reports,
	// "" while it reports none. ErrNotFound: there is no such object.
	Machine(ctx context.Context, node string) (string, error)
	// Bound says whether a pod, in whatever phase, is bound to a node of that
	// name.
	Bound(ctx context.Context, node string) (bool, error)
}

// Look is one sighting: now, in a clock that neither jumps nor stops
// (CLOCK_BOOTTIME), there are these blocks, these Node objects, and pods bound to
// these names; bound is needed for Missing ones only. It returns what to remember,
// and the blocks that are due: at two sightings that are Grace or more apart, and
// at all between, nobody had written them and their owner was replaced, or gone
// with all its pods. A machine that was replaced runs none of its old pods, and
// those that are bound to its name are the new one's.
//
// Blocks must have been listed before nodes, and nodes before pods, so that a node
// that is new is known. No nodes at all is a fault of who has listed them rather
// than a cluster without nodes, and nothing is due.
func (s Sightings) Look(now time.Duration, blocks []block.Block, nodes block.Nodes, bound map[string]bool) (next Sightings, due []block.Block) {
	next.gone = map[string]sighting{}
	if len(nodes) == 0 {
		return next, nil
	}
	for _, b := range blocks {
		state := nodes.Owner(b.Spec)
		if state == block.Here || state == block.Gone && bound[b.Spec.NodeName] {
			continue
		}
		seen, again := s.gone[b.UID]
		if !again || seen.version != b.ResourceVersion {
			seen = sighting{now, b.ResourceVersion}
		}
		next.gone[b.UID] = seen
		if now-seen.since >= Grace {
			due = append(due, b)
		}
	}
	return next, due
}

// Since returns when, in the clock of Look, the owner of a block was first seen to
// be gone, and whether it is.
func (s Sightings) Since(b block.Block) (first time.Duration, gone bool) {
	seen, gone := s.gone[b.UID]
	return seen.since, gone
}

// Reap deletes a block that is due, and says whether it has. It asks once more
// whether its node is gone or replaced, and then deletes the block that Look has
// seen, not what may have taken its place, and not when its owner has touched it
// since: a node that comes back asserts its blocks before it leases of them. A
// block that is gone or changed is no error. Without an answer it may have been
// deleted or not; the next Look tells.
func Reap(ctx context.Context, store block.Store, c Cluster, due block.Block) (bool, error) {
	gone, err := Abandoned(ctx, c, due.Spec)
	if err != nil || !gone {
		return false, err
	}
	err = store.Delete(ctx, due.Name, due.UID, due.ResourceVersion)
	if errors.Is(err, block.ErrNotFound) || errors.Is(err, block.ErrConflict) {
		return false, nil
	}
	return err == nil, err
}

// Abandoned asks whether an owner is gone with all its pods, or was replaced.
func Abandoned(ctx context.Context, c Cluster, owner block.Spec) (bool, error) {
	state, err := block.OwnerNow(ctx, c.Machine, owner)
	if err != nil || state != block.Gone {
		return state == block.Replaced, err
	}
	bound, err := c.Bound(ctx, owner.NodeName)
	return err == nil && !bound, err
}
