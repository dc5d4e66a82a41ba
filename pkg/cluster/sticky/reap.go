// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package sticky

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// Terms is what a pool says about sticky slots.
type Terms struct {
	TTL        time.Duration // how long a slot without holder stays reserved
	Quarantine time.Duration // the least time in quarantine: the pool's quarantine
}

// TermsOf returns the terms of the pools that have sticky and are not deleted.
func TermsOf(pools []block.Pool) map[string]Terms {
	out := map[string]Terms{}
	for _, p := range pools {
		if ttl, quarantine, sticky := p.Terms(); sticky && !p.Deleted {
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

// Look is one sighting. now is as in block.Sightings.Look, and date is the wall clock, which
// may jump. Look returns what to remember, and the leases that are due:
//   - without holder and keep: true, not written for the TTL by one of the clocks, and for the
//     quarantine by now; if the pool is gone or not sticky, for the longest quarantine;
//   - of a holder with blocks that would be due;
//   - with another name than the one of their slot, at once.
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

// Reap deletes a lease that is due, and says whether it did. If the holder is gone, of which it
// asks again, Reap removes the holder instead, so that another node can have the lease for the
// pod. What has changed since Look stays, which is no error. Without an answer, the
// change may be done or not; the next Look shows it.
func Reap(ctx context.Context, store Store, c block.Cluster, date time.Time, due Lease) (bool, error) {
	if due.Spec.Holder == (block.Owner{}) || misnamed(due) {
		return block.Done(store.Delete(ctx, due.Name, due.UID, due.ResourceVersion))
	}
	return block.Free(ctx, c, due.Spec.Holder, func() error {
		_, err := vacate(ctx, store, date, due)
		return err
	})
}

// An agent that was taken over can hold RailLeases for pods that it does not run, and write them
// as often as it wants. So the reaper also asks whether the pod is bound to the holder (ADR 34).
// The holder must be Ready: only then has kubelet stopped a pod that was deleted.

// Cluster answers the reaper's questions about nodes and pods. The answers must come
// from the API server, not from a cache.
type Cluster interface {
	block.Cluster
	// Ready says whether there is a Node object of that name, with the condition Ready.
	Ready(ctx context.Context, node string) (bool, error)
	// Runs says whether a pod of that name, in any phase, is bound to the node. A name
	// that no pod can have is no error.
	Runs(ctx context.Context, namespace, pod, node string) (bool, error)
}

// questions is how many leases one Look asks about at most. Each of them is one request.
const questions = 500

// Absences remembers since when pods are not bound to the nodes that hold RailLeases
// for them. The zero value remembers nothing, which is safe.
type Absences struct {
	seen block.Sightings // with the holder as the version: an agent may write a lease
	last string          // the name of the lease that was asked about last
}

// Look asks whether pods are bound to the nodes that hold their leases, of those nodes that are
// Ready: about some of them if there are very many, and the next time about the next ones. now
// is as in block.Sightings.Look. runs asks for one lease, after it was listed.
//
// Look returns what to remember, and the leases that are due: the pod was not bound to the same
// holder at two questions that are at least block.Grace apart, and at all in between. After an
// error, nothing is due, and what was known stays known.
func (a Absences) Look(now time.Duration, leases []Lease, runs func(Lease) (bool, error)) (next Absences, due []Lease, err error) {
	next = Absences{seen: block.Sightings{}, last: a.last}
	for _, l := range leases {
		if _, absent := a.Since(l); absent {
			a.seen.Note(next.seen, now, l.UID, l.Spec.Holder.String())
		}
	}
	for _, l := range a.turn(leases) {
		bound, err := runs(l)
		if err != nil {
			return a, nil, err
		}
		next.last = l.Name
		if bound {
			delete(next.seen, l.UID)
		} else if a.seen.Note(next.seen, now, l.UID, l.Spec.Holder.String()) >= block.Grace {
			due = append(due, l)
		}
	}
	return next, due, nil
}

// turn returns the leases to ask about now: those with names after the last one.
func (a Absences) turn(leases []Lease) []Lease {
	sorted := slices.SortedFunc(slices.Values(leases), func(x, y Lease) int { return cmp.Compare(x.Name, y.Name) })
	at, found := slices.BinarySearchFunc(sorted, a.last, func(l Lease, name string) int { return cmp.Compare(l.Name, name) })
	if found {
		at++
	}
	return slices.Concat(sorted[at:], sorted[:at])[:min(questions, len(sorted))]
}

// Since returns when, in the clock of Look, the pod of a lease was first seen not to
// be bound to the holder, and whether that is so.
func (a Absences) Since(l Lease) (first time.Duration, absent bool) {
	return a.seen.Since(l.UID, l.Spec.Holder.String())
}

// Free removes the holder of a lease that Absences.Look has returned, so that another node can
// have it for the pod, and says whether it did. It reads the lease, and then asks again: if the
// pod was bound since, the answer shows it, or its node has written the lease and Free starts
// again. Without an answer, the change may be done or not; the next Look shows it.
func Free(ctx context.Context, store Store, c Cluster, date time.Time, due Lease) (bool, error) {
	freed, err := again(func() (Lease, error) {
		there, err := store.Get(ctx, due.Name)
		if errors.Is(err, block.ErrNotFound) {
			return Lease{}, nil
		}
		if err != nil || there.UID != due.UID || there.Spec.Holder != due.Spec.Holder {
			return Lease{}, err
		}
		absent, err := absent(ctx, c, there)
		if err != nil || !absent {
			return Lease{}, err
		}
		return vacate(ctx, store, date, there)
	})
	return err == nil && freed.Name != "", err
}

// absent says whether the holder of a lease is Ready and the pod is not bound to it.
func absent(ctx context.Context, c Cluster, l Lease) (bool, error) {
	ready, err := c.Ready(ctx, l.Spec.Holder.NodeName)
	if err != nil || !ready {
		return false, err
	}
	bound, err := c.Runs(ctx, l.Spec.Namespace, l.Spec.Pod, l.Spec.Holder.NodeName)
	return !bound, err
}

// vacate removes the holder of a lease.
func vacate(ctx context.Context, store Store, date time.Time, l Lease) (Lease, error) {
	l.Spec.Holder, l.Spec.Written = block.Owner{}, date.UTC().Truncate(time.Microsecond)
	return store.Update(ctx, l)
}
