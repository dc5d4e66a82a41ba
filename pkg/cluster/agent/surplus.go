// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

const (
	// emptyFor is how long a block must be without any lease, and without an address in
	// quarantine, before the node gives it back.
	emptyFor = time.Hour
	// trimEvery is the time between two looks for such a block. At each, at most one
	// begins to leave.
	trimEvery = time.Minute
	// claimBurst is how many blocks a node claims without a pause, and claimEvery the mean
	// time between claims after that: no network drains a pool before an operator sees it.
	claimBurst, claimEvery = 16, 4 * time.Second
)

// leaving is a block that the node gives back. It is not in the node file any more, but
// still among the blocks of the node.
type leaving struct {
	block.Block
	since time.Duration
	// asked says that the deletion was requested. Another node may have the block since.
	asked bool
}

// leasable returns the blocks of the node file.
func (k *poolController) leasable() []block.Block {
	if k.leaving == nil {
		return k.owned
	}
	return without(k.owned, k.leaving.Name)
}

func without(blocks []block.Block, name string) []block.Block {
	return slices.DeleteFunc(slices.Clone(blocks), func(b block.Block) bool { return b.Name == name })
}

// trim gives back a block that the node does not need: it takes the block out of the node file,
// and deletes it after linger, unless pods need it. A node that may claim nothing keeps all.
func (k *poolController) trim(ctx context.Context) {
	k.releasing.OK(k.Clock, trimEvery)
	k.noteEmpty()
	if !k.short() { // no claim is needed any more: pods have ended, or the node may not claim
		k.note("claim", nil)
	}
	claims := k.selected && k.fault == nil
	switch l := k.leaving; {
	case l == nil && claims:
		k.beginLeaving()
	case l == nil:
	case !l.asked && (!claims || !k.surplus(l.Block)):
		k.putBack()
	case k.Now()-l.since >= linger:
		k.leave(ctx, l)
	}
}

// noteEmpty notes since when each block is empty.
func (k *poolController) noteEmpty() {
	empty := map[string]time.Duration{}
	for _, b := range k.owned {
		u, known := k.agent.meter.usage(k.pool, *k.space, []block.Block{b})
		if !known || u.Used+u.Quarantined > 0 {
			continue
		}
		since, before := k.empty[b.Name]
		if !before {
			since = k.Now()
		}
		empty[b.Name] = since
	}
	k.empty = empty
}

// surplus says whether the node can do without a block: it is empty, and half of the host
// indexes of the others are free. The node claims again at four fifths, so no block comes and goes.
func (k *poolController) surplus(b block.Block) bool {
	others := without(k.leasable(), b.Name)
	left, _ := k.agent.meter.usage(k.pool, *k.space, others) // it is known since a block was seen empty
	_, empty := k.empty[b.Name]
	return empty && left.Size > 0 && 2*(left.Used+left.Quarantined) <= left.Size
}

// beginLeaving takes a block that was empty for long enough out of the node file. The
// last one that it claimed is the first.
func (k *poolController) beginLeaving() {
	for _, b := range slices.Backward(k.owned) {
		if k.Now()-k.empty[b.Name] < emptyFor || !k.surplus(b) {
			continue
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.leaving = &leaving{Block: b, since: k.Now()}
		k.write()
		return
	}
}

// putBack makes the block leasable again that was about to leave.
func (k *poolController) putBack() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leaving = nil
	k.write()
}

// leave deletes the block, unless an ADD that read the node file before has an address of it.
// If an earlier request had no answer, another node may have the block.
func (k *poolController) leave(ctx context.Context, l *leaving) {
	if !l.asked {
		used, err := k.inUse(ctx)
		in := func(a netip.Addr) bool { index, _, ok := k.space.Find(a); return ok && index == l.Spec.Index }
		if err != nil || slices.ContainsFunc(used, in) {
			k.putBack()
			return
		}
	}
	l.asked = true
	there, err := k.Store.Get(ctx, l.Name)
	if err == nil && there.Spec == l.Spec {
		err = k.Store.Delete(ctx, there.Name, there.UID, there.ResourceVersion)
	}
	if err != nil && !errors.Is(err, block.ErrNotFound) {
		return // the next look asks again
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.owned, k.leaving = without(k.owned, l.Name), nil
	k.Log.Info("gave back a block that was empty for an hour", "pool", k.pool, "block", l.Name)
}

// capped says whether the node has as many blocks as spec.maxBlocksPerNode allows, and
// reports it when pods get no address any more.
func (k *poolController) capped() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.most == 0 || len(k.owned) < k.most {
		return false
	}
	u, _ := k.agent.meter.usage(k.pool, *k.space, k.owned)
	var err error
	if u.Free == 0 {
		err = cnierr.New(cnierr.PoolExhausted, "claim block of RailPool", k.pool,
			"raise spec.maxBlocksPerNode of the RailPool, or look for leaks: rocectl pool list "+pool.OfRailPool(k.pool),
			"the node has %d blocks, which is spec.maxBlocksPerNode, and all %d host indexes are in use", len(k.owned), u.Size)
	}
	k.trouble("claim", err)
	return true
}
