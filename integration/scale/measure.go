// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/roce-cni/roce-cni/integration/scale/rival"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// measure runs a scenario on the server, for at most so long.
func (s *server) measure(ctx context.Context, sc scenario, limit time.Duration, seed uint64) (outcome, error) {
	spaces, err := sc.spaces()
	if err != nil {
		return outcome{}, err
	}
	if err := s.prepare(ctx, sc); err != nil {
		return outcome{}, err
	}
	w := newWork(sc)
	crowd, err := s.crowd(ctx, sc, w.tally, seed)
	if err != nil {
		return outcome{}, err
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := s.clock()
	var all sync.WaitGroup
	for range sc.workers() {
		all.Go(func() {
			for number, ok := w.next(); ok && limited.Err() == nil; number, ok = w.next() {
				came := s.clock() - began
				names, err := sc.claim(limited, crowd[number], spaces)
				w.done(names, came, s.clock()-began, err)
			}
		})
	}
	all.Wait()
	out := w.outcome(limit)
	out.Measured = true
	if limited.Err() != nil && ctx.Err() == nil {
		// What was under way was broken off.
		return out, w.failure(context.DeadlineExceeded, block.ErrUnknown)
	}
	return out, w.failure()
}

// crowd makes the nodes before the clock runs.
func (s *server) crowd(ctx context.Context, sc scenario, t *tally, seed uint64) ([]actor, error) {
	crowd := make([]actor, sc.Nodes)
	for i := range crowd {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		var err error
		if crowd[i], err = s.actor(ctx, i, t, random.Float64); err != nil {
			return nil, err
		}
	}
	return crowd, nil
}

// prepare makes what is there before.
func (s *server) prepare(ctx context.Context, sc scenario) error {
	if err := s.clear(ctx); err != nil {
		return err
	}
	o := serverObjects{s, s.admin}
	if err := o.Create(ctx, rival.Object{Kind: rival.Leases, Name: rival.LeaseName}); err != nil {
		return err
	}
	for rail := range sc.Rails {
		if err := o.Create(ctx, rival.Object{Kind: rival.Pools, Name: rival.PoolName(rail)}); err != nil {
			return err
		}
	}
	return nil
}
