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

	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

const (
	// often is the time between two looks at the pools, because nodes wait for a new
	// pool. seldom is the time between two questions whether a deleted pool is used,
	// and between two tries to mark a pool.
	often, seldom = 2 * time.Second, 10 * time.Second
	// atLeast is the minimum time between two rounds, even if a pool changes often: a
	// round lists all nodes.
	atLeast = 10 * time.Second
	// mostStrangers is how many nodes with blocks of pools that do not exist are logged.
	mostStrangers = 100
)

// Lull is how long a deleted pool must be unused before it is removed. Within that
// time each node creates its objects again that an operator or a restored etcd has
// removed.
const Lull = 7 * time.Minute

// marks is what markPools remembers until the next call.
type marks struct {
	pools  []block.Pool
	owing  bool                     // a pool could not be marked
	due    time.Duration            // when seldom is over next
	unused map[string]time.Duration // by UID, since when a deleted pool is unused
	failed bool                     // of the last markPools
	known  map[string]bool          // the pools that were in use and were not released, by name
	warned map[string]bool          // the strangers that were logged
}

// markPools marks new pools, removes the finalizer of deleted pools that are unused, and
// says whether a pool has changed.
func (r *Reconciler) markPools(ctx context.Context) (changed bool) {
	pools, err := r.pools(ctx)
	if err != nil {
		r.marks.unused = nil // without a look, a pool is not known to be unused
		r.tell(ctx, err)
		return false
	}
	slices.SortFunc(pools, func(x, y block.Pool) int { return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.Name, y.Name)) }) // the oldest first
	for _, p := range pools {
		if p.InUse {
			r.marks.known[p.Name] = true
		}
	}
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
		return changed // it is not known to have ended
	}
	r.tell(ctx, err)
	return changed
}

// tell logs when markPools begins to fail, and when it works again.
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

// markNew marks the pools from which nodes may claim blocks: first those of which nodes have
// something, which were created again, and then the others, the oldest first. While nodes have
// blocks of a pool that is gone, with unknown addresses, the others wait. markNew
// notes in pools what it has done, and says whether to try a pool again.
func (r *Reconciler) markNew(ctx context.Context, pools []block.Pool) (owing bool, err error) {
	var names []string
	var again, fresh []int
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
			again = append(again, i)
		default:
			fresh = append(fresh, i)
		}
	}
	if len(fresh) > 0 {
		var strangers []block.Block
		seen := counts{}
		err := r.Cluster.Strangers(ctx, names, func(b *kube.RailBlock) {
			if seen.admit("RailBlock", b.Spec.NodeName) {
				strangers = append(strangers, b.Object())
			}
		})
		if err != nil || r.unreleased(pools, strangers) {
			fresh, owing, faults = nil, true, append(faults, err)
		}
	}
	taken := slices.Clone(pools)
	for _, i := range append(again, fresh...) {
		if p := pools[i]; p.Validate() == nil && clash(p, taken) == nil {
			taken[i].InUse = true // also if there is no answer
			faults = append(faults, r.mark(ctx, &pools[i]))
		}
	}
	err = errors.Join(faults...)
	owing = owing || err != nil
	if errors.Is(err, block.ErrConflict) { // another client has just written it: that is no fault
		err = nil
	}
	return owing, err
}

// unreleased says whether nodes may still have addresses of a pool that is gone. It logs
// the blocks that do not count.
func (r *Reconciler) unreleased(pools []block.Pool, strangers []block.Block) bool {
	if gone(pools, strangers, r.marks.known) != "" {
		return true
	}
	for _, b := range strangers {
		if key := b.Spec.Pool + " " + b.Spec.NodeName; !r.marks.warned[key] && len(r.marks.warned) < mostStrangers {
			r.marks.warned[key] = true
			r.Log.Warn("one node has blocks of a RailPool that does not exist: they stop no new pool; look at the node, and delete them",
				"pool", b.Spec.Pool, "block", b.Name, "node", b.Spec.NodeName)
		}
	}
	return false
}

// gone returns a pool that is gone and of which nodes may still have addresses, or "". One node
// alone can make blocks for any name, so they count only if several nodes have blocks of the
// pool, or if the pool is known.
func gone(pools []block.Pool, blocks []block.Block, known map[string]bool) string {
	owner := map[string]string{}
	for _, b := range blocks {
		name := b.Spec.Pool
		if slices.ContainsFunc(pools, func(p block.Pool) bool { return p.Name == name }) {
			continue
		}
		if other := owner[name]; known[name] || other != "" && other != b.Spec.NodeName {
			return name
		}
		owner[name] = b.Spec.NodeName
	}
	return ""
}

func (r *Reconciler) mark(ctx context.Context, p *block.Pool) error {
	err := r.Cluster.Mark(ctx, r.objects[p.Name])
	if err == nil {
		p.InUse = true
		r.Log.Info("the pool is now in use: it stays until its blocks are released", "pool", p.Name)
	}
	return err
}

// clash returns an error if another pool that is in use has addresses of this one.
func clash(p block.Pool, pools []block.Pool) error {
	var faults []error
	for _, o := range pools {
		if o.InUse {
			faults = append(faults, p.Apart(o))
		}
	}
	return errors.Join(faults...)
}

// letGo removes the finalizer of deleted pools that have been unused for a while.
func (r *Reconciler) letGo(ctx context.Context, pools []block.Pool) error {
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
		err = r.Cluster.Mark(ctx, r.objects[p.Name])
		if err == nil {
			delete(r.marks.known, p.Name)
			r.Log.Info("the deleted pool is gone: all of its blocks were released", "pool", p.Name)
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}
