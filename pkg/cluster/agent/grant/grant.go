// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package grant answers ADDs that request sticky addresses, and releases sticky
// addresses that no pod uses.
//
// It grants only what the API server has just confirmed for this node, and never
// releases what a pod may be about to use. It uses sticky for the rules, nodefile for
// the files it shares with the plugins, and ipam. The agent runs one controller for
// each sticky pool. Read this file first, then answer.go for how a request is
// granted, and review.go and settle.go for how addresses are released.
package grant

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/agent/pace"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

const (
	// pollEvery is how often the requests are looked at: ADDs wait.
	pollEvery = 100 * time.Millisecond
	// reviewEvery is how often the answers are looked at.
	reviewEvery = time.Second
	// affirmEvery is the time between two checks of the leases. A check finds slots
	// that the node has lost, and makes leases again that a restored etcd has lost.
	affirmEvery = 5 * time.Minute
)

// Config is what a Controller works with. All fields are needed. The functions are called
// by the goroutine that runs the controller.
type Config struct {
	Pool string
	// Terms returns the sticky slots of the pool, and why none may be taken now. The
	// zero value means that the pool is not sticky any more.
	Terms   func() (block.Slots, error)
	Claimer sticky.Claimer

	Ranges nodefile.Store
	Leases *ipam.Book // in the folder Ranges.Dir
	// Seen returns the leases of the last read, the time since then, and whether
	// there was a read at all.
	Seen func() (entries []ipam.Entry, since time.Duration, known bool)

	// Patience is how long a pod waits for the addresses that are reserved for it.
	// After that it gets other addresses.
	Patience time.Duration
	// Trouble notes the error of a thing; nil: the thing has no error.
	Trouble func(what string, err error)
	// Granted counts the pods that get the addresses that are reserved for them. None
	// counts the pods that get other addresses. Lost counts the slots that another
	// node has got.
	Granted, None, Lost func()

	Clock pace.Clock
	// Wait returns after d, or with the context's error when that ends.
	Wait func(ctx context.Context, d time.Duration) error
	Log  *slog.Logger
}

// Controller manages the requests of one sticky pool in its own goroutine. Only the
// Controller writes the answers of the pool.
//
// It may be killed between any two steps, because it keeps no state that matters. The
// API server has what the node holds, the files have what is granted, and the leases
// have what pods use. The Controller removes an answer before it looks at the leases
// for the last time (settle.go). An ADD looks for the answer again after it has
// leased. So one of the two sees what the other has done.
type Controller struct {
	Config
	requests map[nodefile.Key]*request
	known    map[nodefile.Key]*known
	polled   time.Duration // when requests were looked for last
	quiet    time.Duration // no requests to the API server before this time

	looking, settling, affirming pace.Pause
	missing                      map[string]bool // leases of other nodes, by name
}

// New returns a controller that has seen nothing yet.
func New(c Config) *Controller {
	return &Controller{Config: c, requests: map[nodefile.Key]*request{}, known: map[nodefile.Key]*known{}, missing: map[string]bool{}}
}

// Run answers requests until the context ends, and returns its error.
func (c *Controller) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		c.work(ctx)
		_ = c.Wait(ctx, pollEvery) // the context's error
	}
	return ctx.Err()
}

// hushed says whether the API server has asked for no requests now.
func (c *Controller) hushed() bool { return c.Clock.Now() < c.quiet }

// noteBusy returns the error of a request. If the API server says how long to wait, heed
// notes it.
func (c *Controller) noteBusy(err error) error {
	if busy := new(block.BusyError); errors.As(err, &busy) {
		c.quiet = max(c.quiet, c.Clock.Now()+busy.After)
	}
	return err
}

// work does what is due.
func (c *Controller) work(ctx context.Context) {
	c.serve(ctx)
	if c.looking.Over(c.Clock.Now()) {
		c.looking.Until = c.Clock.Now() + reviewEvery
		c.review()
	}
	if c.settling.Over(c.Clock.Now()) && !c.hushed() && ctx.Err() == nil {
		c.settle(ctx)
	}
}
