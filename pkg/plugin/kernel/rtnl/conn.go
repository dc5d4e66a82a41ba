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
	"net/netip"
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

// ErrTooMuch is returned for a dump that is too large to be kept.
var ErrTooMuch = nlsock.ErrTooMuch

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
	for _, m := range [...]struct {
		typ  uint16
		name string
		size int
	}{
		{unix.RTM_GETLINK, "RTM_GETLINK", unix.SizeofIfInfomsg},
		{unix.RTM_GETADDR, "RTM_GETADDR", unix.SizeofIfAddrmsg},
		{unix.RTM_GETROUTE, "RTM_GETROUTE", unix.SizeofRtMsg},
		{unix.RTM_GETRULE, "RTM_GETRULE", unix.SizeofRtMsg},
		{unix.RTM_GETNEIGH, "RTM_GETNEIGH", unix.SizeofNdMsg},
		{unix.RTM_GETNSID, "RTM_GETNSID", sizeofGenMsg},
	} {
		i := slices.IndexFunc(rows, func(row []byte) bool { return m.typ == req.Type && len(row) < m.size })
		if i >= 0 {
			return fmt.Errorf("%w: row %d of the answer to %s has %d bytes, want at least %d", ErrShort, i+1, m.name, len(rows[i]), m.size)
		}
	}
	return nil
}

// message returns the request as nlsock takes it.
func message(req *nl.NetlinkRequest) nlsock.Request {
	return nlsock.Request{Type: req.Type, Flags: req.Flags, Body: req.Serialize()[unix.NLMSG_HDRLEN:]}
}

// nl finds out the byte order when it first needs it, and keeps it in a
// variable without lock. This call makes it do so at the start of the program,
// so that goroutines do not race for it.
var _ = nl.NativeEndian()

// request returns a request with its fixed part and its attributes. It leaves out nil.
func request(typ, flags int, fixed nl.NetlinkRequestData, attributes ...*nl.RtAttr) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(typ, flags)
	req.AddData(fixed)
	for _, a := range attributes {
		if a != nil {
			req.AddData(a)
		}
	}
	return req
}

// number returns a 32-bit attribute.
func number[N int | int32 | uint32](typ int, v N) *nl.RtAttr {
	return nl.NewRtAttr(typ, nl.Uint32Attr(uint32(v)))
}

// optional returns a 32-bit attribute, nil for 0.
func optional[N int | uint32](typ int, v N) *nl.RtAttr {
	if v == 0 {
		return nil
	}
	return number(typ, v)
}

// text returns a string attribute with its final zero.
func text(typ int, v string) *nl.RtAttr { return nl.NewRtAttr(typ, nl.ZeroTerminated(v)) }

// ip returns an address attribute, nil for the zero Addr.
func ip(typ int, a netip.Addr) *nl.RtAttr {
	if !a.IsValid() {
		return nil
	}
	return nl.NewRtAttr(typ, a.AsSlice())
}

// nest returns an attribute with others in it, nil without any. It leaves out nil.
func nest(typ int, attributes ...*nl.RtAttr) (out *nl.RtAttr) {
	for _, a := range attributes {
		if a != nil {
			if out == nil {
				out = nl.NewRtAttr(typ, nil)
			}
			out.AddChild(a)
		}
	}
	return out
}

// creation makes the kernel refuse to create what exists already.
const creation = unix.NLM_F_CREATE | unix.NLM_F_EXCL

// addr reads an address attribute. It returns the zero value if b is not an
// address.
func addr(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// prefix returns the prefix of an address attribute. Without address it returns
// the prefix of all addresses of the family.
func prefix(family uint8, b []byte, bits uint8) netip.Prefix {
	a := addr(b)
	if !a.IsValid() {
		a = netip.IPv4Unspecified()
		if family == unix.AF_INET6 {
			a = netip.IPv6Unspecified()
		}
	}
	return netip.PrefixFrom(a, int(bits))
}

// Family returns the address family of a.
func Family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// NSID returns the number that the socket's namespace has for the namespace of
// a file descriptor, NoNSID if it has none.
func (c *Conn) NSID(ctx context.Context, fd int) (int32, error) {
	return nsid(c.exchange(ctx, []*nl.NetlinkRequest{nsidRequest(unix.RTM_GETNSID, fd)})[0])
}

func nsid(r nlsock.Reply) (int32, error) {
	b, err := answer(r)
	if err != nil {
		return 0, err
	}
	for typ, v := range nlsock.Attributes(b[sizeofGenMsg:]) {
		if typ == unix.NETNSA_NSID {
			return int32(nlsock.Number(v)), nil
		}
	}
	return NoNSID, nil
}

// GiveNSID returns what NSID returns. If there is no number, the kernel first
// chooses one. Both take one message to the socket.
func (c *Conn) GiveNSID(ctx context.Context, fd int) (int32, error) {
	give := nsidRequest(unix.RTM_NEWNSID, fd, number(unix.NETNSA_NSID, ^uint32(0)))
	replies := c.exchange(ctx, []*nl.NetlinkRequest{give, nsidRequest(unix.RTM_GETNSID, fd)})
	// EEXIST: it has a number, maybe another process just gave it.
	if err := replies[0].Err; err != nil && !errors.Is(err, unix.EEXIST) {
		return 0, err
	}
	return nsid(replies[1])
}

// sizeofGenMsg is the size of a struct rtgenmsg, padded.
const sizeofGenMsg = 4

func nsidRequest(typ, fd int, more ...*nl.RtAttr) *nl.NetlinkRequest {
	return request(typ, 0, nl.NewRtGenMsg(), append([]*nl.RtAttr{number(unix.NETNSA_FD, fd)}, more...)...)
}
