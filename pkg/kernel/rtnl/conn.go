// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package rtnl speaks rtnetlink on a socket of one namespace: links, addresses,
// routes and rules as plain values, and changes to them that can be sent
// together.
//
// It returns the kernel's errno as it is, with the kernel's own words, and
// knows no operation of ours: what an error means, and what is ours, is for
// package kernel, above it. Nothing else talks rtnetlink. Read this file first;
// the socket itself is package nlsock, below.
package rtnl

import (
	"context"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/nlsock"
)

// Conn is a NETLINK_ROUTE socket. It acts in the namespace of the thread that
// opened it, whichever thread uses it. It is safe for concurrent use.
type Conn struct{ sock *nlsock.Conn }

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

// ErrInterrupted is returned for a dump that was interrupted every time.
var ErrInterrupted = nlsock.ErrInterrupted

// Change is a request to change something. One can be used once.
type Change struct{ req *nl.NetlinkRequest }

// Do makes one change.
func (c *Conn) Do(ctx context.Context, change Change) error {
	return c.Batch(ctx, change)[0]
}

// Batch sends changes in one message to the socket and returns the result of
// each; see nlsock.Conn.Exchange.
func (c *Conn) Batch(ctx context.Context, changes ...Change) []error {
	reqs := make([]nlsock.Request, 0, len(changes))
	for _, change := range changes {
		change.req.Flags |= unix.NLM_F_ACK
		reqs = append(reqs, message(change.req))
	}
	errs := make([]error, len(reqs))
	replies, err := c.sock.Exchange(ctx, reqs...)
	for i := range errs {
		errs[i] = err
		if err == nil {
			errs[i] = replies[i].Err
		}
	}
	return errs
}

// get returns the one answer to a request.
func (c *Conn) get(ctx context.Context, req *nl.NetlinkRequest) ([]byte, error) {
	replies, err := c.sock.Exchange(ctx, message(req))
	if err != nil {
		return nil, err
	}
	r := replies[0]
	if r.Err == nil && len(r.Rows) == 0 {
		r.Err = unix.ENODATA
	}
	if r.Err != nil {
		return nil, r.Err
	}
	return r.Rows[0], nil
}

// dump returns all rows of a dump that nothing changed in the middle of.
func (c *Conn) dump(ctx context.Context, req *nl.NetlinkRequest) ([][]byte, error) {
	return c.sock.Dump(ctx, message(req))
}

// message returns the request as nlsock takes it.
func message(req *nl.NetlinkRequest) nlsock.Request {
	return nlsock.Request{Type: req.Type, Flags: req.Flags, Body: req.Serialize()[unix.NLMSG_HDRLEN:]}
}
