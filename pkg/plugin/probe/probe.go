// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package probe checks on the network that an address is unused and that the gateway
// answers, and announces our addresses.
//
// It reads and writes Ethernet frames and changes nothing: no address, no neighbour
// entry, no route. It never acts in the ambient namespace. It stands beside kernel as
// an executor of operations: attach passes it plan.Conflict, plan.Gateway and
// plan.Announce. Read conflict.go first for what counts as a conflict, then query.go
// for the window in which all addresses are probed at once. wire.go has the sockets
// and ARP, neighbour.go the packets of IPv6.
package probe

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// Prober executes the operations of one attachment that need the network, one
// at a time. Its exported fields must be set, and its user must Close it.
type Prober struct {
	// Enter runs fn in the pod's network namespace, on a locked thread. Sockets
	// that fn opens are used after Enter has returned.
	Enter func(fn func() error) error
	// EnterHost does the same in the host's. It is only for operations that act there.
	EnterHost func(fn func() error) error
	// Log gets the errors that a severity of conf.Warn turns into warnings.
	Log *slog.Logger
	// Rand makes the mark in our frames. The mark distinguishes a frame of ours
	// that comes back from a frame of another machine with our MAC.
	Rand io.Reader

	mu sync.Mutex
	// wires has the sockets of all operations, by the place where they are open. They
	// stay open until an operation fails or is undone, because closing one is the most
	// expensive thing that we do; see leave. nil: none is open.
	wires [2]*wire
	// listen replaces the kernel's packet sockets in tests; nil: use the
	// sockets.
	listen func(*wire, []*ask) error
}

// Do executes a plan.Conflict, plan.Gateway or plan.Announce. It returns when
// it has the answers or the time is up. No goroutine of it is left then.
//
// The codes of its errors: cnierr.AddressTaken with a *TakenError inside,
// cnierr.GatewaySilent, cnierr.BadParent for a link without carrier, cnierr.IO
// for a link that is down or gone, cnierr.TryAgain with ctx's error inside.
// With a severity of conf.Warn, all of these but the last are logged instead.
// Any other operation is cnierr.Bug.
func (p *Prober) Do(ctx context.Context, op plan.Op) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := op.Place
	switch op := op.Kind.(type) {
	case plan.Conflict:
		return p.settle(ctx, op.Mode, func() error { return p.conflict(ctx, at, op) })
	case plan.Gateway:
		return p.settle(ctx, op.Mode, func() error { return p.gateway(ctx, at, op) })
	case plan.Announce:
		return p.settle(ctx, conf.Require, func() error { return p.announce(ctx, at, op) })
	}
	return foreign(op)
}

// Close closes the sockets. You can call it at any time: the next operation
// opens them again.
func (p *Prober) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.close()
}

func (p *Prober) close() {
	for at, w := range p.wires {
		if w != nil {
			w.close()
			p.wires[at] = nil
		}
	}
}

// Undo closes the sockets, because the interface is removed next, and another attempt of
// ADD makes one with the same name. Asking leaves nothing else behind.
func (p *Prober) Undo(_ context.Context, op plan.Op) error {
	p.Close()
	return known(op)
}

// Check finds nothing: the questions of ADD cannot be asked again while the pod
// uses its address.
func (p *Prober) Check(_ context.Context, op plan.Op) error { return known(op) }

func known(op plan.Op) error {
	if op.By() != plan.ByWire {
		return foreign(op)
	}
	return nil
}

func foreign(op plan.Op) error {
	return cnierr.New(cnierr.Bug, "probe", "", "", "operation %T is not one of the wire", op.Kind)
}

// settle runs a check and treats its outcome as the severity says. After a
// failure it closes the sockets, because the next operation may find another
// interface under the name.
func (p *Prober) settle(ctx context.Context, mode conf.Severity, check func() error) error {
	if mode == conf.Off {
		return nil
	}
	err := check()
	if err != nil {
		p.close()
	}
	if err == nil || mode != conf.Warn || ctx.Err() != nil || cnierr.CodeOf(err) == cnierr.Bug {
		return err
	}
	p.Log.WarnContext(ctx, "probe failed", "error", err, "code", cnierr.CodeOf(err))
	return nil
}

// open returns the sockets that the asks need. It opens missing ones in the namespace
// of the place.
func (p *Prober) open(ctx context.Context, at plan.Place, asks []*ask) (*wire, error) {
	if ctx.Err() != nil {
		return nil, canceled(ctx)
	}
	if p.wires[at] == nil {
		p.wires[at] = newWire(p.Log)
	}
	w, enter, err := p.wires[at], p.Enter, error(nil)
	if at == plan.Host {
		enter = p.EnterHost
	}
	switch {
	case p.listen != nil:
		err = p.listen(w, asks)
	case !w.serves(asks):
		err = enter(func() error { return w.open(asks) })
	}
	if err == nil {
		err = w.awaitCarrier(ctx)
	}
	if ours := (*cnierr.Error)(nil); err != nil && !errors.As(err, &ours) {
		err = cnierr.New(cnierr.IO, "open packet sockets", "", "", "%w", err)
	}
	return w, err
}

// mark returns bytes that no other machine puts into its frames. Six are what
// a nonce option holds (RFC 3971 section 5.3.2).
func (p *Prober) mark() ([]byte, error) {
	b := make([]byte, 6)
	if _, err := io.ReadFull(p.Rand, b); err != nil {
		return nil, cnierr.New(cnierr.IO, "read random bytes", "", "", "%w", err)
	}
	return b, nil
}
