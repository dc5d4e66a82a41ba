// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"context"
	"errors"
	"time"

	"github.com/roce-cni/roce-cni/pkg/agent/pace"
	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/sticky"
	"github.com/roce-cni/roce-cni/pkg/conf/pool"
)

const (
	// linger is for how long after the file is gone an ADD may lease what it has
	// read in it: the plugins end a call after 60 s.
	linger = 2 * time.Minute
	// scatter is within what time after that all nodes give their blocks back.
	scatter = time.Minute
	// patience is how often the leases of a deleted pool are looked at.
	patience = 10 * time.Second
)

// retire ends the keeping of a pool that was deleted, once no pod of the node has
// an address of it and none rests: the file goes first, and after a while the
// blocks. A pool that comes back meanwhile is kept again.
func (k *poolController) retire(ctx context.Context) {
	if !k.retiring.Over(k.Now()) {
		return
	}
	k.retiring.OK(k.agent.clock, patience)
	n, err := k.agent.meter.inUse(ctx, k.pool, k.rest())
	switch {
	case err != nil:
	case n > 0:
		k.goOn(ctx)
		return
	case !k.closed:
		err = k.closeFile()
	default:
		err = k.release(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trouble("deleted pool", err)
	if err != nil {
		k.retiring.Fail(k.agent.clock)
	}
}

// goOn confirms the blocks that pods use and says how full they are, and has pods that
// would keep their addresses get others.
func (k *poolController) goOn(ctx context.Context) {
	switch now := k.Now(); {
	case !k.joined && k.space != nil && k.joining.Over(now):
		k.join(ctx)
	case k.joined && k.asserting.Over(now):
		k.assert(ctx)
	case k.joined && k.reporting.Over(now):
		k.report(ctx)
	}
	if f, err := k.Ranges.Read(k.pool); err == nil && f.Sticky && k.stopGrants == nil {
		k.startGrants(ctx)
	}
}

// rest returns how long the addresses of the pool rest: the most that a pool may ask
// for when nothing tells.
func (k *poolController) rest() time.Duration {
	if k.space != nil {
		return k.space.Quarantine()
	}
	if k.closed {
		return k.quarantine
	}
	if f, err := k.Ranges.Read(k.pool); err == nil {
		return f.Quarantine
	}
	return pool.LongestQuarantine
}

// closeFile keeps further ADDs from leasing. The answers go first: without its file
// nobody would look at a pool after a restart.
func (k *poolController) closeFile() error {
	k.endGrants()
	if err := k.unanswer(); err != nil {
		return err
	}
	k.quarantine = k.rest() // which the file tells after a restart
	k.mu.Lock()
	defer k.mu.Unlock()
	k.joined, k.owned = false, nil // it is not written again
	_, none := k.Ranges.Read(k.pool)
	if err := k.Ranges.Remove(k.pool); err != nil {
		return err
	}
	if none == nil {
		k.Log.Info("the pool was deleted, and no address of it is leased: its node file is removed, and its blocks will be released", "pool", k.pool)
	}
	k.closed, k.retiring = true, pace.Pause{Until: k.Now() + linger + time.Duration(k.Rand()*float64(scatter))}
	return nil
}

// unanswer takes all answers away.
func (k *poolController) unanswer() error {
	answers, err := k.Ranges.Answers(k.pool)
	for _, a := range answers {
		err = errors.Join(err, k.Ranges.RemoveAnswer(k.pool, a.Key))
	}
	return err
}

// release gives up what the node holds for pods, and deletes its blocks, by which
// it is found again; then there is nothing to keep. What has no answer is done
// again, and what has changed meanwhile too. A Latest list would read the blocks of all
// nodes from etcd, for each node; what a Cached one should lack, sweeps finds.
func (k *poolController) release(ctx context.Context) error {
	if err := k.releaseLeases(ctx); err != nil {
		return err
	}
	blocks, err := k.Store.List(ctx, block.Query{Pool: k.pool, MachineID: k.Node.MachineID, Freshness: block.Cached})
	if err != nil {
		return err
	}
	var faults []error
	for _, b := range blocks {
		if b.Spec.NodeName != k.Node.Name {
			continue
		}
		err := k.Store.Delete(ctx, b.Name, b.UID, b.ResourceVersion)
		if err != nil && !errors.Is(err, block.ErrNotFound) {
			faults = append(faults, err)
			continue
		}
		k.Log.Info("released a block of a deleted pool", "pool", k.pool, "block", b.Name)
	}
	if len(faults) == 0 {
		k.done = k.agent.forget(k.pool)
	}
	return errors.Join(faults...)
}

// releaseLeases gives up what the node holds for pods.
func (k *poolController) releaseLeases(ctx context.Context) error {
	if k.space != nil && k.slots.Pool == "" { // it never held any
		return nil
	}
	claimer := sticky.Claimer{Store: k.Kept, Node: k.Node, Now: k.Date}
	held, err := claimer.Held(ctx, k.pool)
	for _, l := range held {
		if err == nil {
			err = claimer.Release(ctx, l)
		}
	}
	return err
}
