// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"context"
	"errors"
	"time"

	"github.com/roce-cni/roce-cni/pkg/block"
)

const (
	// linger is for how long after the file is gone an ADD may lease what it has
	// read in it: the plugins end a call after 60 s.
	linger = 2 * time.Minute
	// patience is how often the leases of a deleted pool are looked at.
	patience = 10 * time.Second
	// unknownRest is how long addresses rest at least when nothing tells: the most
	// that a pool may ask for.
	unknownRest = 24 * time.Hour
)

// retire ends the keeping of a pool that was deleted, once no pod of the node has
// an address of it and none rests: the file goes first, and after a while the
// blocks. A pool that comes back meanwhile is kept again.
func (k *keeper) retire(ctx context.Context) {
	if !k.retiring.over(k.Now()) {
		return
	}
	k.retiring.ok(k.agent, patience)
	n, err := k.agent.meter.inUse(ctx, k.pool, k.rest())
	switch {
	case err != nil:
	case n > 0:
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
		k.retiring.fail(k.agent)
	}
}

// rest returns how long the addresses of the pool rest.
func (k *keeper) rest() time.Duration {
	if k.space != nil {
		return k.space.Quarantine()
	}
	if f, err := k.Ranges.Read(k.pool); err == nil {
		return f.Quarantine
	}
	return unknownRest
}

// closeFile keeps further ADDs from leasing.
func (k *keeper) closeFile() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.joined, k.owned = false, nil // it is not written again
	if err := k.Ranges.Remove(k.pool); err != nil {
		return err
	}
	k.Log.Info("the pool was deleted, and nothing of it is leased: its file is removed, its blocks follow", "pool", k.pool)
	k.closed, k.retiring = true, pause{until: k.Now() + linger}
	return nil
}

// release deletes the node's blocks, and then there is nothing to keep. What has
// no answer is done again, and what has changed meanwhile too.
func (k *keeper) release(ctx context.Context) error {
	blocks, err := k.Store.List(ctx, block.Query{Pool: k.pool, MachineID: k.Node.MachineID, Freshness: block.Latest})
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
		k.Log.Info("gave back a block of a deleted pool", "pool", k.pool, "block", b.Name)
	}
	if len(faults) == 0 {
		k.done = k.agent.forget(k.pool)
	}
	return errors.Join(faults...)
}
