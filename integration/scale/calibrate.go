// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/roce-cni/roce-cni/integration/scale/rival"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

const (
	// few and many are the numbers of things in lists and objects when their costs
	// are measured. The difference of the two costs gives the cost of one thing.
	few, many = 10, 2000
	// Each request is sent so many times for so long. The best time counts, because
	// other work only makes a request slower.
	times           = 3
	crowded, lonely = time.Second, 300 * time.Millisecond
)

// bench measures what requests cost.
type bench struct {
	*server
	crowd []actor
	costs costs
	made  atomic.Int64 // for names that are not used again
}

// ask sends a request; each actor's are numbered.
type ask func(ctx context.Context, a actor, n int) error

// calibrate measures the costs of all requests, with so many under way at once.
func (s *server) calibrate(ctx context.Context, parallel int) (costs, error) {
	crowd, err := s.crowd(ctx, scenario{Nodes: parallel}, newTally(), 1)
	if err != nil {
		return costs{}, err
	}
	b := &bench{server: s, crowd: crowd, costs: costs{Machine: machine(), Parallel: parallel, Requests: map[request]cost{}}}
	for _, part := range []func(context.Context) error{b.ofBlocks, b.lag, b.ofLeases, b.ofOthers, b.ofSizes} {
		if err := errors.Join(s.prepare(ctx, scenario{}), part(ctx)); err != nil {
			return costs{}, err
		}
	}
	b.costs.Machine += "; after: " + machine()
	return b.costs, s.clear(ctx)
}

// each measures some requests, one after the other.
func (b *bench) each(ctx context.Context, requests []request, asks ...ask) error {
	for i, r := range requests {
		c, err := b.cost(ctx, b.crowd, asks[i])
		if err != nil {
			return fmt.Errorf("%s: %w", r, err)
		}
		b.costs.Requests[r] = c
	}
	return nil
}

// cost measures a request.
func (b *bench) cost(ctx context.Context, crowd []actor, do ask) (c cost, err error) {
	if c.Work, err = b.time(ctx, crowd, crowded, do); err == nil {
		c.Alone, err = b.time(ctx, crowd[:1], lonely, do)
	}
	return c, err
}

// time returns the best of some times.
func (b *bench) time(ctx context.Context, crowd []actor, long time.Duration, do ask) (time.Duration, error) {
	best, err := b.once(ctx, crowd, long, do)
	for range times - 1 {
		next, again := b.once(ctx, crowd, long, do)
		best, err = min(best, next), errors.Join(err, again)
	}
	return best, err
}

// once returns how much time goes by for each request that is answered, while
// these actors ask for so long.
func (b *bench) once(ctx context.Context, crowd []actor, long time.Duration, do ask) (time.Duration, error) {
	began := b.clock()
	var answered atomic.Int64
	faults := make([]error, len(crowd))
	var all sync.WaitGroup
	for i, a := range crowd {
		all.Go(func() {
			for n := 0; b.clock()-began < long && faults[i] == nil; n++ {
				if faults[i] = do(ctx, a, n); faults[i] == nil {
					answered.Add(1)
				}
			}
		})
	}
	all.Wait()
	return (b.clock() - began) / time.Duration(max(1, answered.Load())), errors.Join(faults...)
}

// expected returns nil for that error.
func expected(want, got error) error {
	if errors.Is(got, want) {
		return nil
	}
	if got == nil {
		return fmt.Errorf("done, instead of: %w", want)
	}
	return fmt.Errorf("want %w, got: %w", want, got)
}

// blockOf is a block of an actor that no other actor makes.
func blockOf(a actor, index int) block.Block {
	node := scenario{}.member(a)
	return block.Block{Name: "scale." + a.name() + "-" + strconv.Itoa(index), Spec: block.Spec{
		Pool: "scale", Rack: a.name(), Index: index, Size: block.DefaultSize, Owner: block.Owner{NodeName: node.Name, MachineID: node.MachineID},
	}}
}

