// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/plan"
)

// ask is one question to the wire.
type ask struct {
	target plan.Target
	about  netip.Addr   // whoever has this address answers
	rivals bool         // and so does whoever wants it
	groups []netip.Addr // that must be joined to hear the answer
	frame  []byte

	sent   bool
	lost   error  // why a frame did not leave
	answer *claim // nil until heard
}

func (a *ask) port() port { return port{link: a.target.Link, v6: a.target.Addr.Is6()} }

// port is what one socket is for: a family on a link.
type port struct {
	link conf.LinkName
	v6   bool
}

// rounds is a schedule: n times the question, interval apart, and wait after
// the last.
type rounds struct {
	n              int
	interval, wait time.Duration
}

// heard is what a reader has to tell: a frame that claims an address, or the
// error that ended it.
type heard struct {
	port  port
	frame []byte
	claim claim
	err   error
}

// query puts all asks to the wire in one window and notes the answers in them.
// It returns when all are answered or the time is up.
func (p *Prober) query(ctx context.Context, asks []*ask, r rounds) error {
	if len(asks) == 0 {
		return nil
	}
	if r.n < 1 {
		return cnierr.New(cnierr.Bug, "ask the wire", "", "", "want 1 question or more, got %d", r.n)
	}
	w, err := p.open(ctx, asks)
	if err != nil {
		return err
	}
	in := w.read()
	err = w.run(ctx, asks, r, in)
	// From here on the readers take what the kernel has queued already, and
	// end. Without that, a node that starved this process for the length of the
	// window would find every address free.
	w.endReading()
	for h := range in {
		note(asks, h)
	}
	if err != nil {
		return err
	}
	return unsent(asks)
}

// run sends by the schedule. Times count from the first frame, so that delays
// do not add up, but the last wait counts from the last frame.
func (w *wire) run(ctx context.Context, asks []*ask, r rounds, in <-chan heard) error {
	until := time.Now()
	for i := range r.n {
		if err := w.send(ctx, asks); err != nil {
			return err
		}
		until = until.Add(r.interval)
		if i == r.n-1 {
			until = time.Now().Add(r.wait)
		}
		if err := listen(ctx, asks, until, in); err != nil {
			return err
		}
	}
	return nil
}

// listen notes answers until the time is up or nothing is open any more.
func listen(ctx context.Context, asks []*ask, until time.Time, in <-chan heard) error {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for anyOpen(asks) {
		select {
		case <-ctx.Done():
			return canceled(ctx)
		case <-timer.C:
			return nil
		case h := <-in:
			if h.err != nil {
				return linkError(h.port.link, h.err)
			}
			note(asks, h)
		}
	}
	return nil
}

// note gives an answer to the asks that it answers. Of frames with our own MAC
// only those that we sent are ignored, and the mark in them tells: a switch
// port in hairpin mode or a network card can bring them back (macvlan drops
// these in bridge and vepa mode, but not in private and passthru mode).
func note(asks []*ask, h heard) {
	if h.err != nil {
		return
	}
	for _, a := range asks {
		if a.port() == h.port && bytes.HasPrefix(h.frame, a.frame) {
			return
		}
	}
	for _, a := range asks {
		if a.answer == nil && a.port() == h.port && a.about == h.claim.addr && (a.rivals || !h.claim.wanted) {
			a.answer = &h.claim
		}
	}
}

func anyOpen(asks []*ask) bool {
	for _, a := range asks {
		if a.answer == nil {
			return true
		}
	}
	return false
}

// send sends the asks that have no answer yet.
func (w *wire) send(ctx context.Context, asks []*ask) error {
	for _, a := range asks {
		if a.answer != nil {
			continue
		}
		err := w.sendOne(ctx, a)
		switch {
		case err == nil:
			a.sent = true
		case errors.Is(err, unix.ENOBUFS):
			a.lost = err // a full queue is a lost packet, and one of these fails nothing
		case ctx.Err() != nil:
			return canceled(ctx)
		default:
			return linkError(a.target.Link, err)
		}
	}
	return nil
}

func (w *wire) sendOne(ctx context.Context, a *ask) error {
	for {
		err := w.write(a)
		if !again(err) || ctx.Err() != nil {
			return err
		}
	}
}

// unsent reports the first ask of which no frame has left the machine: its
// silence means nothing.
func unsent(asks []*ask) error {
	for _, a := range asks {
		if !a.sent && a.answer == nil {
			return linkError(a.target.Link, a.lost)
		}
	}
	return nil
}

// read starts a reader for each socket, and forgets what was heard before. The
// channel is closed when all have ended, and must be read until then.
func (w *wire) read() <-chan heard {
	out := make(chan heard)
	var readers sync.WaitGroup
	for port, conn := range w.conns {
		_ = conn.SetReadDeadline(time.Time{}) // as in endReading
		sweep(conn, func([]byte) {})
		readers.Go(func() { readPort(port, conn, out) })
	}
	go func() {
		readers.Wait()
		close(out)
	}()
	return out
}

// endReading makes the readers end as soon as nothing is queued.
func (w *wire) endReading() {
	for _, conn := range w.conns {
		_ = conn.SetReadDeadline(time.Unix(0, 1)) // fails only on a closed socket, whose reader has ended
	}
}

// frameMax is more than any neighbour message has; of longer frames the end is
// lost, and they fail the length check.
const frameMax = 2048

// sweepMax is more frames than a receive buffer of the usual size holds; a
// flood must not keep us.
const sweepMax = 1024

func readPort(port port, conn net.PacketConn, out chan<- heard) {
	for {
		b := make([]byte, frameMax)
		n, _, err := conn.ReadFrom(b)
		switch {
		case err == nil:
			tell(port, b[:n], out)
		case errors.Is(err, os.ErrDeadlineExceeded):
			sweep(conn, func(frame []byte) { tell(port, frame, out) })
			return
		case again(err):
		default:
			out <- heard{port: port, err: err}
			return
		}
	}
}

// sweep reads what the kernel has queued but the runtime's poller has not told
// us: a read after the deadline fails without looking.
func sweep(conn net.PacketConn, each func(frame []byte)) {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Control(func(fd uintptr) {
		for range sweepMax {
			b := make([]byte, frameMax)
			n, _, err := unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return
			}
			each(b[:n])
		}
	})
}

func tell(port port, frame []byte, out chan<- heard) {
	if c, ok := claimOf(frame); ok {
		out <- heard{port: port, frame: frame, claim: c}
	}
}

// again says that a call was interrupted and nothing has happened.
func again(err error) bool { return errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) }

func canceled(ctx context.Context) error {
	return cnierr.New(cnierr.TryAgain, "ask the wire", "", "", "%w", ctx.Err())
}
