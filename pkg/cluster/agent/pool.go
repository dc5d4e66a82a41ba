// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/pace"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent/grant"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

const (
	// assertEvery is how often a node confirms its blocks. It then sees which blocks it
	// has lost, and creates blocks again that a restored etcd has lost.
	assertEvery = 5 * time.Minute
	// reportEvery is the minimum time between two writes of the usage of blocks.
	reportEvery = time.Minute
	// rejoin is the time over which all nodes spread the list of their blocks, when a
	// pool was recreated under its name.
	rejoin = 5 * time.Second
	// mostDoubts is how many different faults of other nodes' blocks are logged.
	mostDoubts = 100
	// cappedEvery is how often a node with spec.maxBlocksPerNode blocks looks whether it
	// may claim again.
	cappedEvery = 10 * time.Second
)

// poolController manages the blocks of one pool. One goroutine makes its requests.
type poolController struct {
	Config
	agent   *Agent
	pool    string
	claimer block.Claimer

	joining, asserting, claiming, reporting, retiring, releasing pace.Pause
	empty                                                        map[string]time.Duration // by name of the block, since when
	claimBudgetUntil                                             time.Duration            // until when claims are used up: pace
	reported                                                     map[string]block.Usage   // by UID of the block
	closed                                                       bool                     // the pool was deleted, and its file removed
	quarantine                                                   time.Duration            // the ones in the file
	done                                                         bool                     // and the blocks given back
	stopGrants                                                   func()                   // ends the grant controller; nil: there is none

	mu sync.Mutex // for what others read:
	evaluation
	// joined says that this process has asked the server for the node's blocks. Before
	// that no file is written, because the node may have lost its blocks while it was
	// off.
	joined   bool
	owned    []block.Block
	grants   *grant.Controller // nil: there is none
	leaving  *leaving          // one of owned; nil: none
	orphans  int               // slots that pods have in other blocks
	asserted time.Duration     // when all of owned were confirmed
	troubles map[string]string // errors, by their subject
}

func newPoolController(a *Agent, pool string) *poolController {
	a.metrics.lost.WithLabelValues(pool) // an alert sees it grow only from zero
	return &poolController{
		Config: a.Config, agent: a, pool: pool, reported: map[string]block.Usage{}, troubles: map[string]string{},
		claimer: block.Claimer{Store: a.Store, Node: a.Node, Machine: a.Machine, Doubt: a.doubt(pool), Clock: a.Clock},
	}
}

// doubt returns a Doubt of block.Claimer that logs each text once.
func (a *Agent) doubt(pool string) func(error) {
	told := map[string]bool{}
	return func(err error) {
		if text := err.Error(); !told[text] && len(told) < mostDoubts {
			told[text] = true
			a.Log.Warn("a block of another node is wrong: the claim goes on without it", append(About(err), "pool", pool)...)
		}
	}
}

func (k *poolController) run(ctx context.Context) {
	defer k.endGrants()
	for !k.done {
		for ctx.Err() == nil && k.step(ctx) { // until none is due
		}
		if k.Wait(ctx, tick) != nil {
			return
		}
	}
}

// step does one step that is due, and says whether another may be due.
func (k *poolController) step(ctx context.Context) bool {
	now := k.Now()
	switch exists := k.look(); {
	case !exists:
		k.retire(ctx)
	case k.space == nil:
		return false
	case !k.joined:
		return k.joining.Over(now) && k.join(ctx)
	case k.slots.Pool != "" && k.stopGrants == nil:
		k.startGrants(ctx)
		return true
	case k.asserting.Over(now):
		return k.assert(ctx)
	case k.short() && k.claiming.Over(now):
		return k.claim(ctx)
	case k.releasing.Over(now):
		k.trim(ctx)
	case k.reporting.Over(now):
		k.report(ctx)
	}
	return false
}