// fill makes so many blocks.
func (b *bench) fill(ctx context.Context, things int) error {
	for range things {
		if _, err := b.crowd[0].store.Create(ctx, blockOf(b.crowd[0], int(b.made.Add(1)))); err != nil {
			return err
		}
	}
	return nil
}

// ofBlocks measures what is about one block. Those that exist are other nodes'.
func (b *bench) ofBlocks(ctx context.Context) error {
	err := b.each(ctx, []request{createBlock}, func(ctx context.Context, a actor, _ int) error {
		_, err := a.store.Create(ctx, blockOf(a, int(b.made.Add(1))))
		return err
	})
	if err := errors.Join(err, b.prepare(ctx, scenario{}), b.fill(ctx, few)); err != nil {
		return err
	}
	last := int(b.made.Load())
	there := func(n int) block.Block { return blockOf(b.crowd[0], last-n%few) }
	return b.each(ctx, []request{meetBlock, getBlock, peekBlock},
		func(ctx context.Context, a actor, n int) error {
			mine := there(n)
			mine.Spec.NodeName = a.name()
			_, err := a.store.Create(ctx, mine)
			return expected(block.ErrExists, err)
		},
		func(ctx context.Context, a actor, n int) error { _, err := a.store.Get(ctx, there(n).Name); return err },
		func(ctx context.Context, a actor, n int) error {
			_, err := a.store.Peek(ctx, there(n).Name)
			return err
		},
	)
}

// lag measures after what time the cache has a block that was created: the median
// of some.
func (b *bench) lag(ctx context.Context) error {
	a := b.crowd[0]
	var late []time.Duration
	for range 50 {
		made, err := a.store.Create(ctx, blockOf(a, int(b.made.Add(1))))
		if err != nil {
			return err
		}
		began := b.clock()
		for err = block.ErrNotFound; errors.Is(err, block.ErrNotFound); {
			_, err = a.store.Peek(ctx, made.Name)
		}
		if err != nil {
			return err
		}
		late = append(late, b.clock()-began)
	}
	slices.Sort(late)
	b.costs.Lag = quantile(late, 50)
	return nil
}

// own makes an object for each actor, and returns them as they are kept.
func (b *bench) own(ctx context.Context, k rival.Kind, taken int) ([]rival.Object, error) {
	held := make([]rival.Object, len(b.crowd))
	for i, a := range b.crowd {
		err := a.objects.Create(ctx, rival.Object{Kind: k, Name: a.name(), Taken: taken})
		if err == nil {
			held[i], err = a.objects.Get(ctx, k, a.name())
		}
		if err != nil {
			return nil, err
		}
	}
	return held, nil
}

// ofLeases measures what is about a lease. Each actor has one of its own, which
// costs what one for all does.
func (b *bench) ofLeases(ctx context.Context) error {
	held, err := b.own(ctx, rival.Leases, 0)
	if err != nil {
		return err
	}
	stale := slices.Clone(held)
	err = b.each(ctx, []request{getLease, putLease, loseLease},
		func(ctx context.Context, a actor, _ int) error {
			_, err := a.objects.Get(ctx, rival.Leases, a.name())
			return err
		},
		func(ctx context.Context, a actor, n int) (err error) {
			held[a.number].Holder = strconv.Itoa(n) // what changes nothing is not written
			held[a.number], err = a.objects.Update(ctx, held[a.number])
			return err
		},
		func(ctx context.Context, a actor, _ int) error {
			_, err := a.objects.Update(ctx, stale[a.number])
			return expected(block.ErrConflict, err)
		},
	)
	for _, o := range held {
		err = errors.Join(err, b.call(ctx, b.admin, http.MethodDelete, pathOf(rival.Leases)+"/"+o.Name, nil, nil))
	}
	return err
}

