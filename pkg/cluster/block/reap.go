// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"context"
	"errors"
	"time"
)

// The reaper decides when a block may be freed: its owner has been gone for an hour,
// with all its pods, or was replaced. It never deletes a block that it has not seen
// abandoned twice, and never uses the clock of another machine. It forgets everything
// when its process ends, which is safe. Package sticky frees leases by the same rules.

// Grace is how long a Node object must be gone before its blocks are freed. Node
// objects go and come back: after a change of a label, with an autoscaler, or by
// mistake.
const Grace = time.Hour

// Sightings remembers since when the owners of blocks are gone. The zero value
// remembers nothing, which is safe: a reaper that starts again waits for Grace again.
// Only one process may use it, because its times are of the clock of that process.
type Sightings struct {
	gone map[string]sighting // by UID of the block
}

// sighting is the time since which the owner of a block is gone, and the version of
// the block since then. An owner that writes the block is alive.
type sighting struct {
	since   time.Duration
	version string
}

// Cluster answers the reaper's questions about nodes. The answers must come from the
// API server, not from a cache.
type Cluster interface {
	// Machine returns the machine-id that the Node object of that name reports,
	// "" while it reports none. ErrNotFound: there is no such object.
	Machine(ctx context.Context, node string) (string, error)
	// Bound says whether a pod in any phase is bound to a node of that name.
	Bound(ctx context.Context, node string) (bool, error)
}

// Look is one sighting. now is the time of a clock that neither jumps nor stops
// (CLOCK_BOOTTIME). At that time there are these blocks, these Node objects, and pods
// bound to these names. bound is needed only for the names of Missing. Look returns
// what to remember, and the blocks that are due. A block is due if two sightings are
// at least Grace apart, and at both and at all between the block was not written and
// its owner was replaced, or gone with all its pods. A replaced machine runs none of
// its old pods. Pods that are bound to its name are those of the new machine.
//
// The caller must list blocks before nodes, and nodes before pods, so that a new node
// is known. If there are no nodes at all, nothing is due: the list is probably wrong.
func (s Sightings) Look(now time.Duration, blocks []Block, nodes Nodes, bound map[string]bool) (next Sightings, due []Block) {
	next.gone = map[string]sighting{}
	if len(nodes) == 0 {
		return next, nil
	}
	for _, b := range blocks {
		state := nodes.Owner(b.Spec)
		if state == Here || state == Gone && bound[b.Spec.NodeName] {
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
func (s Sightings) Since(b Block) (first time.Duration, gone bool) {
	seen, gone := s.gone[b.UID]
	return seen.since, gone
}

// Reap deletes a block that is due, and says whether it did. It first asks again
// whether the node is gone or replaced. Then it deletes exactly the block that Look
// has seen. It does not delete a new block of the same name, or a block that its
// owner has touched since. A node that comes back asserts its blocks before it leases
// from them. A block that is gone or changed is no error. Without an answer, the
// block may be deleted or not; the next Look shows it.
func Reap(ctx context.Context, store Store, c Cluster, due Block) (bool, error) {
	gone, err := Abandoned(ctx, c, due.Spec)
	if err != nil || !gone {
		return false, err
	}
	err = store.Delete(ctx, due.Name, due.UID, due.ResourceVersion)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrConflict) {
		return false, nil
	}
	return err == nil, err
}

// Abandoned asks whether an owner is gone with all its pods, or was replaced.
func Abandoned(ctx context.Context, c Cluster, owner Spec) (bool, error) {
	state, err := OwnerNow(ctx, c.Machine, owner)
	if err != nil || state != Gone {
		return state == Replaced, err
	}
	bound, err := c.Bound(ctx, owner.NodeName)
	return err == nil && !bound, err
}
