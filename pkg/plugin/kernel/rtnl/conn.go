// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package rtnl speaks rtnetlink on a socket of one namespace: links, addresses, routes
// and rules as plain values, and changes to them that can be sent together.
//
// It returns the kernel's errno and message unchanged, and knows no operation of ours:
// package kernel, above it, decides what an error means and which objects are ours.
// Nothing else speaks rtnetlink. Read this file first; the socket itself is package
// nlsock, below.
package rtnl

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// Conn is a NETLINK_ROUTE socket. It acts in the namespace of the thread that
// opened it, whichever thread uses it. It is safe for concurrent use.
type Conn struct{ sock nlsock.Socket }

// New returns a connection over a socket, which it closes.
func New(sock nlsock.Socket) *Conn { return &Conn{sock} }

// Dial opens a socket in the namespace of the calling thread. The caller must
// Close it.
func Dial() (*Conn, error) {
	sock, err := nlsock.Dial(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &Conn{sock}, nil
}

// Close closes the socket.
func (c *Conn) Close() { c.sock.Close() }

// ErrInterrupted is returned for a dump that was interrupted in every attempt.
var ErrInterrupted = nlsock.ErrInterrupted

// ErrShort is returned for an answer with a row that ends in its fixed part. The kernel
// makes none; a recording may have one.
var ErrShort = errors.New("a netlink row is too short")

// Change is a request to change something. Use it only once.
type Change struct{ req *nl.NetlinkRequest }

// Do makes one change.
func (c *Conn) Do(ctx context.Context, change Change) error {
	return c.Batch(ctx, change)[0]
}

// Batch sends changes in one message to the socket, so that no signal can stop
// the process between them. It returns the result of each. The kernel goes on
// with the others after one that failed.
func (c *Conn) Batch(ctx context.Context, changes ...Change) []error {
	reqs := make([]*nl.NetlinkRequest, 0, len(changes))
	for i, change := range changes {
		if i == len(changes)-1 {
			change.req.Flags |= unix.NLM_F_ACK
		}
		reqs = append(reqs, change.req)
	}
	errs := make([]error, len(reqs))
	for i, r := range c.exchange(ctx, reqs) {
		errs[i] = r.Err
	}
	return errs
}

// Each makes changes that do not depend on each other, and returns the result
// of each. It sends one message to the socket for every maxRefusals changes.
func (c *Conn) Each(ctx context.Context, changes ...Change) []error {
	errs := make([]error, 0, len(changes))
	for part := range slices.Chunk(changes, maxRefusals) {
		errs = append(errs, c.Batch(ctx, part...)...)
	}
	return errs
}

// The numbers of answers that surely fit in the socket's receive buffer, of 208
// KiB by default (net.core.rmem_default). A link counts with 4 KiB and its
// head, a refusal with 1 KiB (netlink_attachskb). Answers that do not fit are
// ENOBUFS.
const (
	maxAnswers  = 32
	maxRefusals = 128
)

// exchange is nlsock.Conn.Exchange. If the exchange fails, every request fails.
func (c *Conn) exchange(ctx context.Context, reqs []*nl.NetlinkRequest) []nlsock.Reply {
	messages := make([]nlsock.Request, 0, len(reqs))
	for _, req := range reqs {
		messages = append(messages, message(req))
	}
	replies, err := c.sock.Exchange(ctx, messages...)
	if err != nil {
		replies = slices.Repeat([]nlsock.Reply{{Err: err}}, len(reqs))
	}
	for i, r := range replies {
		if r.Err == nil {
			replies[i].Err = short(reqs[i], r.Rows)
		}
	}
	return replies
}

// answer returns the one message of a reply.
func answer(r nlsock.Reply) ([]byte, error) {
	if r.Err == nil && len(r.Rows) == 0 {
		r.Err = unix.ENODATA
	}
	if r.Err != nil {
		return nil, r.Err
	}
	return r.Rows[0], nil
}

// get returns the one answer to a request.
func (c *Conn) get(ctx context.Context, req *nl.NetlinkRequest) ([]byte, error) {
	return answer(c.exchange(ctx, []*nl.NetlinkRequest{req})[0])
}

// dump returns all rows of a dump. It repeats a dump that a change interrupted.
func (c *Conn) dump(ctx context.Context, req *nl.NetlinkRequest) ([][]byte, error) {
	rows, err := c.sock.Dump(ctx, message(req))
	if err == nil {
		err = short(req, rows)
	}
	return rows, err
}

// short returns an error that names the first row that ends in its fixed part, so that the
// code that reads rows need not look.
func short(req *nl.NetlinkRequest, rows [][]byte) error {
	name, want := "", 0
	switch req.Type {
	case unix.RTM_GETLINK:
		name, want = "RTM_GETLINK", unix.SizeofIfInfomsg
	case unix.RTM_GETADDR:
		name, want = "RTM_GETADDR", unix.SizeofIfAddrmsg
	case unix.RTM_GETROUTE:
		name, want = "RTM_GETROUTE", unix.SizeofRtMsg
	case unix.RTM_GETRULE:
		name, want = "RTM_GETRULE", unix.SizeofRtMsg
	case unix.RTM_GETNEIGH:
		name, want = "RTM_GETNEIGH", unix.SizeofNdMsg
	case unix.RTM_GETNSID:
		name, want = "RTM_GETNSID", nl.NewRtGenMsg().Len()
	}
	for i, row := range rows {
		if len(row) < want {
			return fmt.Errorf("%w: row %d of the answer to %s has %d bytes, want at least %d", ErrShort, i+1, name, len(row), want)
		}
	}
	return nil
}

// message returns the request as nlsock takes it.
func message(req *nl.NetlinkRequest) nlsock.Request {
	return nlsock.Request{Type: req.Type, Flags: req.Flags, Body: req.Serialize()[unix.NLMSG_HDRLEN:]}
}