// ofOthers measures what is left.
func (b *bench) ofOthers(ctx context.Context) error {
	return b.each(ctx, []request{missReservation, createReservation, refused},
		func(ctx context.Context, a actor, _ int) error {
			_, err := a.objects.Get(ctx, rival.Reservations, "none")
			return expected(block.ErrNotFound, err)
		},
		func(ctx context.Context, a actor, _ int) error {
			return a.objects.Create(ctx, rival.Object{Kind: rival.Reservations, Name: strconv.Itoa(int(b.made.Add(1)))})
		},
		// Nothing can be made to be refused one at a time: a request that reads
		// nothing, after which the connection is authenticated, stands for it.
		func(ctx context.Context, _ actor, _ int) error {
			return b.call(ctx, b.lines[0], http.MethodGet, "/version", nil, nil)
		},
	)
}

// ofSizes measures what costs more with more things: at few, and at many.
func (b *bench) ofSizes(ctx context.Context) error {
	var sizes [2]map[request]cost
	for i, things := range []int{few, many} {
		var err error
		if sizes[i], err = b.size(ctx, things); err != nil {
			return err
		}
	}
	for r := range sizes[0] {
		b.costs.Requests[r] = line(sizes[0][r], sizes[1][r])
	}
	whole := b.costs.Requests[listAll]
	whole.Each = max(0, whole.Each-b.costs.Requests[listMine].Each) // which every block costs, in the list or not
	b.costs.Requests[listAll] = whole
	return nil
}

// line is the cost of a request that was measured with few things and with many.
func line(less, more cost) cost {
	each := max(0, (more.Work-less.Work)/(many-few))
	return cost{Work: max(0, less.Work-few*each), Each: each, Alone: max(0, less.Alone-few*each)}
}

func (b *bench) size(ctx context.Context, things int) (map[request]cost, error) {
	if err := errors.Join(b.prepare(ctx, scenario{}), b.fill(ctx, things)); err != nil {
		return nil, err
	}
	if err := b.crowd[0].objects.Create(ctx, rival.Object{Kind: rival.Pools, Name: "one", Taken: things}); err != nil {
		return nil, err
	}
	out := map[request]cost{}
	note := func(r request, do ask) error {
		crowd := b.crowd
		if r == listOwn {
			crowd = crowd[:min(4, len(crowd))] // an old etcd is that slow
		}
		c, err := b.cost(ctx, crowd, do)
		if out[r] = c; err != nil {
			return fmt.Errorf("%s: %w", r, err)
		}
		return nil
	}
	list := func(q block.Query) ask {
		q.Pool = "scale"
		return func(ctx context.Context, a actor, _ int) error { _, err := a.store.List(ctx, q); return err }
	}
	err := errors.Join(
		note(listMine, list(block.Query{MachineID: "nobody", Freshness: block.Cached})),
		note(listOwn, list(block.Query{MachineID: "nobody", Freshness: block.Latest})),
		note(listAll, list(block.Query{Freshness: block.Cached})),
		note(listPools, func(ctx context.Context, a actor, _ int) error { return a.objects.List(ctx, rival.Pools) }),
	)
	if err != nil {
		return nil, err
	}
	held, err := b.own(ctx, rival.Pools, things)
	stale := slices.Clone(held)
	return out, errors.Join(err,
		note(getPool, func(ctx context.Context, a actor, _ int) error {
			_, err := a.objects.Get(ctx, rival.Pools, a.name())
			return err
		}),
		note(putPool, func(ctx context.Context, a actor, n int) (err error) {
			held[a.number].Taken = things + 1 - n%2 // what changes nothing is not written
			held[a.number], err = a.objects.Update(ctx, held[a.number])
			return err
		}),
		note(losePool, func(ctx context.Context, a actor, _ int) error {
			_, err := a.objects.Update(ctx, stale[a.number])
			return expected(block.ErrConflict, err)
		}),
	)
}
