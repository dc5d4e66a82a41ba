// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package grant answers ADDs that request sticky addresses, and releases sticky
// addresses that no pod uses.
//
// It grants only what the API server has confirmed for this node, and never releases what a
// pod may be about to use. It reads the leases and writes none. The agent runs one controller
// for each sticky pool. Read this file first, then answer.go for how a request is granted,
// settle.go for how addresses are released, and socket.go for how requests come in.
package grant

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/pace"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

const (
	// Time is how long an ADD may lease what it was granted.
	Time = 10 * time.Second
	// Patience is how long a pod waits for its addresses before it gets others. Its previous node
	// needs about two seconds to see that the pod is gone.
	Patience = 30 * time.Second
	// lookEvery is how often the controller looks for addresses that no pod uses.
	lookEvery = time.Second
	// affirmEvery is the time between two checks of the leases.
	affirmEvery = 5 * time.Minute
)

// Config is what a Controller works with. All fields are needed. The functions are called
// by one goroutine at a time.
type Config struct {
	Pool string
	// Terms returns the sticky slots of the pool, none if it is not sticky any more, and why
	// none may be taken now.
	Terms   func() (block.Slots, error)
	Claimer sticky.Claimer

	Leases *ipam.Book
	// Seen returns the leases of the last read, its age, and whether there was one.
	Seen func() (entries []ipam.Entry, since time.Duration, known bool)

	// Trouble notes the error of a thing; nil: the thing has no error.
	Trouble func(what string, err error)
	// Granted counts the pods that get their addresses, None those that get others, and Lost
	// the slots that another node has got.
	Granted, None, Lost func()

	pace.Clock
	Log *slog.Logger
}

// Controller grants the slots of one sticky pool.
//
// It may be killed between any two steps. Only what was granted in the last seconds, and is not
// leased yet, is in its memory alone. So a controller releases nothing until the grants of the
// controller before it have ended. After that it sees all leases.
type Controller struct {
	Config
	began time.Duration
	turn  chan struct{} // full: a call uses the claimer and the fields below

	requests map[nodefile.Key]*request
	// mine has the slots that this process has taken or affirmed, and not tried to
	// release since.
	mine   map[nodefile.Key]int
	grants map[int]grant // by slot
	quiet  time.Duration // no requests to the API server before this time

	settling, affirming pace.Pause
	missing             map[string]bool // leases of other nodes, by name
}

// grant is what an ADD may lease until a time.
type grant struct {
	key   nodefile.Key
	until time.Duration
}

// New returns a controller that has seen nothing yet. No other may have granted slots of
// the pool since then.
func New(c Config) *Controller {
	return &Controller{
		Config: c, began: c.Now(), turn: make(chan struct{}, 1), requests: map[nodefile.Key]*request{},
		mine: map[nodefile.Key]int{}, grants: map[int]grant{}, missing: map[string]bool{},
	}
}

// Run releases what no pod uses until the context ends, and returns its error. After
// that nothing is granted any more.
func (c *Controller) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if c.lock(ctx) == nil {
			c.look(ctx)
			c.unlock()
		}
		_ = c.Wait(ctx, lookEvery) // the context's error
	}
	c.turn <- struct{}{} // for ever
	return ctx.Err()
}

// lock waits for the others in turn.
func (c *Controller) lock(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Controller) unlock() { <-c.turn }

// hushed says whether the API server has asked for no requests now.
func (c *Controller) hushed() bool { return c.Now() < c.quiet }

// noteBusy notes how long the API server wants to be left alone, and returns the error.
func (c *Controller) noteBusy(err error) error {
	if busy := new(block.BusyError); errors.As(err, &busy) {
		c.quiet = max(c.quiet, c.Now()+busy.After)
	}
	return err
}
