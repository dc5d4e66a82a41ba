// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// The waits between requests for one thing: the first, and the longest. A real wait is 0.5 to
// 1.5 times as long, and longer by once to twice the time for which the server says: nodes
// that it refused in one second must not all come again in one.
const (
	firstWait = 100 * time.Millisecond
	longWait  = 5 * time.Second
)

// HeldError says that another node owns an object: it uses it, or has not released it.
type HeldError struct {
	Name  string
	Owner Owner
}

// Error names both.
func (e *HeldError) Error() string { return fmt.Sprintf("node %q holds %s", e.Owner.NodeName, e.Name) }

// Changed says that an object was deleted or written by another client between two requests.
func Changed(err error) bool { return errors.Is(err, ErrNotFound) || errors.Is(err, ErrConflict) }

// Hold makes an object ours or finds that it is ours, and returns the stored object. It may be
// called repeatedly, because it trusts only the server. exists says that the object exists, as
// far as we know. Then own writes it, because a reaper that thinks we are gone may be about to
// delete it, or returns why it is not ours. The errors are those of the store and of own.
// After Changed, call Hold again.
func Hold[S, Q any](ctx context.Context, s Objects[S, Q], want Object[S], exists *bool, own func(context.Context, Object[S]) (Object[S], error)) (got Object[S], err error) {
	if !*exists {
		got, err = s.Create(ctx, want)
		*exists = errors.Is(err, ErrExists)
	}
	if *exists {
		if got, err = s.Get(ctx, want.Name); err == nil {
			got, err = own(ctx, got)
		}
		*exists = !Changed(err)
	}
	return got, err
}

// hold is Hold until there is an answer. With a *HeldError it returns the block of the owner.
func (c *Claimer) hold(ctx context.Context, want Block) (got Block, err error) {
	exists := false
	err = c.retry(ctx, func() error {
		if got, err = Hold(ctx, c.Store, want, &exists, c.own); Changed(err) {
			return &BusyError{}
		}
		return err
	})
	return got, err
}

// own touches a block of this node.
func (c *Claimer) own(ctx context.Context, there Block) (Block, error) {
	if !c.Node.owns(there) {
		return there, &HeldError{there.Name, there.Spec.Owner}
	}
	return c.Store.Touch(ctx, there.Name, there.UID)
}

// held says that another node owns an object.
func held(err error) bool { return errors.As(err, new(*HeldError)) }

// retry repeats a request until there is an answer.
func (c *Claimer) retry(ctx context.Context, do func() error) error {
	for wait := firstWait; ; wait = min(2*wait, longWait) {
		err := do()
		var busy *BusyError
		asked := errors.As(err, &busy)
		if !asked && !errors.Is(err, ErrUnknown) {
			return err
		}
		d := time.Duration((0.5 + c.Rand()) * float64(wait))
		if asked { // never earlier, and not all nodes at once
			d += time.Duration((1 + c.Rand()) * float64(busy.After))
		}
		if stopped := c.Wait(ctx, d); stopped != nil {
			return fmt.Errorf("%w: %w", stopped, err)
		}
	}
}

// explain completes the error of a claim.
func (c *Claimer) explain(ctx context.Context, s Space, err error) error {
	if ctx.Err() != nil && !errors.As(err, new(*cnierr.Error)) {
		return cnierr.New(cnierr.TryAgain, claiming, s.pool, "check that the API server answers: kubectl get --raw /readyz", "%w", err)
	}
	return fmt.Errorf("node %s: %w", c.Node.Name, err)
}

// Assert confirms that the node still owns its blocks, after a restart and from time to time.
// It creates a block again that is gone: etcd was restored, or an operator has deleted it. It
// returns the blocks that the node has, also those without an answer of the store, and the lost
// ones, which another node has claimed: the node must stop leasing their addresses at once, and
// the error is Limited. A block that does not fit the pool any more is BadConfig, and stays the node's.
func (c *Claimer) Assert(ctx context.Context, s Space, recorded []Block) (kept, lost []Block, err error) {
	var faults []error
	for _, b := range recorded {
		if err := s.Check(b); err != nil { // the pool was changed, but the block is still ours
			faults = append(faults, err)
		}
		got, err := c.assert(ctx, b)
		switch {
		case held(err):
			lost = append(lost, b)
			faults = append(faults, cnierr.New(cnierr.Limited, "keep block", b.Name,
				fmt.Sprintf("remove the pods that use RailPool %s from the node: node %s leases the same addresses", s.pool, got.Spec.NodeName),
				"node %q has claimed it, because it was missing for a while", got.Spec.NodeName))
		case err != nil:
			kept = append(kept, b)
			faults = append(faults, c.explain(ctx, s, err))
		default:
			kept = append(kept, got)
		}
	}
	return kept, lost, errors.Join(faults...)
}

// assert holds a block that we have had. It needs one write if nothing has changed.
func (c *Claimer) assert(ctx context.Context, b Block) (Block, error) {
	var got Block
	err := c.retry(ctx, func() (err error) { got, err = c.Store.Touch(ctx, b.Name, b.UID); return err })
	if !Changed(err) {
		return got, err
	}
	return c.hold(ctx, Block{Name: b.Name, Spec: b.Spec})
}

// The reaper decides when a block may be freed: its owner has been gone for an hour,
// with all its pods, or was replaced. It never deletes a block that it has not seen
// abandoned twice, and never uses the clock of another machine. It forgets everything
// when its process ends, which is safe. Package sticky frees leases by the same rules.

// Grace is how long a Node object must be gone before its blocks are freed. Node
// objects go and come back: after a change of a label, with an autoscaler, or by
// mistake.
const Grace = time.Hour

// Sightings remembers since when objects have no use, by their UIDs and by the clock of one
// process. The zero value remembers nothing, which is safe: a new reaper waits for Grace again.
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

// Look is one sighting, of blocks, Node objects, and names that pods are bound to, listed in
// this order so that a new node is known. now is CLOCK_BOOTTIME, which neither jumps nor stops.
// Look returns what to remember, and the blocks that are due: at two sightings that are at
// least Grace apart, and at all between, the owner was abandoned and the block not written.
func (s Sightings) Look(now time.Duration, blocks []Block, nodes Nodes, bound map[string]bool) (next Sightings, due []Block) {
	next = Sightings{}
	for _, b := range blocks {
		if nodes.Abandoned(b.Spec.Owner, bound) && s.Note(next, now, b.UID, b.ResourceVersion) >= Grace {
			due = append(due, b)
		}
	}
	return next, due
}

// Reap deletes a block that is due, and says whether it did: exactly the block that Look has
// seen, and not one that its owner has touched since. A node that comes back asserts its blocks
// before it leases from them.
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
