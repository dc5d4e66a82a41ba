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

	"github.com/roce-cni/roce-cni/pkg/agent/pace"
	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/nodefile"
	"github.com/roce-cni/roce-cni/pkg/cnierr"
)

const (
	// assertEvery is after how long a node sees that a block is not its any more,
	// and makes again what a restored etcd has forgotten.
	assertEvery = 5 * time.Minute
	// reportEvery is how often the usage of blocks is written at most.
	reportEvery = time.Minute
	// rejoin is within what time all nodes ask for their blocks of a pool that was made
	// again under its name.
	rejoin = 5 * time.Second
)

// poolController keeps the blocks of one pool. Its requests are made by one goroutine; what
// others look at is below mu.
type poolController struct {
	Config
	agent   *Agent
	pool    string
	claimer block.Claimer

	joining, asserting, claiming, reporting, retiring pace.Pause
	reported                                          map[string]Usage // by UID of the block
	closed                                            bool             // the pool was deleted, and its file removed
	quarantine                                        time.Duration    // that the file had
	done                                              bool             // and the blocks given back
	stopGrants                                        func()           // ends the grant controller; nil: there is none

	mu sync.Mutex
	evaluation
	// joined says that the server was asked, by this process, what is the node's.
	// Before that nothing is written down: what the node had before a boot it may
	// have lost while it was off.
	joined   bool
	owned    []block.Block
	orphans  int               // slots that pods have of other blocks than those
	asserted time.Duration     // when all of owned were
	troubles map[string]string // what is wrong, by what it is about
}

func newPoolController(a *Agent, pool string) *poolController {
	begins(a.metrics.lost, pool)
	return &poolController{
		Config: a.Config, agent: a, pool: pool, reported: map[string]Usage{}, troubles: map[string]string{},
		claimer: block.Claimer{Store: a.Store, Node: a.Node, Machine: a.Machine, Wait: a.Wait, Rand: a.Rand, Now: a.Now},
	}
}

func (k *poolController) run(ctx context.Context) {
	defer k.endGrants()
	for !k.done {
		k.work(ctx)
		if k.Wait(ctx, tick) != nil {
			return
		}
	}
}

// work does what is due, until nothing is.
func (k *poolController) work(ctx context.Context) {
	for more := true; more && ctx.Err() == nil; {
		more = k.step(ctx)
	}
}

// step does one thing that is due, and says whether there may be another.
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
	case k.reporting.Over(now):
		k.report(ctx)
	}
	return false
}

