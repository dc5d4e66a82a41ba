// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"context"
	"errors"
	"time"
)

// Grace is how long a Node object must be gone before its blocks are anybody's.
// Node objects go and come back: with a label, with an autoscaler, by mistake.
const Grace = time.Hour

// Sightings remembers since when the owners of blocks are gone. The zero value
// remembers nothing, which is safe: whoever reaps anew waits for Grace anew. It
// must be kept by one process, because it counts in that one's clock.
type Sightings struct {
	gone map[string]time.Duration // by UID of the block
}

// Cluster is what a reaper asks about nodes. The answers must come from the
// API server, not from a cache.
type Cluster interface {
	// Lives says whether there is a Node object of that name.
	Lives(ctx context.Context, node string) (bool, error)
	// Bound says whether a pod, in whatever phase, is bound to a node of that
	// name.
	Bound(ctx context.Context, node string) (bool, error)
}

// Look is one sighting: now, in a clock that neither jumps nor stops
// (CLOCK_BOOTTIME), there are these blocks, and these nodes have a Node object
// or a pod bound to them. It returns what to remember, and the blocks that are
// due: their owners were gone at two sightings that are Grace or more apart, and
// at all between. Blocks must have been listed before nodes and pods were, so
// that a node that is new is known. An empty list of nodes is none at all: what
// made it is broken rather than the cluster without nodes, and nothing is due.
func (s Sightings) Look(now time.Duration, blocks []Block, present map[string]bool) (next Sightings, due []Block) {
	next.gone = map[string]time.Duration{}
	if len(present) == 0 {
		return next, nil
	}
	for _, b := range blocks {
		if present[b.Spec.NodeName] {
			continue
		}
		since, again := s.gone[b.UID]
		if !again {
			since = now
		}
		next.gone[b.UID] = since
		if now-since >= Grace {
			due = append(due, b)
		}
	}
	return next, due
}

// Reap deletes a block that is due, and says whether it has. It asks once more
// whether its node is gone, and then deletes the block that Look has seen, not
// what may have taken its place, and not when its owner has touched it since: a
// node that comes back asserts its blocks before it leases of them. A block that
// is gone or changed is no error. Without an answer it may have been deleted or
// not; the next Look tells.
func Reap(ctx context.Context, store Store, c Cluster, due Block) (bool, error) {
	for _, ask := range []func(context.Context, string) (bool, error){c.Lives, c.Bound} {
		if there, err := ask(ctx, due.Spec.NodeName); err != nil || there {
			return false, err
		}
	}
	err := store.Delete(ctx, due.Name, due.UID, due.ResourceVersion)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrConflict) {
		return false, nil
	}
	return err == nil, err
}
