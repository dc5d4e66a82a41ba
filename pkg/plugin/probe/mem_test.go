// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"bytes"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// memConn is a packet socket in memory: script gets each frame that is sent,
// with its number from 1, and may fill in. It keeps the fake time of synctest.
type memConn struct {
	net.PacketConn // nil: what is not implemented below must not be called

	script func(c *memConn, n int, frame []byte) error

	mu     sync.Mutex
	start  time.Time
	sent   []time.Duration
	frames [][]byte

	in      chan result
	queued  chan result // what the reader gets only after the window, as when it did not run before
	expired chan struct{}
	closed  bool
}

type result struct {
	frame []byte
	err   error
}

func newMemConn(script func(*memConn, int, []byte) error) *memConn {
	return &memConn{script: script, start: time.Now(), in: make(chan result, 100), queued: make(chan result, 100), expired: make(chan struct{})}
}

func (c *memConn) hear(frame []byte) { c.in <- result{frame: frame} }

// after hears a frame later.
func (c *memConn) after(d time.Duration, frame []byte) {
	time.AfterFunc(d, func() { c.hear(frame) })
}

func (c *memConn) ReadFrom(b []byte) (int, net.Addr, error) {
	select {
	case r := <-c.in:
		return copy(b, r.frame), nil, r.err
	case <-c.expired:
	}
	select {
	case r := <-c.queued:
		return copy(b, r.frame), nil, r.err
	default:
		return 0, nil, os.ErrDeadlineExceeded
	}
}

func (c *memConn) WriteTo(b []byte, _ net.Addr) (int, error) {
	c.mu.Lock()
	c.sent = append(c.sent, time.Since(c.start))
	c.frames = append(c.frames, bytes.Clone(b))
	n := len(c.sent)
	c.mu.Unlock()
	if c.script == nil {
		return len(b), nil
	}
	return len(b), c.script(c, n, b)
}

func (c *memConn) SetReadDeadline(t time.Time) error {
	if t.IsZero() {
		c.expired = make(chan struct{})
	} else {
		close(c.expired)
	}
	return nil
}

func (c *memConn) Close() error { c.closed = true; return nil }

// memProber returns a Prober that uses conns as its sockets, and its log.
func memProber(conns map[port]*memConn) (*Prober, *bytes.Buffer) {
	var log bytes.Buffer
	p := &Prober{
		Log:  slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Rand: strings.NewReader("abcdefabcdef"),
	}
	p.listen = func(w *wire, _ []*ask) error {
		for id, c := range conns {
			w.conns[id] = c
		}
		return nil
	}
	return p, &log
}

const ms = time.Millisecond

func target(link conf.LinkName) plan.Target {
	return plan.Target{Link: link, MAC: ourMAC, Addr: ours4, Gateway: gateway4}
}

func target6(link conf.LinkName) plan.Target {
	return plan.Target{Link: link, MAC: ourMAC, Addr: ours6, Gateway: gateway6}
}

func conflictOp(targets ...plan.Target) plan.Conflict {
	return plan.Conflict{Mode: conf.Require, Probes: 3, Interval: 4 * ms, Wait: 8 * ms, Targets: targets}
}

func gatewayOp(targets ...plan.Target) plan.Gateway {
	return plan.Gateway{Mode: conf.Require, Attempts: 3, Timeout: 100 * ms, Targets: targets}
}

func reply4() []byte {
	return arp{op: arpReply, senderMAC: otherMAC, sender: ours4, targetMAC: ourMAC, target: unset4}.frame(nil)
}

func gatewayReply4() []byte {
	return arp{op: arpReply, senderMAC: otherMAC, sender: gateway4, targetMAC: ourMAC, target: ours4}.frame(nil)
}

// onNth runs f on one frame only.
func onNth(nth int, f func(c *memConn)) func(*memConn, int, []byte) error {
	return func(c *memConn, n int, _ []byte) error {
		if n == nth {
			f(c)
		}
		return nil
	}
}

func failNth(nth int, err error) func(*memConn, int, []byte) error {
	return func(_ *memConn, n int, _ []byte) error {
		if n == nth {
			return err
		}
		return nil
	}
}
