// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/roce-cni/roce-cni/integration/scale/rival"
	"github.com/roce-cni/roce-cni/integration/scale/sim"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
)

// model is an API server, and what is in it. The processes of one loop share it.
type model struct {
	costs   costs
	station sim.Station // the machine
	seats   sim.Seats
	blocks  *blocktest.Mem
	made    map[string]time.Duration // blocks, and when
	rails   int                      // how many pools there are
	objects map[string]rival.Object
	version int
}

// simulate runs a scenario in the model, for at most so much of its time.
func simulate(ctx context.Context, c costs, s scenario, limit time.Duration, seed uint64) (outcome, error) {
	spaces, err := s.spaces()
	if err != nil {
		return outcome{}, err
	}
	m := &model{costs: c, blocks: blocktest.NewMem(), made: map[string]time.Duration{}, rails: s.Rails, objects: map[string]rival.Object{}}
	if err := m.prepare(ctx, s, spaces, seed); err != nil {
		return outcome{}, err
	}
	var loop sim.Loop
	work := newWork(s)
	for worker := range s.workers() {
		random := rand.New(rand.NewPCG(seed, uint64(worker)))
		begin := time.Duration(random.Float64() * float64(s.Spread))
		loop.Go(begin, func(p *sim.Process) {
			for number, ok := work.next(); ok; number, ok = work.next() {
				a := m.actor(p, number, random, work.tally)
				came := p.Now()
				names, err := s.claim(ctx, a, spaces)
				work.done(names, came, p.Now(), err)
				if s.Spread > 0 { // each node begins at its own time
					return
				}
			}
		})
	}
	loop.Run(limit)
	return work.outcome(limit), work.failure(sim.ErrEnded)
}

// prepare makes what is there before.
func (m *model) prepare(ctx context.Context, s scenario, spaces []block.Space, seed uint64) error {
	m.put(rival.Object{Kind: rival.Leases, Name: rival.LeaseName})
	for rail := range s.Rails {
		m.put(rival.Object{Kind: rival.Pools, Name: rival.PoolName(rail)})
	}
	for shard, space := range spaces {
		held := rand.New(rand.NewPCG(seed, uint64(shard))).Perm(space.Blocks())[:space.Blocks()*s.Joined/100]
		for _, index := range held {
			b := block.Block{Name: space.Name(index), Spec: block.Spec{
				Pool: "scale", Rack: strconv.Itoa(shard), Index: index, Size: block.DefaultSize, Owner: block.Owner{NodeName: "other", MachineID: "other"},
			}}
			if _, err := m.blocks.Create(ctx, b); err != nil {
				return err
			}
			m.made[b.Name] = -time.Hour
		}
	}
	return nil
}

// actor is the node of process p.
func (m *model) actor(p *sim.Process, number int, random *rand.Rand, t *tally) actor {
	c := modelClient{m, p}
	return actor{
		number: number, tally: t, rand: random.Float64, now: p.Now,
		store: countedBlocks{modelBlocks{c}, t}, objects: countedObjects{modelObjects{c}, t},
		wait: func(ctx context.Context, d time.Duration) error { return errors.Join(p.Sleep(d), ctx.Err()) },
	}
}

// modelClient is a node's way to the model.
type modelClient struct {
	*model
	p *sim.Process
}

// ask waits in the queue for a request, does it, and returns the answer. A refusal is
// also work that waits in the queue.
func (c modelClient) ask(r request, busy time.Duration, do func() error) error {
	if !c.seats.Enter() {
		no := c.costs.Requests[refused]
		err := c.station.Serve(c.p, no.Work)
		if err == nil {
			err = c.p.Sleep(max(0, no.Alone-no.Work))
		}
		if err != nil {
			return fmt.Errorf("%w: %w", block.ErrUnknown, err)
		}
		return &block.BusyError{After: c.seats.Refuse(c.p.Now())}
	}
	err := c.station.Serve(c.p, busy)
	c.seats.Leave()
	if err != nil {
		return fmt.Errorf("%w: %w", block.ErrUnknown, err)
	}
	answer := do()
	// A request may take longer than it keeps the machine busy, mostly because of the
	// disk. In this time the server serves other requests.
	cost := c.costs.Requests[r]
	if err := c.p.Sleep(max(0, cost.Alone-cost.Work)); err != nil {
		return fmt.Errorf("%w: %w", block.ErrUnknown, err)
	}
	return answer
}

// plain is ask for a request that always costs the same.
func (c modelClient) plain(r request, do func() error) error {
	return c.ask(r, c.costs.Requests[r].Work, do)
}