// look reads the current evaluation of the pool, and says whether the pool exists. An
// invalid pool changes nothing.
func (k *poolController) look() bool {
	now, exists := k.agent.evaluation(k.pool)
	k.mu.Lock()
	defer k.mu.Unlock()
	if !exists {
		delete(k.troubles, "RailPool")
		delete(k.troubles, "claim")
		if now.deleted {
			k.keepLastValid(&now)
			k.evaluation = now
		}
		return false
	}
	k.closed = false // if it was retired, the pool has come back
	k.keepLastValid(&now)
	if !reflect.DeepEqual(now.space, k.space) { // perhaps it has more blocks now
		k.claiming.Until = min(k.claiming.Until, k.Now()+time.Duration(k.Rand()*float64(2*tick)))
	}
	if k.joined && k.selected && !now.selected {
		k.Log.Warn("the pool does not select this node any more; its blocks stay until the pool is deleted", "pool", k.pool, "blocks", len(k.owned))
	}
	k.evaluation = now
	k.trouble("RailPool", now.fault)
	return true
}

// keepLastValid keeps the last valid spec of an invalid pool. A pool that was recreated (new
// UID) starts empty: its blocks are listed again, and the node file stays until then. It is
// called with the lock held.
func (k *poolController) keepLastValid(now *evaluation) {
	if now.uid != k.uid {
		k.space, k.slots = nil, block.Slots{}
		if k.joined {
			k.joined, k.joining = false, pace.Pause{Until: k.Now() + time.Duration(k.Rand()*float64(rejoin))}
		}
	}
	if now.space == nil || now.contested {
		now.space, now.slots = k.space, k.slots
	}
}

// join finds the blocks of the node: those on the server, and those that only the node file of
// this boot has.
func (k *poolController) join(ctx context.Context) bool {
	own, err := k.claimer.Own(ctx, *k.space)
	if err == nil {
		f, _ := k.Ranges.Read(k.pool) // a file of another boot, or none: no ADD leases from it
		unknown := slices.DeleteFunc(k.space.Recorded(k.Node, f.Rails), func(b block.Block) bool {
			return slices.ContainsFunc(own, func(o block.Block) bool { return o.Name == b.Name })
		})
		own, err = k.affirm(ctx, append(own, unknown...))
	}
	if ctx.Err() != nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trouble("blocks", err)
	if err != nil {
		k.joining.Fail(k.Clock)
		return false
	}
	k.joined, k.asserted, k.leaving = true, k.Now(), nil
	for _, b := range own {
		k.Log.Info("the node has a block", "pool", k.pool, "block", b.Name)
	}
	k.asserting.OK(k.Clock, assertEvery)
	k.setBlocks(own)
	return true
}

// assert writes all blocks, so that a reaper sees that the node is alive.
func (k *poolController) assert(ctx context.Context) bool {
	kept, err := k.affirm(ctx, k.leasable())
	if k.leaving != nil {
		kept = append(kept, k.leaving.Block)
	}
	if ctx.Err() != nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trouble("blocks", err)
	k.setBlocks(kept)
	if err != nil {
		k.asserting.Fail(k.Clock)
	} else {
		k.asserted = k.Now()
		k.asserting.OK(k.Clock, assertEvery)
	}
	return true
}

// affirm confirms blocks. A lost block is no error: it is logged here.
func (k *poolController) affirm(ctx context.Context, blocks []block.Block) (kept []block.Block, err error) {
	var faults []error
	for _, b := range blocks {
		still, gone, err := k.claimer.Assert(ctx, *k.space, []block.Block{b})
		kept = append(kept, still...)
		k.agent.metrics.asserts.WithLabelValues(k.pool).Inc()
		switch {
		case len(gone) > 0:
			k.agent.metrics.lost.WithLabelValues(k.pool).Inc()
			k.Log.Error("a block now belongs to another node: no more addresses are leased from it", append(About(err), "pool", k.pool, "block", b.Name)...)
		case err != nil:
			faults = append(faults, err)
		}
	}
	return kept, errors.Join(faults...)
}

// setBlocks stores the blocks of the node and writes the node file. It is called with the
// lock held.
func (k *poolController) setBlocks(owned []block.Block) {
	k.owned = owned
	k.write()
}

// short says whether the node needs another block: more than four fifths of the host indexes
// are leased (with up to five: all). Then the next pod finds a free one.
func (k *poolController) short() bool {
	if !k.selected || k.fault != nil {
		return false
	}
	total, known := k.agent.meter.usage(k.pool, *k.space, k.leasable())
	return total.Size == 0 || known && 5*total.Used > 4*total.Size
}

