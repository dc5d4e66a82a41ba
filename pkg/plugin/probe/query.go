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
	"slices"
	"sync"
	"time"

	"github.com/mdlayher/ndp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// ask is one question to the network.
type ask struct {
	target plan.Target
	about  netip.Addr   // the owner of this address answers
	claims bool         // every frame that claims the address counts, not only an answer
	groups []netip.Addr // groups to join, so that the answer can be heard
	frame  []byte

	sent   bool
	lost   error  // why a frame did not leave
	answer *claim // what decided it; nil until heard
	other  *claim // of the address, and no answer; nil until heard
}

func (a *ask) port() port { return port{link: a.target.Link, v6: a.target.Addr.Is6()} }

// asksFor makes the ask of each target.
func asksFor(targets []plan.Target, with func(plan.Target) (*ask, error)) ([]*ask, error) {
	var asks []*ask
	for _, t := range targets {
		a, err := with(t)
		if err != nil {
			return nil, err
		}
		asks = append(asks, a)
	}
	return asks, nil
}

// request makes the frame that asks who has the address: an ARP request, or a neighbour
// solicitation. A sender that is unspecified has no address yet.
func (a *ask) request(sender netip.Addr, mark []byte) (err error) {
	mac := a.target.MAC
	if sender.Is4() {
		a.frame = arp{op: arpRequest, senderMAC: mac, sender: sender, target: a.about}.frame(mark)
		return nil
	}
	option := ndp.Option(&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: mac[:]})
	if sender.IsUnspecified() {
		option = &ndp.RawOption{Type: optNonce, Length: 1, Value: mark} // RFC 7527
	}
	solicitation := neighbour{
		src: sender, dst: solicitedNode(a.about),
		msg: &ndp.NeighborSolicitation{TargetAddress: a.about, Options: []ndp.Option{option}},
	}
	a.frame, err = solicitation.frame(mac)
	return err
}

// port is what one socket is for: a family on a link.
type port struct {
	link conf.LinkName
	v6   bool
}

// rounds is a schedule: send the question n times, interval apart, and wait
// after the last one.
type rounds struct {
	n              int
	interval, wait time.Duration
}

// heard is a message of a reader: a frame that claims an address, or the error
// that ended the reader.
type heard struct {
	port  port
	frame []byte
	claim claim
	err   error
}

// query asks all questions in one time window and stores the answers in the
// asks. It returns when all have an answer or the time is up.
func (p *Prober) query(ctx context.Context, at plan.Place, asks []*ask, r rounds) error {
	if len(asks) == 0 {
		return nil
	}
	if r.n < 1 {
		return cnierr.New(cnierr.Bug, "send probes", "", "", "want 1 question or more, got %d", r.n)
	}
	w, err := p.open(ctx, at, asks)
	if err != nil {
		return err
	}
	in := w.read()
	err = w.run(ctx, asks, r, in)
	// From here on, the readers take only what the kernel has already queued,
	// and then end. Without this, a node that gave the process no CPU time
	// during the window would find every address free.
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
// do not add up. Only the last wait counts from the last frame.
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

// listen notes answers until the time is up or all sockets are closed.
func listen(ctx context.Context, asks []*ask, until time.Time, in <-chan heard) error {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for slices.ContainsFunc(asks, func(a *ask) bool { return a.answer == nil }) {
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

// note stores an answer in the asks that it answers. A frame with our own MAC
// is ignored only if we sent it: it then has our mark. Such frames come back
// from a switch port in hairpin mode or from a network card. macvlan drops them
// in bridge and vepa mode, but not in private and passthru mode.
func note(asks []*ask, h heard) {
	if h.err != nil {
		return
	}
	if slices.ContainsFunc(asks, func(a *ask) bool { return a.port() == h.port && bytes.HasPrefix(h.frame, a.frame) }) {
		return
	}
	for _, a := range asks {
		switch {
		case a.answer != nil || a.port() != h.port || a.about != h.claim.addr:
		case a.claims || h.claim.answers(a.target.Addr):
			a.answer = &h.claim
		default:
			a.other = &h.claim
		}
	}
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
			a.lost = err // a full queue is a lost packet; one lost packet is no failure
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

// unsent reports the first ask of which no frame has left the machine: without
// a question, silence means nothing.
func unsent(asks []*ask) error {
	for _, a := range asks {
		if !a.sent && a.answer == nil {
			return linkError(a.target.Link, a.lost)
		}
	}
	return nil
}

// read starts a reader for each socket, and drops what was heard before. The
// channel is closed when all readers have ended. The caller must read it until
// then.
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

// endReading lets the readers end as soon as the queues are empty.
func (w *wire) endReading() {
	for _, conn := range w.conns {
		_ = conn.SetReadDeadline(time.Unix(0, 1)) // fails only on a closed socket; its reader has ended
	}
}

// frameMax is more than any neighbour message has. Longer frames lose their end
// and fail the length check.
const frameMax = 2048

// sweepMax is more frames than a receive buffer of the usual size holds. It
// stops us in a flood.
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

// sweep reads what the kernel has queued but the runtime's poller has not
// reported. A normal read after the deadline fails without looking.
func sweep(conn net.PacketConn, each func(frame []byte)) {
	_ = withFD(conn, func(fd int) error {
		for range sweepMax {
			b := make([]byte, frameMax)
			n, _, err := unix.Recvfrom(fd, b, unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return err
			}
			each(b[:n])
		}
		return nil
	})
}

func tell(port port, frame []byte, out chan<- heard) {
	if c, ok := claimOf(frame); ok {
		out <- heard{port: port, frame: frame, claim: c}
	}
}

// again says that a call was interrupted before anything happened.
func again(err error) bool { return errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) }

func canceled(ctx context.Context) error {
	return cnierr.New(cnierr.TryAgain, "send probes", "", "", "%w", ctx.Err())
}