// modelBlocks is a block.Store.
type modelBlocks struct{ modelClient }

// Create is block.Store's. What it costs depends on what is there when it gets in
// line.
func (m modelBlocks) Create(ctx context.Context, b block.Block) (out block.Block, err error) {
	r := createBlock
	if _, err := m.blocks.Get(ctx, b.Name); err == nil {
		r = meetBlock
	}
	err = m.plain(r, func() (err error) {
		if out, err = m.blocks.Create(ctx, b); err == nil {
			m.made[b.Name] = m.p.Now()
		}
		return err
	})
	return out, err
}

// Get is block.Store's.
func (m modelBlocks) Get(ctx context.Context, name string) (out block.Block, err error) {
	err = m.plain(getBlock, func() (err error) { out, err = m.blocks.Get(ctx, name); return err })
	return out, err
}

// Peek is block.Store's.
func (m modelBlocks) Peek(ctx context.Context, name string) (out block.Block, err error) {
	err = m.plain(peekBlock, func() (err error) {
		if !m.cached(name) {
			return block.ErrNotFound
		}
		out, err = m.blocks.Get(ctx, name)
		return err
	})
	return out, err
}

// cached says whether the cache has a block that exists.
func (m modelBlocks) cached(name string) bool {
	return m.p.Now()-m.made[name] >= m.costs.Lag
}

// List is block.Store's. The server looks at every block that there is, and sends
// those that match.
func (m modelBlocks) List(ctx context.Context, q block.Query) (out []block.Block, err error) {
	there, err := m.blocks.List(ctx, q)
	if err != nil {
		return nil, err
	}
	look := listMine
	if q.Freshness == block.Latest {
		look = listOwn
	}
	busy := m.costs.Requests[look].busy(len(m.made)) + time.Duration(len(there))*m.costs.Requests[listAll].Each
	err = m.ask(look, busy, func() (err error) { out, err = m.blocks.List(ctx, q); return err })
	if q.Freshness == block.Cached {
		out = slices.DeleteFunc(out, func(b block.Block) bool { return !m.cached(b.Name) })
	}
	return out, err
}

// Touch is block.Store's. These scenarios do not use it. It is a write.
func (m modelBlocks) Touch(ctx context.Context, name, uid string) (out block.Block, err error) {
	err = m.plain(createBlock, func() (err error) { out, err = m.blocks.Touch(ctx, name, uid); return err })
	return out, err
}

// Delete is block.Store's. Nothing deletes.
func (m modelBlocks) Delete(context.Context, string, string, string) error {
	return block.ErrUnknown
}

// modelObjects is the objects of the other two designs.
type modelObjects struct{ modelClient }

// put keeps an object with a version that none has had.
func (m *model) put(o rival.Object) rival.Object {
	m.version++
	o.Version = strconv.Itoa(m.version)
	m.objects[o.Key()] = o
	return o
}

func (m modelObjects) Get(_ context.Context, k rival.Kind, name string) (out rival.Object, err error) {
	r := map[rival.Kind]request{rival.Leases: getLease, rival.Pools: getPool, rival.Reservations: missReservation}[k]
	key := rival.Object{Kind: k, Name: name}.Key()
	err = m.ask(r, m.costs.Requests[r].busy(m.objects[key].Taken), func() (err error) {
		there := false
		if out, there = m.objects[key]; !there {
			return block.ErrNotFound
		}
		return nil
	})
	return out, err
}

// list brings pools.
func (m modelObjects) List(context.Context, rival.Kind) error {
	taken := 0
	for rail := range m.rails {
		taken += m.objects[rival.Object{Kind: rival.Pools, Name: rival.PoolName(rail)}.Key()].Taken
	}
	return m.ask(listPools, m.costs.Requests[listPools].busy(taken), func() error { return nil })
}

func (m modelObjects) Create(_ context.Context, o rival.Object) error {
	return m.plain(createReservation, func() error {
		if _, there := m.objects[o.Key()]; there {
			return block.ErrExists
		}
		m.put(o)
		return nil
	})
}

func (m modelObjects) Update(_ context.Context, o rival.Object) (out rival.Object, err error) {
	good, vain := putPool, losePool
	if o.Kind == rival.Leases {
		good, vain = putLease, loseLease
	}
	r := good
	if m.objects[o.Key()].Version != o.Version {
		r = vain
	}
	err = m.ask(r, m.costs.Requests[r].busy(o.Taken), func() error {
		if m.objects[o.Key()].Version != o.Version {
			return block.ErrConflict
		}
		out = m.put(o)
		return nil
	})
	return out, err
}
