// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package grant answers ADDs that request sticky addresses, and releases sticky
// addresses that no pod uses.
//
// It grants only what the API server has just confirmed for this node, and never
// releases what a pod may be about to use. It stands on sticky for the rules, on nodefile
// for the files it shares with the plugins, and on ipam; the agent runs one controller
// for each sticky pool. Read this file first, then answer.go for how a request is
// granted, and review.go and settle.go for how addresses are released.
package grant

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/roce-cni/roce-cni/pkg/agent/pace"
	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/nodefile"
	"github.com/roce-cni/roce-cni/pkg/block/sticky"
	"github.com/roce-cni/roce-cni/pkg/ipam"
)

const (
	// pollEvery is how often the requests are looked at: ADDs wait.
	pollEvery = 100 * time.Millisecond
	// reviewEvery is how often the answers are looked at.
	reviewEvery = time.Second
	// affirmEvery is after how long the node sees that a slot is not its any more, and
	// makes again what a restored etcd has forgotten.
	affirmEvery = 5 * time.Minute
)

// Config is what a Controller works with. All fields are needed. The functions are called
// by the goroutine that runs the controller.
type Config struct {
	Pool string
	// Terms returns the slots of the pool that pods keep, and why none may be taken;
	// the zero ones: the pool is not sticky any more.
	Terms   func() (block.Slots, error)
	Claimer sticky.Claimer

	Ranges nodefile.Store
	Leases *ipam.Book // in the folder Ranges.Dir
	// Seen returns the leases that were read last, how long ago that was, and whether
	// they were ever read.
	Seen func() (entries []ipam.Entry, since time.Duration, known bool)

	// Patience is how long a pod waits for the addresses that are kept for it before
	// it gets others.
	Patience time.Duration
	// Trouble takes note of what is wrong with a thing; nil: nothing is.
	Trouble func(what string, err error)
	// Granted, None and Lost count the pods that get what is kept for them, those that
	// get other addresses, and the slots that another node has got.
	Granted, None, Lost func()

	Clock pace.Clock
	// Wait returns after d, or with the context's error when that ends.
	Wait func(ctx context.Context, d time.Duration) error
	Log  *slog.Logger
}

// Controller works for a pool that is sticky, in a goroutine of its own, and nobody else
// writes the answers of the pool.
//
// It remembers nothing that matters: what it holds is what the API server says, what
// it has promised is what the files say, and what pods use is what the leases say.
// An answer is removed before the leases are looked at for the last time (settle.go),
// and an ADD looks for the answer again when it has leased: one of the two sees what
// the other has done. So it may be killed between any two steps.
type Controller struct {
	Config
	requests map[nodefile.Key]*request
	known    map[nodefile.Key]*known
	polled   time.Duration // when requests were looked for last
	quiet    time.Duration // until when the API server wants not to be asked

	looking, settling, affirming pace.Pause
	missing                      map[string]bool // leases that are another node's, by name
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

// hushed says whether the API server wants not to be asked now.
func (c *Controller) hushed() bool { return c.Clock.Now() < c.quiet }

// heed returns the error of a request, and notes for how long the API server wants not
// to be asked if it says that.
func (c *Controller) heed(err error) error {
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
