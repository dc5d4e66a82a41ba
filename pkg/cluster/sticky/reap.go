// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package sticky

import (
	"context"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// Terms is what a pool says about sticky slots.
type Terms struct {
	TTL        time.Duration // how long a slot without holder stays reserved
	Quarantine time.Duration // the least time in quarantine: the pool's quarantine
}

// TermsOf returns the terms of the pools that have sticky.
func TermsOf(pools []block.Pool) map[string]Terms {
	out := map[string]Terms{}
	for _, p := range pools {
		if ttl, quarantine, sticky := p.Terms(); sticky {
			out[p.Name] = Terms{ttl, quarantine}
		}
	}
	return out
}

// World is what a Look sees. The caller lists Leases before Pools and Nodes, and
// Nodes before Bound. Bound is needed for the names of Nodes.Missing(Owners(Leases)).
type World struct {
	Leases []Lease
	Pools  map[string]Terms // TermsOf all pools
	Nodes  block.Nodes
	Bound  map[string]bool
}

// Owners returns the nodes that hold leases.
func Owners(leases []Lease) (out []block.Owner) {
	for _, l := range leases {
		if l.Spec.Holder != (block.Owner{}) {
			out = append(out, l.Spec.Holder)
		}
	}
	return out
}

// Look is one sighting. now is as in block.Sightings.Look, and date is the time of the
// wall clock. Look returns what to remember, and the leases that are due:
//   - leases without holder and without keep: true that were not written for the TTL;
//     a clock that jumps can make this time shorter than the TTL, but never shorter
//     than the quarantine;
//   - the same for leases of a pool that is gone or not sticky, after the longest
//     possible quarantine;
//   - leases of a holder with blocks that would be due;
//   - leases with another name than the one of their slot, at once.
func Look(s block.Sightings, now time.Duration, date time.Time, w World) (next block.Sightings, due []Lease) {
	next = block.Sightings{}
	for _, l := range w.Leases {
		useless := func() time.Duration { return s.Note(next, now, l.UID, l.ResourceVersion) }
		switch {
		case misnamed(l):
			due = append(due, l)
		case l.Spec.Holder != (block.Owner{}):
			if w.Nodes.Abandoned(l.Spec.Holder, w.Bound) && useless() >= block.Grace {
				due = append(due, l)
			}
		case !l.Spec.Keep && expired(l, useless(), date, w.Pools):
			due = append(due, l)
		}
	}
	return next, due
}

// expired says whether a lease is due that has been without holder for a while.
func expired(l Lease, seen time.Duration, date time.Time, pools map[string]Terms) bool {
	t, exists := pools[l.Spec.Pool]
	if !exists {
		t = Terms{TTL: pool.LongestQuarantine, Quarantine: block.Grace}
	}
	since := l.Created
	if l.Spec.Written.After(since) {
		since = l.Spec.Written
	}
	return seen >= t.Quarantine && max(seen, date.Sub(since)) >= t.TTL
}

// Reap deletes a lease that is due, and says whether it did. If the holder is gone,
// Reap removes the holder instead, so that another node can have the lease for the
// pod. It first asks again whether the node is gone. It writes only a lease that has
// not changed since Look. A changed lease is no error. Without an answer, the change
// may be done or not; the next Look shows it.
func Reap(ctx context.Context, store Store, c block.Cluster, date time.Time, due Lease) (bool, error) {
	if due.Spec.Holder == (block.Owner{}) || misnamed(due) {
		return block.Done(store.Delete(ctx, due.Name, due.UID, due.ResourceVersion))
	}
	return block.Free(ctx, c, due.Spec.Holder, func() error {
		_, err := vacate(ctx, store, date, due)
		return err
	})
}
