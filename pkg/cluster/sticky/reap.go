// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package sticky

import (
	"context"
	"errors"
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

// Sightings remembers since when leases have no use. As with block.Sightings, the
// zero value remembers nothing, which is safe.
type Sightings struct {
	idle    map[string]sighting // by UID: without holder
	orphans block.Sightings     // leases with a holder that is gone
}

// sighting is the time since which a lease has no holder, and the version of the
// lease since then.
type sighting struct {
	since   time.Duration
	version string
}

// World is what a Look sees. The caller lists Leases before Pools and Nodes, and
// Nodes before Bound. Bound is needed for the names of Nodes.Missing(Owners(Leases)).
type World struct {
	Leases []Lease
	Pools  map[string]Terms // TermsOf all pools
	Nodes  block.Nodes
	Bound  map[string]bool
}

// Owners returns the nodes that hold leases, in the form of package block: each is a
// block with the lease's name, UID and version.
func Owners(leases []Lease) []block.Block {
	var out []block.Block
	for _, l := range leases {
		if l.Spec.Holder != (Holder{}) {
			out = append(out, block.Block{Name: l.Name, UID: l.UID, ResourceVersion: l.ResourceVersion, Spec: l.owner()})
		}
	}
	return out
}

func (l Lease) owner() block.Spec {
	return block.Spec{Pool: l.Spec.Pool, Rack: l.Spec.Rack, NodeName: l.Spec.Holder.NodeName, MachineID: l.Spec.Holder.MachineID}
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
func (s Sightings) Look(now time.Duration, date time.Time, w World) (next Sightings, due []Lease) {
	next.idle = map[string]sighting{}
	var orphans []block.Block
	next.orphans, orphans = s.orphans.Look(now, Owners(w.Leases), w.Nodes, w.Bound)
	gone := map[string]bool{}
	for _, b := range orphans {
		gone[b.UID] = true
	}
	for _, l := range w.Leases {
		if gone[l.UID] || l.misnamed() {
			due = append(due, l)
		}
		if l.Spec.Holder != (Holder{}) || l.Spec.Keep || l.misnamed() {
			continue
		}
		seen, again := s.idle[l.UID]
		if !again || seen.version != l.ResourceVersion {
			seen = sighting{now, l.ResourceVersion}
		}
		next.idle[l.UID] = seen
		if expired(l, now-seen.since, date, w.Pools) {
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
	var err error
	if due.Spec.Holder == (Holder{}) || due.misnamed() {
		err = store.Delete(ctx, due.Name, due.UID, due.ResourceVersion)
	} else {
		gone, unsure := block.Abandoned(ctx, c, due.owner())
		if unsure != nil || !gone {
			return false, unsure
		}
		_, err = vacate(ctx, store, date, due)
	}
	if errors.Is(err, block.ErrNotFound) || errors.Is(err, block.ErrConflict) {
		return false, nil
	}
	return err == nil, err
}
