// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package reconcile

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/agent"
	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/cnierr"
)

const (
	// often is how often the pools are looked at: nodes wait for a new one.
	often = 2 * time.Second
	// lull is for how long nobody must have anything of a pool that was deleted before
	// it goes: a node that had not heard of it may have been claiming.
	lull = time.Minute
)

// marks is what there is to remember between two glances.
type marks struct {
	pools  []agent.Pool
	owing  bool                     // a pool could not be marked
	unused map[string]time.Duration // since when nobody has anything of a deleted pool
	wrong  string                   // what was said last
}

// glance marks the pools that are new, lets go of those that were deleted and that
// nobody has anything of, and says whether a pool has changed.
func (r *Reconciler) glance(ctx context.Context) (changed bool) {
	pools, err := r.Cluster.Pools(ctx)
	if err == nil {
		pools = byAge(pools)
		changed = !reflect.DeepEqual(pools, r.marks.pools)
		if changed || r.marks.owing {
			err = r.markNew(ctx, pools)
			r.marks.owing = err != nil
		}
		r.marks.pools = pools
		err = errors.Join(err, r.letGo(ctx, pools))
	} else {
		r.marks.unused = nil // what is not looked at is not seen to be unused
	}
	if ctx.Err() == nil {
		r.tell(err)
	}
	return changed
}

// tell logs what is new.
func (r *Reconciler) tell(err error) {
	before := r.marks.wrong
	r.marks.wrong = ""
	if err != nil {
		c := cnierr.CNI("rocectl", block.Explain(err))
		r.marks.wrong = c.Msg
		if before != c.Msg {
			r.Log.Warn("the RailPools cannot be read or marked: nothing is claimed of new ones, and deleted ones stay", "error", c.Msg, "hint", c.Details)
		}
	} else if before != "" {
		r.Log.Info("the RailPools can be read and marked again")
	}
}

// markNew marks the pools of which blocks may be claimed, the oldest first: who is in
// use keeps its addresses. It notes in pools what it has done.
func (r *Reconciler) markNew(ctx context.Context, pools []agent.Pool) error {
	var faults []error
	taken := slices.Clone(pools)
	for i, p := range pools {
		if p.InUse || p.Deleted || p.Validate() != nil || clash(p, taken) != nil {
			continue
		}
		taken[i].InUse = true // also if there is no answer
		if err := r.Cluster.Mark(ctx, p.Name); err != nil {
			faults = append(faults, err)
			continue
		}
		pools[i].InUse = true
		r.Log.Info("the pool is in use from now on: it stays until its blocks are given back", "pool", p.Name)
	}
	return errors.Join(faults...)
}

// clash returns an error if another pool that is in use has addresses of this one.
func clash(p agent.Pool, pools []agent.Pool) error {
	var faults []error
	for _, o := range pools {
		if o.InUse {
			faults = append(faults, p.Apart(o.Pool))
		}
	}
	return errors.Join(faults...)
}

// letGo lets deleted pools go that nobody has had anything of for a while.
func (r *Reconciler) letGo(ctx context.Context, pools []agent.Pool) error {
	before := r.marks.unused
	r.marks.unused = map[string]time.Duration{}
	var faults []error
	for _, p := range pools {
		if !p.Deleted || !p.InUse {
			continue
		}
		used, err := r.Cluster.Used(ctx, p.Name)
		if err != nil || used {
			faults = append(faults, err)
			continue
		}
		since, known := before[p.Name]
		if !known {
			since = r.Now()
		}
		r.marks.unused[p.Name] = since
		if r.Now()-since < lull {
			continue
		}
		err = r.Cluster.Mark(ctx, p.Name)
		if err == nil {
			r.Log.Info("the pool was deleted, and is gone: all of it was given back", "pool", p.Name)
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// byAge returns the pools, the oldest first.
func byAge(pools []agent.Pool) []agent.Pool {
	return slices.SortedFunc(slices.Values(pools), func(x, y agent.Pool) int {
		return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.Name, y.Name))
	})
}
