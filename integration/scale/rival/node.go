// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rival

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// Node is one that wants addresses. All fields are needed.
type Node struct {
	Name    string
	Objects Objects
	// Wait returns after d, or with an error when the run ends.
	Wait func(ctx context.Context, d time.Duration) error
	// Rand returns a number from 0 to below 1.
	Rand func() float64
	// Failed is called when an ADD has failed that will be asked for again.
	Failed func()
}

// UnderLease takes the next address of a pool as whereabouts does: its requests, in
// its order, with its waits. What it does when time runs out is left out, to its
// advantage: a lease never expires under its holder, and no ADD ever gives up.
func (n Node) UnderLease(ctx context.Context, pool string) (taken int, err error) {
	held, err := n.lock(ctx)
	if err != nil {
		return 0, err
	}
	if err := n.insist(ctx, func() error { return n.Objects.List(ctx, Pools) }); err != nil {
		return 0, err
	}
	p, err := n.get(ctx, Pools, pool)
	if err != nil {
		return 0, err
	}
	entry := Object{Kind: Reservations, Name: fmt.Sprintf("%s.%d", pool, p.Taken)}
	if _, err := n.get(ctx, Reservations, entry.Name); !errors.Is(err, block.ErrNotFound) {
		return 0, fmt.Errorf("%s is taken twice: %w", entry.Name, err)
	}
	p.Taken++
	if _, err := n.update(ctx, p); err != nil {
		return 0, fmt.Errorf("update %s under the lease: %w", pool, err)
	}
	if err := n.insist(ctx, func() error { return n.Objects.Create(ctx, entry) }); err != nil {
		return 0, err
	}
	held.Holder = ""
	_, err = n.update(ctx, held)
	return p.Taken - 1, err
}

// lock takes the lease when it is free, as client-go's leader election does: those
// who wait ask every RetryPeriod of 0.5 s, and up to 1.2 times that later.
func (n Node) lock(ctx context.Context) (Object, error) {
	const retryPeriod, jitter = 500 * time.Millisecond, 1.2
	for {
		lease, err := n.get(ctx, Leases, LeaseName)
		if err != nil {
			return Object{}, err
		}
		if lease.Holder == "" {
			lease.Holder = n.Name
			if lease, err = n.update(ctx, lease); !errors.Is(err, block.ErrConflict) {
				return lease, err
			}
		}
		if err := n.Wait(ctx, time.Duration((1+jitter*n.Rand())*float64(retryPeriod))); err != nil {
			return Object{}, err
		}
	}
}

// Swap takes the next address of a pool with client-go's RetryOnConflict and its
// DefaultRetry: five tries, 10 ms apart. Then the ADD has failed, and kubelet comes
// again a second later.
func (n Node) Swap(ctx context.Context, pool string) (taken int, err error) {
	const tries, pause, jitter, again = 5, 10 * time.Millisecond, 0.1, time.Second
	for {
		for range tries {
			p, err := n.get(ctx, Pools, pool)
			if err != nil {
				return 0, err
			}
			p.Taken++
			if _, err = n.update(ctx, p); !errors.Is(err, block.ErrConflict) {
				return p.Taken - 1, err
			}
			if err := n.Wait(ctx, time.Duration((1+jitter*n.Rand())*float64(pause))); err != nil {
				return 0, err
			}
		}
		n.Failed()
		if err := n.Wait(ctx, again); err != nil {
			return 0, err
		}
	}
}

func (n Node) get(ctx context.Context, k Kind, name string) (out Object, err error) {
	err = n.insist(ctx, func() (err error) { out, err = n.Objects.Get(ctx, k, name); return err })
	return out, err
}

func (n Node) update(ctx context.Context, o Object) (out Object, err error) {
	err = n.insist(ctx, func() (err error) { out, err = n.Objects.Update(ctx, o); return err })
	return out, err
}

// insist asks again when the server was too busy, as client-go does.
func (n Node) insist(ctx context.Context, do func() error) error {
	for {
		err := do()
		var busy *block.BusyError
		if !errors.As(err, &busy) {
			return err
		}
		if err := n.Wait(ctx, busy.After+time.Duration(n.Rand()*float64(time.Second))); err != nil {
			return err
		}
	}
}
