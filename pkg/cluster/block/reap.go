// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"context"
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

// Sightings remembers since when objects have no use, by their UIDs. The zero value
// remembers nothing, which is safe: a reaper that starts again waits for Grace again.
// Only one process may use it, because its times are of the clock of that process.
type Sightings map[string]sighting

// sighting is the time since which an object has no use, and its version since then.
type sighting struct {
	since   time.Duration
	version string
}

// Note remembers in next that an object has no use now, and returns how long that was so
// at all sightings, with this version.
func (s Sightings) Note(next Sightings, now time.Duration, uid, version string) time.Duration {
	since, again := s.Since(uid, version)
	if !again {
		since = now
	}
	next[uid] = sighting{since, version}
	return now - since
}

// Since returns when an object was first seen to have no use, with this version, and
// whether it was.
func (s Sightings) Since(uid, version string) (first time.Duration, seen bool) {
	was, there := s[uid]
	return was.since, there && was.version == version
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
// bound to these names. Look returns what to remember, and the blocks that are due. A
// block is due if two sightings are at least Grace apart, and at both and at all between
// its owner was abandoned and the block was not written.
//
// The caller must list blocks before nodes, and nodes before pods, so that a new node
// is known.
func (s Sightings) Look(now time.Duration, blocks []Block, nodes Nodes, bound map[string]bool) (next Sightings, due []Block) {
	next = Sightings{}
	for _, b := range blocks {
		if nodes.Abandoned(b.Spec.Owner, bound) && s.Note(next, now, b.UID, b.ResourceVersion) >= Grace {
			due = append(due, b)
		}
	}
	return next, due
}

// Reap deletes a block that is due, and says whether it did. It deletes exactly the block
// that Look has seen: not a new block of the same name, and not one that its owner has
// touched since. A node that comes back asserts its blocks before it leases from them.
func Reap(ctx context.Context, store Store, c Cluster, due Block) (bool, error) {
	return Free(ctx, c, due.Spec.Owner, func() error { return store.Delete(ctx, due.Name, due.UID, due.ResourceVersion) })
}

// Free asks again whether an owner is gone with all its pods, or was replaced, and then
// frees an object of it. It says whether free did. That the object is gone or has changed
// is no error. Without an answer it may be free or not; the next Look shows it.
func Free(ctx context.Context, c Cluster, owner Owner, free func() error) (bool, error) {
	state, err := OwnerNow(ctx, c.Machine, owner)
	bound := false
	if err == nil && state == Gone {
		bound, err = c.Bound(ctx, owner.NodeName)
	}
	if err != nil || state == Here || bound {
		return false, err
	}
	return Done(free())
}

// Done says whether a write to an object succeeded. That the object is gone or has changed
// is no error.
func Done(err error) (bool, error) {
	if Changed(err) {
		return false, nil
	}
	return err == nil, err
}
