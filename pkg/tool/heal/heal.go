// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package heal makes again what the attachments of a node lose, when they lose it.
//
// It decides when, and package repair what: it looks at an attachment after the kernel has
// told of a change in the pod or of one of its NICs, and at all of them every few minutes.
// It keeps no state on disk, so it may be killed at any time. It knows no cluster: what it
// did is in the file of the calls, where the agent and rocectl read it. Read this file for
// when something is done, attachment.go for what is known of one attachment, watch.go
// and listen.go for what is heard.
package heal

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/pace"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/repair"
)

// There are at most 30 repairs in a minute: atOnce, and another one after each pause. Those of
// one reset do not wait, because addresses are off meanwhile: the next repair waits for them.
const (
	atOnce = 10
	pause  = 3 * time.Second
)

const (
	// quiet is how long after a change an attachment is looked at: one command changes many
	// things. again is the least time between two looks at one attachment.
	quiet, again = 300 * time.Millisecond, 2 * time.Second
	// settled is how long after its ADD an attachment is looked at. What changed before it was
	// followed is found then.
	settled = 5 * time.Second
	// sweepEvery is how often all attachments are looked at. The messages of neighbours
	// are those of all ARP, and not listened to.
	sweepEvery = 5 * time.Minute
	// lostEvery is how often all attachments are looked at because messages were lost.
	lostEvery = 30 * time.Second
	// holds is how long an attachment is intact until its next damage counts as the first one.
	holds = 10 * time.Minute
	// patience limits the work on one attachment.
	patience = 30 * time.Second
)

// Node is what makes things again: repair.Attachments.
type Node interface {
	Lost(ctx context.Context, at conf.Attachment) (plan.Ops, error)
	Repair(ctx context.Context, at conf.Attachment) (plan.Ops, error)
	Remade(ctx context.Context) []repair.Remade
	Reset(ctx context.Context, ports []repair.Remade, repair func([]conf.Attachment) error) error
}

// Config is what a Healer works with. All fields are needed.
type Config struct {
	Node    Node
	Records record.Store
	Calls   calls.File
	// Number returns the number of a namespace in the messages of the kernel.
	Number func(ctx context.Context, path string, id netns.ID) (int32, error)
	// All says that Node makes everything again, and not what steers packets alone.
	All   bool
	Clock pace.Clock
	Log   *slog.Logger
}

// Healer heals the attachments of a node.
type Healer struct {
	Config
	limit *rate.Limiter
	wake  chan struct{}

	mu          sync.Mutex
	attachments map[conf.Attachment]*attachment
	mark        calls.Mark
	swept, due  time.Duration   // when all were looked at, and will be
	hidden      bool            // it was said that namespaces are not visible
	blamed      map[string]bool // the errors of NICs that were said
	unsaid      []complaint
}

// New returns a healer. It does no I/O.
func New(c Config) *Healer {
	return &Healer{
		Config: c, limit: rate.NewLimiter(rate.Every(pause), atOnce), wake: make(chan struct{}, 1),
		attachments: map[conf.Attachment]*attachment{}, blamed: map[string]bool{},
	}
}

// Run heals until the context ends. One attachment is worked on at a time.
func (h *Healer) Run(ctx context.Context) {
	for ctx.Err() == nil {
		now := h.Clock.Now()
		due, next := h.next()
		if now < due && next != nil && next.due <= now {
			h.heal(ctx, next)
			continue
		}
		h.say() // pods that a NIC harms are looked at one after another
		if now >= due {
			h.sweep(ctx)
			continue
		}
		wait := due - now
		if next != nil {
			wait = min(wait, next.due-now)
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-h.wake:
		case <-t.C:
		}
		t.Stop()
	}
}

// next returns when all attachments are looked at, and a copy of the one that is looked at next,
// nil if none is due ever.
func (h *Healer) next() (sweep time.Duration, first *attachment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.attachments {
		if a.due != never && (first == nil || a.due < first.due) {
			first = a
		}
	}
	return h.due, first.copy()
}

// get returns a copy of an attachment, nil if it is not followed.
func (h *Healer) get(at conf.Attachment) *attachment {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.attachments[at].copy()
}

func (h *Healer) sweep(ctx context.Context) {
	h.mu.Lock()
	h.swept = h.Clock.Now()
	h.due = h.swept + h.Clock.Spread(sweepEvery)
	h.mu.Unlock()
	keys, err := h.Records.List()
	if err != nil {
		h.Log.Warn("the attachments of the node cannot be listed", "error", err)
		return
	}
	h.mu.Lock()
	for at := range h.attachments {
		if !slices.Contains(keys, at) {
			delete(h.attachments, at)
		}
	}
	h.forgive()
	h.mu.Unlock()
	for _, at := range keys {
		h.follow(ctx, at, 0)
	}
}

// Called reads which calls ended, and follows their attachments.
func (h *Healer) Called(ctx context.Context) {
	h.mu.Lock()
	mark := h.mark
	h.mu.Unlock()
	ended, mark, err := h.Calls.After(mark)
	if err != nil {
		h.Log.Warn("the calls of the node cannot be read: new pods are found later", "error", err)
		return
	}
	h.mu.Lock()
	h.mark = mark
	h.mu.Unlock()
	for _, c := range ended {
		if !c.ByHealer() {
			h.follow(ctx, c.Attachment, settled)
		}
	}
}