// look takes in what the pool is to the node now, and says whether there is such a
// pool. One that is wrong leaves everything as it was.
func (k *poolController) look() bool {
	now, exists := k.agent.evaluation(k.pool)
	k.mu.Lock()
	defer k.mu.Unlock()
	if !exists {
		delete(k.troubles, "RailPool")
		delete(k.troubles, "claim")
		if now.deleted {
			k.hold(&now)
			k.evaluation = now
		}
		return false
	}
	k.closed = false // if it was, the pool has come back
	k.hold(&now)
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

// hold has a pool that is wrong be as it was. Of another pool of the same name nothing
// was before, and whose its blocks are is to be asked anew: until then the file stays.
// It is called with the lock held.
func (k *poolController) hold(now *evaluation) {
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

// join finds out which blocks are the node's: those that the server knows of, and
// those that only the file of this boot has, because etcd was restored or somebody
// has deleted them.
func (k *poolController) join(ctx context.Context) bool {
	own, err := k.claimer.Own(ctx, *k.space)
	if err == nil {
		own, err = k.affirm(ctx, union(own, k.recorded()))
	}
	if ctx.Err() != nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trouble("blocks", err)
	if err != nil {
		k.joining.Fail(k.agent.clock)
		return false
	}
	k.joined, k.asserted = true, k.Now()
	for _, b := range own {
		k.Log.Info("the node has a block", "pool", k.pool, "block", b.Name)
	}
	k.have(own)
	return true
}

// recorded returns the blocks that the file of this boot has.
func (k *poolController) recorded() []block.Block {
	f, err := k.Ranges.Read(k.pool)
	if err != nil { // of another boot, or none: nothing leases of what it has
		return nil
	}
	return k.space.Recorded(k.Node, f.Rails)
}

// union returns a, and of b what a has not.
func union(a, b []block.Block) []block.Block {
	out := slices.Clone(a)
	for _, x := range b {
		if !slices.ContainsFunc(a, func(y block.Block) bool { return y.Name == x.Name }) {
			out = append(out, x)
		}
	}
	return out
}

// assert writes all blocks, so that whoever takes the node for gone sees that it
// lives.
func (k *poolController) assert(ctx context.Context) bool {
	kept, err := k.affirm(ctx, k.owned)
	if ctx.Err() != nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trouble("blocks", err)
	k.have(kept)
	if err != nil {
		k.asserting.Fail(k.agent.clock)
	} else {
		k.asserted = k.Now()
	}
	return true
}

// affirm asserts blocks. What is lost is no error: it is logged here.
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

// have notes what the node has and writes it down. It is called with the lock held.
func (k *poolController) have(owned []block.Block) {
	k.owned = owned
	k.asserting.OK(k.agent.clock, assertEvery)
	k.write()
}

// short says whether the node needs one more block.
func (k *poolController) short() bool {
	if !k.selected || k.fault != nil {
		return false
	}
	total, known := k.agent.meter.usage(k.pool, *k.space, k.owned)
	return total.Size == 0 || known && total.nearlyFull()
}

func (k *poolController) claim(ctx context.Context) bool {
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
		k.claiming.Fail(k.agent.clock)
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trouble("claim", err)
	if err != nil {
		k.claiming.Fail(k.agent.clock)
		return false
	}
	k.claiming.OK(k.agent.clock, 0)
	// Not at once: when all nodes start, claims come first.
	k.reporting = pace.Pause{Until: k.Now() + time.Duration(k.Rand()*float64(reportEvery/2))}
	k.agent.metrics.claimed(k.pool, got)
	k.Log.Info("claimed a block", "pool", k.pool, "block", got.Name, "conflicts", got.Conflicts, "lists", got.Lists, "took", k.Now()-began)
	k.owned = append(slices.Clone(k.owned), got.Block)
	k.write()
	return true
}

// stands says whether the pool is what it was when the last step began: an answer may
// have taken long.
func (k *poolController) stands() bool {
	now, exists := k.agent.evaluation(k.pool)
	return exists && now.uid == k.uid && !now.contested
}

// write brings the file of the pool up to date. It is called with the lock held.
func (k *poolController) write() {
	if !k.joined {
		return
	}
	rails, err := k.space.Rails(k.owned)
	if err == nil && size(*k.space, k.owned) == 0 {
		err = k.Ranges.Remove(k.pool)
	} else if err == nil {
		err = k.replace(nodefile.File{Pool: k.pool, Quarantine: k.space.Quarantine(), Rails: rails, Sticky: k.slots.Pool != ""})
	}
	k.trouble("file", err)
}

// replace writes the file, unless it is as it should be.
func (k *poolController) replace(want nodefile.File) error {
	if have, err := k.Ranges.Read(k.pool); err == nil && reflect.DeepEqual(have, want) {
		return nil
	}
	if err := k.Ranges.Write(want); err != nil {
		return err
	}
	k.Log.Info("wrote the node file", "pool", k.pool, "blocks", len(k.owned))
	return nil
}

// report writes how full the blocks are, of those for which it has changed.
func (k *poolController) report(ctx context.Context) {
	var faults []error
	for _, b := range k.owned {
		u, known := k.agent.meter.usage(k.pool, *k.space, []block.Block{b})
		if last, told := k.reported[b.UID]; !known || told && last == u {
			continue
		}
		err := k.Report(ctx, b, u)
		switch {
		case err == nil:
			k.reported[b.UID] = u
		case errors.Is(err, block.ErrNotFound), errors.Is(err, block.ErrConflict): // it is not as it was
			k.asserting = pace.Pause{}
		case errors.As(err, new(*cnierr.Error)):
			faults = append(faults, err)
		}
		k.reporting.OK(k.agent.clock, reportEvery)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trouble("status", errors.Join(faults...))
}
