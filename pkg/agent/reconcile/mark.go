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
)

const (
	// often is how often the pools are looked at: nodes wait for a new one; seldom is
	// how often it is asked whether a deleted one is used, and tried anew to mark one.
	often, seldom = 2 * time.Second, 10 * time.Second
	// atLeast is the time between two rounds, however often somebody changes a pool: a
	// round lists all nodes.
	atLeast = 10 * time.Second
)

// Lull is for how long nobody must have anything of a pool that was deleted before it
// goes: within that time each node has made again what somebody, or a restored etcd,
// has taken from it.
const Lull = 7 * time.Minute

// marks is what there is to remember between two glances.
type marks struct {
	pools  []agent.Pool
	owing  bool                     // a pool could not be marked
	due    time.Duration            // when what is seldom is next
	unused map[string]time.Duration // by UID, since when nobody has anything of a deleted pool
	failed bool                     // the last glance
}

// glance marks the pools that are new, lets go of those that were deleted and that
// nobody has anything of, and says whether a pool has changed.
func (r *Reconciler) glance(ctx context.Context) (changed bool) {
	pools, err := r.Cluster.Pools(ctx)
	if err != nil {
		r.marks.unused = nil // what is not looked at is not seen to be unused
		r.tell(ctx, err)
		return false
	}
	pools = byAge(pools)
	changed = !reflect.DeepEqual(pools, r.marks.pools)
	due := r.Now() >= r.marks.due
	if changed || due && r.marks.owing {
		r.marks.owing, err = r.markNew(ctx, pools)
	}
	r.marks.pools = pools
	if due {
		r.marks.due = r.Now() + seldom
		err = errors.Join(err, r.letGo(ctx, pools))
	} else if r.marks.failed {
		return changed // it is not known to be over
	}
	r.tell(ctx, err)
	return changed
}

// tell logs when looking begins to fail, and when that is over.
func (r *Reconciler) tell(ctx context.Context, err error) {
	if ctx.Err() != nil || (err != nil) == r.marks.failed {
		return
	}
	r.marks.failed = err != nil
	if err == nil {
		r.Log.Info("the RailPools can be read and marked again")
		return
	}
	r.Log.Warn("the RailPools cannot be read or marked: no blocks are claimed from new ones, and deleted ones stay", agent.About(err)...)
}

// markNew marks the pools of which blocks may be claimed: those of which nodes have
// something already, made again or by a version that knew no marks, and then the
// oldest first, as long as no node has blocks of a pool that is gone: nobody knows
// which addresses those are. It notes in pools what it has done, and says whether one
// is to be tried again.
func (r *Reconciler) markNew(ctx context.Context, pools []agent.Pool) (owing bool, err error) {
	var names []string
	var fresh []int
	var faults []error
	for i, p := range pools {
		names = append(names, p.Name)
		if p.InUse || p.Deleted {
			continue
		}
		used, err := r.Cluster.Used(ctx, p.Name)
		switch {
		case err != nil:
			return true, err
		case used:
			faults = append(faults, r.mark(ctx, &pools[i]))
		default:
			fresh = append(fresh, i)
		}
	}
	if len(fresh) > 0 {
		stranger, err := r.Cluster.Stranger(ctx, names)
		if err != nil || stranger {
			return true, errors.Join(append(faults, err)...)
		}
	}
	taken := slices.Clone(pools)
	for _, i := range fresh {
		if p := pools[i]; p.Validate() == nil && clash(p, taken) == nil {
			taken[i].InUse = true // also if there is no answer
			faults = append(faults, r.mark(ctx, &pools[i]))
		}
	}
	err = errors.Join(faults...)
	owing = err != nil
	if errors.Is(err, block.ErrConflict) { // somebody has just written it: that is no fault
		err = nil
	}
	return owing, err
}

func (r *Reconciler) mark(ctx context.Context, p *agent.Pool) error {
	err := r.Cluster.Mark(ctx, p.Name)
	if err == nil {
		p.InUse = true
		r.Log.Info("the pool is now in use: it stays until its blocks are released", "pool", p.Name)
	}
	return err
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
		since, known := before[p.UID]
		if !known {
			since = r.Now()
		}
		r.marks.unused[p.UID] = since
		if r.Now()-since < r.Lull {
			continue
		}
		err = r.Cluster.Mark(ctx, p.Name)
		if err == nil {
			r.Log.Info("the deleted pool is gone: all of its blocks were released", "pool", p.Name)
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
