// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"context"
	"errors"
	"time"

	"github.com/roce-cni/roce-cni/pkg/agent/clerk"
	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/sticky"
)

// DefaultPatience is for how long the node that had a pod last may go on holding its
// addresses: it has to see that the pod is gone, which takes it some two seconds.
const DefaultPatience = 30 * time.Second

// employ has the pool's requests answered until the clerk is dismissed, or the
// context ends.
func (k *keeper) employ(ctx context.Context) {
	begins(k.agent.metrics.keptLost, k.pool)
	answers := func(answer string) func() {
		return func() { k.agent.metrics.kept.WithLabelValues(k.pool, answer).Inc() }
	}
	c := clerk.New(clerk.Config{
		Pool: k.pool, Terms: k.terms, Desk: sticky.Desk{Store: k.Kept, Node: k.Node, Now: k.Date},
		Ranges: k.Ranges, Leases: k.Leases, Seen: k.agent.meter.last,
		Patience: k.Patience, Trouble: k.note,
		Granted: answers("granted"), None: answers("none"),
		Lost:  func() { k.agent.metrics.keptLost.WithLabelValues(k.pool).Inc() },
		Clock: k.agent.clock, Wait: k.Wait, Log: k.Log,
	})
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Run(ctx) // the context's error
	}()
	k.dismiss = func() { cancel(); <-ended }
}

// noClerk ends the clerk, if there is one.
func (k *keeper) noClerk() {
	if k.dismiss != nil {
		k.dismiss()
		k.dismiss = nil
	}
}

// note is trouble for who has not the lock.
func (k *keeper) note(what string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trouble(what, err)
}

// terms returns the slots of the pool, and why none may be taken.
func (k *keeper) terms() (block.Slots, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.deleted {
		return k.slots, &sticky.NoneError{Why: "RailPool " + k.pool + " was deleted"}
	}
	err := k.fault
	if text := k.troubles["file"]; err == nil && text != "" { // such as that the node is in another rack now
		err = errors.New(text)
	}
	return k.slots, err
}
