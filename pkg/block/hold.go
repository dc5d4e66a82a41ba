// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
)

// The waits between requests for one thing: the first, and the longest. The
// real ones are from half of these to one and a half times as long, and, for who is
// told when to come again, from once to twice that longer: what thousands of nodes
// are told in one second would otherwise be too much again in another one.
const (
	firstWait = 100 * time.Millisecond
	longWait  = 5 * time.Second
)

var (
	// errHeld says that a block is somebody else's.
	errHeld = errors.New("the block belongs to another node")
	// errAgain says that a block went or came between two requests.
	errAgain = errors.New("the block has just changed")
)

// hold makes a block ours or finds that it is ours, and returns it as it is
// kept; with errHeld it returns whose it is. It goes by what is there, not by
// what an earlier call was told, so that it may be called again and again. What it
// was told exists it looks at until there is an answer: to create it again is a write
// for nothing, unless it has gone.
func (c *Claimer) hold(ctx context.Context, want Block) (Block, error) {
	var got Block
	exists := false
	err := c.retry(ctx, func() (err error) {
		if !exists {
			got, err = c.Store.Create(ctx, want)
			exists = errors.Is(err, ErrExists)
		}
		if exists {
			got, err = c.meet(ctx, want.Name)
			exists = !errors.Is(err, errAgain)
		}
		return err
	})
	return got, err
}

// meet looks whose block it is that exists. Ours is touched: somebody who thinks
// that we are gone may be about to delete it.
func (c *Claimer) meet(ctx context.Context, name string) (Block, error) {
	there, err := c.Store.Get(ctx, name)
	if err == nil && !c.Node.owns(there) {
		return there, errHeld
	}
	if err == nil {
		there, err = c.Store.Touch(ctx, name, there.UID)
	}
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrConflict) {
		return Block{}, errAgain
	}
	return there, err
}

// retry does something until there is an answer.
func (c *Claimer) retry(ctx context.Context, do func() error) error {
	for wait := firstWait; ; wait = min(2*wait, longWait) {
		err := do()
		var busy *BusyError
		asked := errors.As(err, &busy)
		if !asked && !errors.Is(err, ErrUnknown) && !errors.Is(err, errAgain) {
			return err
		}
		d := time.Duration((0.5 + c.Rand()) * float64(wait))
		if asked { // never before, and not all at once
			d += time.Duration((1 + c.Rand()) * float64(busy.After))
		}
		if stopped := c.Wait(ctx, d); stopped != nil {
			return fmt.Errorf("%w: %w", stopped, err)
		}
	}
}

// explain completes the error of a claim.
func (c *Claimer) explain(ctx context.Context, s Space, err error) error {
	if ctx.Err() != nil && !errors.As(err, new(*cnierr.Error)) {
		return cnierr.New(cnierr.TryAgain, claiming, s.pool, "check that the API server answers: kubectl get --raw /readyz", "%w", err)
	}
	return fmt.Errorf("node %s: %w", c.Node.Name, err)
}

// Assert makes sure that blocks are still the node's, after a restart and from
// time to time. A block that is gone is made again under its name: etcd may have
// been restored to a state before it was claimed, or somebody has deleted it.
// It returns what the node has, also when there is no answer from the store: a
// block that nobody is known to have taken is ours. And it returns what is lost:
// another node has claimed it since, and the node must stop to lease its
// addresses at once; then the error is Limited, because pods use them already.
// A block that does not fit the pool any more is BadConfig, and kept.
func (c *Claimer) Assert(ctx context.Context, s Space, recorded []Block) (kept, lost []Block, err error) {
	var faults []error
	for _, b := range recorded {
		if err := s.Check(b); err != nil { // the pool was changed; the block is no less ours
			faults = append(faults, err)
		}
		got, err := c.assert(ctx, b)
		switch {
		case errors.Is(err, errHeld):
			lost = append(lost, b)
			faults = append(faults, cnierr.New(cnierr.Limited, "keep block", b.Name,
				fmt.Sprintf("remove the pods that use RailPool %s from the node: node %s leases the same addresses", s.pool, got.Spec.NodeName),
				"node %q has claimed it, because it was missing for a while", got.Spec.NodeName))
		case err != nil:
			kept = append(kept, b)
			faults = append(faults, c.explain(ctx, s, err))
		default:
			kept = append(kept, got)
		}
	}
	return kept, lost, errors.Join(faults...)
}

// assert holds a block that we have had, with one write when nothing happened.
func (c *Claimer) assert(ctx context.Context, b Block) (Block, error) {
	var got Block
	err := c.retry(ctx, func() (err error) { got, err = c.Store.Touch(ctx, b.Name, b.UID); return err })
	if !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrConflict) {
		return got, err
	}
	return c.hold(ctx, Block{Name: b.Name, Spec: b.Spec})
}
