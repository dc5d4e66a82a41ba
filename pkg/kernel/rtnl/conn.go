// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package rtnl speaks rtnetlink on a socket of one namespace: links, addresses,
// routes and rules as plain values, and changes to them that can be sent
// together.
//
// It returns the kernel's errno as it is, with the kernel's own words, and
// knows no operation of ours: what an error means, and what is ours, is for
// package kernel, above it. Nothing else talks netlink. Read this file first.
package rtnl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Conn is a NETLINK_ROUTE socket. It acts in the namespace of the thread that
// opened it (sock_net), whichever thread uses it. It is safe for concurrent
// use.
//
// It is not a netlink.Handle because that can neither send two messages at
// once, nor filter dumps in the kernel, nor tell what the kernel's extended
// acknowledgement says.
type Conn struct {
	mu  sync.Mutex
	fd  int
	seq uint32
	buf []byte
}

// maxDump is more than the kernel puts in one message of a dump: it looks at
// the size of the reader's buffer and stops at 32 KiB (netlink_dump).
const maxDump = 64 << 10

// Dial opens a socket in the namespace of the calling thread. The caller must
// Close it.
func Dial() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	// Kernels before 4.20 lack some of these: they send errors without text,
	// and dumps without filter, which is why callers filter again.
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK, unix.NETLINK_GET_STRICT_CHK} {
		_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, 1)
	}
	// rtnetlink answers before sendto returns, so this timeout never passes;
	// it is there to look at the context if it does.
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1})
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &Conn{fd: fd, buf: make([]byte, maxDump)}, nil
}

// Close closes the socket.
func (c *Conn) Close() { _ = unix.Close(c.fd) }

// Change is a request to change something. One can be used once.
type Change struct{ req *nl.NetlinkRequest }

// Do makes one change.
func (c *Conn) Do(ctx context.Context, change Change) error {
	return c.Batch(ctx, change)[0]
}

// Batch sends changes in one message to the socket, so that no signal can stop
// the process between them, and returns the result of each. The kernel makes
// all of them, also after one that failed (netlink_rcv_skb).
func (c *Conn) Batch(ctx context.Context, changes ...Change) []error {
	reqs := make([]*nl.NetlinkRequest, 0, len(changes))
	for _, change := range changes {
		change.req.Flags |= unix.NLM_F_ACK
		reqs = append(reqs, change.req)
	}
	errs := make([]error, len(reqs))
	replies, err := c.exchange(ctx, reqs...)
	for i := range errs {
		errs[i] = err
		if err == nil {
			errs[i] = replies[i].err
		}
	}
	return errs
}

// get returns the one answer to a request.
func (c *Conn) get(ctx context.Context, req *nl.NetlinkRequest) ([]byte, error) {
	replies, err := c.exchange(ctx, req)
	if err != nil {
		return nil, err
	}
	r := replies[0]
	if r.err == nil && len(r.rows) == 0 {
		r.err = unix.ENODATA
	}
	if r.err != nil {
		return nil, r.err
	}
	return r.rows[0], nil
}

// ErrInterrupted is returned for a dump that was interrupted every time.
var ErrInterrupted = errors.New("what was listed keeps changing")

// maxInterrupted is how often a dump is begun again. A dump is interrupted
// when what it lists changes between two of its messages.
const maxInterrupted = 50

// dump returns all rows of a dump that nothing changed in the middle of.
func (c *Conn) dump(ctx context.Context, req *nl.NetlinkRequest) ([][]byte, error) {
	req.Flags |= unix.NLM_F_DUMP
	for range maxInterrupted {
		replies, err := c.exchange(ctx, req)
		if err != nil {
			return nil, err
		}
		if r := replies[0]; !r.interrupted && !errors.Is(r.err, unix.EINTR) {
			return r.rows, r.err
		}
	}
	return nil, ErrInterrupted
}

// reply is what the kernel said to one request.
type reply struct {
	rows        [][]byte
	err         error
	interrupted bool
}

// exchange sends requests at once and reads until each has its answer.
func (c *Conn) exchange(ctx context.Context, reqs ...*nl.NetlinkRequest) ([]reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.seq + 1
	var out []byte
	for _, r := range reqs {
		c.seq++
		r.Seq = c.seq
		out = append(out, r.Serialize()...)
	}
	if err := c.send(ctx, out); err != nil {
		return nil, err
	}
	replies := make([]reply, len(reqs))
	for waiting := len(reqs); waiting > 0; {
		msgs, err := c.receive(ctx)
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			// A smaller number is of an earlier exchange that was given up.
			i := m.Header.Seq - first
			if i < uint32(len(replies)) && replies[i].add(m) {
				waiting--
			}
		}
	}
	return replies, nil
}

func (c *Conn) send(ctx context.Context, b []byte) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := unix.Sendto(c.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if err != unix.EINTR && err != unix.EAGAIN {
			return err
		}
	}
}

func (c *Conn) receive(ctx context.Context) ([]syscall.NetlinkMessage, error) {
	for {
		n, from, err := unix.Recvfrom(c.fd, c.buf, unix.MSG_TRUNC)
		sender, _ := from.(*unix.SockaddrNetlink)
		switch {
		case err == unix.EINTR || err == unix.EAGAIN:
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
		case err != nil:
			return nil, err
		case n > len(c.buf):
			return nil, fmt.Errorf("a netlink message of %d bytes, want at most %d", n, len(c.buf))
		case sender != nil && sender.Pid == 0: // the kernel, nobody else
			return syscall.ParseNetlinkMessage(append([]byte(nil), c.buf[:n]...))
		}
	}
}

// add takes one message and returns whether it was the last one.
func (r *reply) add(m syscall.NetlinkMessage) bool {
	r.interrupted = r.interrupted || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
	switch m.Header.Type {
	case unix.NLMSG_ERROR:
		r.err = ackError(m)
		return true
	case unix.NLMSG_DONE:
		r.err = errnoOf(m.Data)
		return true
	}
	r.rows = append(r.rows, m.Data)
	return m.Header.Flags&unix.NLM_F_MULTI == 0
}

// errnoOf reads the negative errno that ends a dump or starts a struct
// nlmsgerr.
func errnoOf(b []byte) error {
	if len(b) < 4 {
		return nil
	}
	if e := -int32(number(b)); e != 0 {
		return unix.Errno(e)
	}
	return nil
}

// ackError returns the errno of a struct nlmsgerr with the text of its
// extended acknowledgement, nil for success.
func ackError(m syscall.NetlinkMessage) error {
	err := errnoOf(m.Data)
	if err == nil || m.Header.Flags&unix.NLM_F_ACK_TLVS == 0 || m.Header.Flags&unix.NLM_F_CAPPED == 0 {
		return err
	}
	const size = 4 + unix.NLMSG_HDRLEN // errno and the header of the request
	for typ, v := range attributes(m.Data[min(size, len(m.Data)):]) {
		if typ == unix.NLMSGERR_ATTR_MSG {
			return fmt.Errorf("%w: %s", err, text(v))
		}
	}
	return err
}
