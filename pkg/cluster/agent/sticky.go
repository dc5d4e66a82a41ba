// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"context"
	"errors"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/agent/grant"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// answerTime leaves some of nodefile.AskTime for the way of the answer.
const answerTime = nodefile.AskTime - 300*time.Millisecond

// startGrants answers the pool's requests for sticky addresses until endGrants is called
// or the context ends.
func (k *poolController) startGrants(ctx context.Context) {
	lost := k.agent.metrics.stickyLost.WithLabelValues(k.pool) // an alert sees it grow only from zero
	answers := func(answer string) func() {
		return func() { k.agent.metrics.stickyAnswers.WithLabelValues(k.pool, answer).Inc() }
	}
	c := grant.New(grant.Config{
		Pool: k.pool, Terms: k.terms, Claimer: sticky.Claimer{Store: k.RailLeases, Node: k.Node, Now: time.Now},
		Leases: k.Leases, Seen: k.agent.meter.last, Trouble: k.note,
		Granted: answers("granted"), None: answers("none"), Lost: lost.Inc,
		Clock: k.Clock, Log: k.Log,
	})
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Run(ctx) // the context's error
	}()
	k.stopGrants = func() { cancel(); <-ended }
	k.mu.Lock()
	defer k.mu.Unlock()
	k.grants = c
}

// Ask answers an ADD that requests the sticky addresses of a pod, in less time than the
// ADD waits.
func (a *Agent) Ask(ctx context.Context, pool string, key nodefile.Key) nodefile.Answer {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	a.mu.Lock()
	k := a.controllers[pool]
	a.mu.Unlock()
	if k != nil {
		k.mu.Lock()
		c := k.grants
		k.mu.Unlock()
		if c != nil {
			return c.Ask(ctx, key)
		}
	}
	return nodefile.Answer{Wait: "rocectl agent has not got the sticky addresses of RailPool " + pool + " from the API server yet"}
}

// endGrants stops the grant controller, if one runs.
func (k *poolController) endGrants() {
	if k.stopGrants != nil {
		k.mu.Lock()
		k.grants = nil
		k.mu.Unlock()
		k.stopGrants()
		k.stopGrants = nil
	}
}

// note is trouble for callers that do not hold the lock.
func (k *poolController) note(what string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trouble(what, err)
}

// terms returns the host indexes for sticky addresses, and why none may be taken now.
func (k *poolController) terms() (block.Slots, error) {
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
