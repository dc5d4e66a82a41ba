// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"context"
	"sync"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// sweeps looks from time to time for blocks of this node in pools that the agent does
// not manage: pools that selected the node before a boot, and pools that were deleted
// while no agent ran. It is slow, because all nodes do it.
func (a *Agent) sweeps(ctx context.Context, all *sync.WaitGroup) {
	after := sweepAfter
	for a.Wait(ctx, a.clock.Spread(after)) == nil {
		after = sweepEvery
		blocks, err := a.Store.List(ctx, block.Query{MachineID: a.Node.MachineID, Freshness: block.Cached})
		if err != nil {
			after = sweepAfter
			continue // the store has logged the reason
		}
		a.mu.Lock()
		for _, b := range blocks {
			if b.Spec.NodeName == a.Node.Name && a.view != nil {
				a.keep(ctx, all, b.Spec.Pool)
			}
		}
		a.mu.Unlock()
	}
}