// follow reads the record of an attachment, which is looked at after a time. An attachment
// without record, or with the record of a call that did not finish, is not followed.
func (h *Healer) follow(ctx context.Context, at conf.Attachment, after time.Duration) {
	rec, err := h.Records.Load(at)
	if err != nil || !rec.Committed {
		h.forget(at)
		return
	}
	if err := repair.Visible(rec.Netns); err != nil { // it would look as if the pod were gone
		h.blind(rec, err)
		return
	}
	now := of(rec)
	if now.nsid, err = h.Number(ctx, rec.Netns, rec.NetnsID); err != nil {
		now.nsid = own // gone: the look finds that
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if had := h.attachments[at]; had != nil {
		now.state = had.state
	}
	h.attachments[at] = &now
	h.want(&now, after)
}

// blind says once that this process does not see the namespaces of the node.
func (h *Healer) blind(rec record.Record, err error) {
	h.forget(rec.Attachment)
	if h.hidden {
		return
	}
	h.hidden = true
	err = cnierr.New(cnierr.IO, "heal the pod in", rec.Netns,
		"run rocectl heal on the node itself, or mount the folder of the namespaces with mountPropagation HostToContainer, as conf-examples/deploy/heal.yaml does", "cannot tell whether it exists: %w", err)
	h.note(calls.Call{Error: err.Error(), Code: cnierr.CodeOf(err)})
	h.Log.Error("pods cannot be healed", "error", err)
}

func (h *Healer) forget(at conf.Attachment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.attachments, at)
}

// want has an attachment looked at after a time, but not before its pause is over. The
// caller holds the lock.
func (h *Healer) want(a *attachment, after time.Duration) {
	at := max(h.Clock.Now()+after, a.pause.Until)
	if a.due == never || at < a.due {
		a.due = at
		h.awake()
	}
}

// awake has Run see what is due.
func (h *Healer) awake() {
	select {
	case h.wake <- struct{}{}:
	default: // it is awake
	}
}

// Note notes a change that the kernel told.
func (h *Healer) Note(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case e.RDMA && !h.All:
		return
	case e.Unknown: // messages come too fast
		h.due = min(h.due, max(h.Clock.Now()+quiet, h.swept+lostEvery))
		h.awake()
		return
	}
	for _, a := range h.attachments {
		if !a.concerns(e) {
			continue
		}
		// Its NIC may be back. Only then: a pod can flap the links of the host too.
		if e.Link != "" && e.NSID == own && len(a.blames) > 0 {
			a.pause.Until = min(a.pause.Until, a.looked+again)
		}
		h.want(a, quiet)
	}
}

func (h *Healer) heal(ctx context.Context, a *attachment) {
	h.set(a, func(a *attachment) { a.due, a.looked = never, h.Clock.Now() }) // a change from now on is another reason to look
	// A call of the runtime may work on the container for long. It is not waited for.
	release, free, err := h.Records.TryLock(ctx, a.at.ContainerID)
	if err != nil || !free {
		h.set(a, func(a *attachment) { a.due = h.Clock.Now() + again })
		return
	}
	release()
	looking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	lost, err := h.Node.Lost(looking, a.at)
	var moved *rdma.MovedError
	switch {
	case errors.Is(err, record.ErrNotExist), errors.Is(err, kernel.ErrNetnsGone): // DEL, or GC, does the rest
		h.forget(a.at)
	case looking.Err() != nil: // its pod may have made it slow: others come first
		h.done(a, nil, nil)
	case cnierr.CodeOf(err) == cnierr.TryAgain:
		h.set(a, func(a *attachment) { a.due = h.Clock.Now() + again })
	case len(lost) == 0 && err == nil:
		h.set(a, func(a *attachment) { a.intact(h.Clock.Now() + again) })
	case len(lost) == 0 && !(h.All && errors.As(err, &moved)):
		h.done(a, nil, err)
	case !h.mayRepair(a): // it waits for its turn
	case len(lost) == 0:
		h.reset(ctx, a, err)
	default:
		h.repair(ctx, a)
	}
}

func (h *Healer) repair(ctx context.Context, a *attachment) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	did, err := h.Node.Repair(ctx, a.at)
	h.tell(a, did, time.Since(began))
	h.done(a, did, err)
}

// mayRepair takes one of the repairs of this minute. If there is none, the attachment waits.
func (h *Healer) mayRepair(a *attachment) bool {
	r := h.limit.Reserve()
	if r.Delay() == 0 {
		return true
	}
	wait := r.Delay()
	r.Cancel()
	h.set(a, func(a *attachment) {
		a.pause.Until = h.Clock.Now() + wait
		a.due = a.pause.Until
	})
	return false
}

// reset sets the addresses of all pods of RDMA ports again that were made again, each in its
// index. The first repair was taken from those of this minute.
func (h *Healer) reset(ctx context.Context, a *attachment, why error) {
	repaired := false
	err := h.Node.Reset(ctx, h.Node.Remade(ctx), func(pods []conf.Attachment) error {
		for i, at := range pods {
			if i > 0 {
				h.limit.Reserve()
			}
			if pod := h.get(at); pod != nil {
				h.repair(ctx, pod)
				repaired = repaired || at == a.at
			}
		}
		return nil
	})
	switch {
	case !repaired:
		h.done(a, nil, cmp.Or(err, why))
	case err != nil:
		h.Log.Warn("GID indexes could not be set again on all RDMA ports, or not for all pods", "error", err)
	}
}