func (k *poolController) claim(ctx context.Context) bool {
	if k.leaving != nil && !k.leaving.asked {
		k.putBack()
		return true
	}
	if k.capped() {
		k.claiming.OK(k.Clock, cappedEvery)
		return false
	}
	own, err := k.Addresses(ctx)
	if err != nil {
		k.Log.Warn("the node's own addresses are unknown: it claims without a hint", About(err)...)
	}
	k.claimer.Node.Own = own
	began := k.Now()
	got, err := k.claimer.Claim(ctx, *k.space, k.owned)
	stands := err == nil && k.stands()
	if stands {
		stands, err = k.Stands(ctx, k.pool, k.uid)
	}
	if ctx.Err() != nil {
		return false
	}
	if err == nil && !stands { // retire gives it back, or join or the next claim finds it
		k.Log.Info("claimed a block too late: the pool was deleted or changed meanwhile", "pool", k.pool, "block", got.Name)
		k.claiming.Fail(k.Clock)
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trouble("claim", err)
	if err != nil {
		k.claiming.Fail(k.Clock)
		return false
	}
	// The next claim waits after a burst of them.
	k.claimBudgetUntil = max(k.claimBudgetUntil, k.Now()) + claimEvery
	k.claiming = pace.Pause{Until: k.claimBudgetUntil - claimBurst*claimEvery}
	// Not at once: when all nodes start, claims come first.
	k.reporting = pace.Pause{Until: k.Now() + time.Duration(k.Rand()*float64(reportEvery/2))}
	k.agent.metrics.claims.WithLabelValues(k.pool).Inc()
	k.agent.metrics.conflicts.WithLabelValues(k.pool).Add(float64(got.Conflicts))
	k.agent.metrics.lists.WithLabelValues(k.pool).Add(float64(got.Lists))
	k.Log.Info("claimed a block", "pool", k.pool, "block", got.Name, "conflicts", got.Conflicts, "lists", got.Lists, "took", k.Now()-began)
	k.owned = append(slices.Clone(k.owned), got.Block)
	k.write()
	return true
}

// stands says whether the pool is the same as when the step began, because an answer may
// take long.
func (k *poolController) stands() bool {
	now, exists := k.agent.evaluation(k.pool)
	return exists && now.uid == k.uid && !now.contested
}

// write updates the node file of the pool. It is called with the lock held.
func (k *poolController) write() {
	if !k.joined {
		return
	}
	rails, err := k.space.Rails(k.leasable())
	open := func(b block.Block) bool { return k.space.Slots(b.Spec.Index) > 0 }
	if err == nil && !slices.ContainsFunc(k.leasable(), open) {
		err = k.Ranges.Remove(k.pool)
	} else if err == nil {
		err = k.replace(nodefile.File{Pool: k.pool, Quarantine: k.space.Quarantine(), Rails: rails, Sticky: k.slots.Pool != ""})
	}
	k.trouble("file", err)
}

// replace writes the file, unless it is up to date.
func (k *poolController) replace(want nodefile.File) error {
	if have, err := k.Ranges.Read(k.pool); err == nil && reflect.DeepEqual(have, want) {
		return nil
	}
	if err := k.Ranges.Write(want); err != nil {
		return err
	}
	k.Log.Info("wrote the node file", "pool", k.pool, "blocks", len(k.leasable()))
	return nil
}

// report writes the usage of the blocks for which it has changed.
func (k *poolController) report(ctx context.Context) {
	var faults []error
	for _, b := range k.leasable() {
		u, known := k.agent.meter.usage(k.pool, *k.space, []block.Block{b})
		if last, told := k.reported[b.UID]; !known || told && last == u {
			continue
		}
		err := k.Report(ctx, b, u)
		switch {
		case err == nil:
			k.reported[b.UID] = u
		case errors.Is(err, block.ErrNotFound), errors.Is(err, block.ErrConflict): // it has changed
			k.asserting = pace.Pause{}
		case errors.As(err, new(*cnierr.Error)):
			faults = append(faults, err)
		}
		k.reporting.OK(k.Clock, reportEvery)
	}
	k.note("status", errors.Join(faults...))
}
