// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/pace"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

const (
	// linger is how long an ADD may still use a node file that was removed: the plugins
	// end a call after 60 s.
	linger = 2 * time.Minute
	// scatter is the time over which all nodes then spread the release of their blocks.
	scatter = time.Minute
	// patience is how often the leases of a deleted pool are read.
	patience = 10 * time.Second
)

// retire releases a deleted pool once no address of it is leased or in quarantine: it removes
// the node file, and the blocks after a delay. A pool that is created again is managed again.
func (k *poolController) retire(ctx context.Context) {
	if !k.retiring.Over(k.Now()) {
		return
	}
	used, err := k.inUse(ctx)
	switch {
	case err != nil:
	case len(used) > 0:
		k.retiring.OK(k.Clock, patience)
		k.note("deleted pool", nil) // they can be read again
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
	k.note("deleted pool", err)
	if err != nil {
		k.retiring.Fail(k.Clock)
	}
}

// inUse returns the addresses of the pool that are leased or in quarantine now.
func (k *poolController) inUse(ctx context.Context) (out []netip.Addr, err error) {
	quarantine := k.knownQuarantine()
	entries, err := k.Leases.List(ctx, "")
	for _, e := range entries {
		if e.Of(pool.OfRailPool(k.pool)) && (e.InUse() || e.Age < quarantine) {
			out = append(out, e.Addr)
		}
	}
	return out, err
}

// goOn confirms the blocks that pods use, reports their usage, and answers requests for sticky
// addresses with ordinary ones.
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

// knownQuarantine returns the quarantine of the pool, or the longest possible one if it is unknown.
func (k *poolController) knownQuarantine() time.Duration {
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

// closeFile prevents further ADDs from leasing. What they were granted ends before the
// leases are released.
func (k *poolController) closeFile() error {
	k.endGrants()
	k.quarantine = k.knownQuarantine() // after a restart, the file tells it
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

// release releases the RailLeases of the node, and then deletes its blocks, by which a restarted
// agent finds the pool. The list is Cached, because a Latest list would read the blocks of all
// nodes from etcd, for each node; sweeps finds blocks that it lacks.
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

// releaseLeases releases the RailLeases that the node holds.
func (k *poolController) releaseLeases(ctx context.Context) error {
	if k.space != nil && k.slots.Pool == "" { // the node never held any
		return nil
	}
	claimer := sticky.Claimer{Store: k.RailLeases, Node: k.Node, Now: time.Now}
	held, err := claimer.Held(ctx, k.pool)
	for _, l := range held {
		if err == nil {
			err = claimer.Release(ctx, l)
		}
	}
	return err
}
