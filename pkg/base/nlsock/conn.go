// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package nlsock exchanges netlink messages with the kernel over a socket of one
// namespace and one protocol: several requests at once, complete dumps, and the
// kernel's own error messages.
//
// It knows no message of any protocol and returns the kernel's errno unchanged: rtnl
// and nldev, above it, know what messages mean. Everything is in this file.
package nlsock

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Conn is a netlink socket. It acts in the namespace of the thread that opened
// it (sock_net), whichever thread uses it. It is safe for concurrent use.
//
// It is not a netlink.Handle because that cannot send two requests in one message,
// and panics when a dump is refused with an extended acknowledgement (docs/adr/0022).
type Conn struct {
	mu  sync.Mutex
	fd  int
	seq uint32
	buf []byte
}

// Socket is what a Conn does for the packages that speak a protocol. A recording of the
// messages of a node does it too.
type Socket interface {
	Dump(ctx context.Context, req Request) ([][]byte, error)
	Exchange(ctx context.Context, reqs ...Request) ([]Reply, error)
	Close()
}

// maxDump is more than the kernel puts into one message. It stops a dump at 32 KiB
// (netlink_dump), or at the size of the largest link of the namespace (rtnl_calcit). A link
// can have up to 64 KiB of each list: alternative names, source MACs, virtual functions.
// What is not used of the buffer costs no memory.
const maxDump = 256 << 10

// Dial opens a socket of a protocol, such as unix.NETLINK_ROUTE, in the
// namespace of the calling thread. EPROTONOSUPPORT means that the kernel does
// not have the protocol. The caller must Close the Conn.
func Dial(protocol int) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, err
	}
	// Kernels before 4.20 lack some of these options. They then send errors
	// without text, and dumps without filter. Callers filter again for that
	// reason.
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK, unix.NETLINK_GET_STRICT_CHK} {
		_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, 1)
	}
	// The kernel answers before sendto returns, so this timeout should never
	// pass. If it does, we look at the context.
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1})
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &Conn{fd: fd, buf: make([]byte, maxDump)}, nil
}

// Close closes the socket.
func (c *Conn) Close() { _ = unix.Close(c.fd) }

// Reply is the kernel's answer to one request: the messages without their
// headers, and the errno. An acknowledgement alone is not a message.
type Reply struct {
	Rows        [][]byte
	Err         error
	interrupted bool
	size        int // of Rows and what is made of them
}

// maxSize is how many bytes the rows of a reply may need: 120,000 routes, or 35,000 links. A
// program of a pod can make more than a process with a memory limit can hold. perRow is about
// what is made of a row, beside its bytes.
const maxSize, perRow = 64 << 20, 512

// ErrTooMuch is returned for a dump that is too large to be kept.
var ErrTooMuch = fmt.Errorf("what was listed needs more than %d MiB of memory", maxSize>>20)

// ErrInterrupted is returned for a dump that was interrupted in every attempt.
var ErrInterrupted = errors.New("what was listed keeps changing")

// maxInterrupted is how often a dump is repeated. A dump is interrupted when
// what it lists changes between two of its messages.
const maxInterrupted = 50

// Dump returns all rows of a dump. It repeats a dump that a change interrupted.
func (c *Conn) Dump(ctx context.Context, req Request) ([][]byte, error) {
	req.Flags |= unix.NLM_F_DUMP
	return whole(func() ([]Reply, error) { return c.Exchange(ctx, req) })
}

// whole returns the rows of the first dump that is not interrupted.
func whole(dump func() ([]Reply, error)) ([][]byte, error) {
	for range maxInterrupted {
		replies, err := dump()
		if err != nil {
			return nil, err
		}
		if r := replies[0]; !r.interrupted && !errors.Is(r.Err, unix.EINTR) {
			return r.Rows, r.Err
		}
	}
	return nil, ErrInterrupted
}

// Exchange sends requests in one message to the socket, so that no signal can
// stop the process between them. It reads until the last request has its
// answer. The kernel serves all of them in their order. It goes on after one
// that failed (netlink_rcv_skb), and reports a lost answer (netlink_overrun).
//
// The last request must have NLM_F_ACK or an answer of its own. An earlier
// request with neither is silent when it succeeds, which saves a system call. A
// dump must be the only request, because the kernel serves it while it is read.
func (c *Conn) Exchange(ctx context.Context, reqs ...Request) ([]Reply, error) {
	if len(reqs) == 0 {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.seq + 1
	var out []byte
	for _, r := range reqs {
		c.seq++
		out = r.append(out, c.seq)
	}
	if err := c.send(ctx, out); err != nil {
		return nil, err
	}
	replies := make([]Reply, len(reqs))
	for last := len(reqs) - 1; ; {
		msgs, err := c.receive(ctx)
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			// A smaller number belongs to an earlier exchange that was given
			// up.
			i := m.Header.Seq - first
			if i < uint32(len(replies)) && replies[i].add(m) && int(i) == last {
				return replies, nil
			}
		}
	}
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
		case sender != nil && sender.Pid == 0: // the kernel is the sender
			return syscall.ParseNetlinkMessage(append([]byte(nil), c.buf[:n]...))
		}
	}
}

// add takes one message and returns whether it was the last one.
func (r *Reply) add(m syscall.NetlinkMessage) bool {
	r.interrupted = r.interrupted || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
	switch m.Header.Type {
	case unix.NLMSG_ERROR:
		r.Err = ackError(m)
		return true
	case unix.NLMSG_DONE:
		if r.Err = errnoOf(m.Data); r.Err == nil && r.size > maxSize {
			r.Err = ErrTooMuch
		}
		return true
	}
	if r.size += len(m.Data) + perRow; r.size > maxSize {
		r.Rows = nil // the rest is read: the kernel serves no other request before
	} else {
		r.Rows = append(r.Rows, m.Data)
	}
	return m.Header.Flags&unix.NLM_F_MULTI == 0
}

// errnoOf reads the negative errno that ends a dump or starts a struct
// nlmsgerr.
func errnoOf(b []byte) error {
	if e := -int32(Number(b)); e != 0 {
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
	for typ, v := range Attributes(m.Data[min(size, len(m.Data)):]) {
		if typ == unix.NLMSGERR_ATTR_MSG {
			return fmt.Errorf("%w: %s", err, Text(v))
		}
	}
	return err
}

// Request is one message to the kernel.
type Request struct {
	Type, Flags uint16 // NLM_F_REQUEST is added
	Body        []byte // what follows the header
}

// append appends the message.
func (r Request) append(b []byte, seq uint32) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.NLMSG_HDRLEN+len(r.Body)))
	b = binary.NativeEndian.AppendUint16(b, r.Type)
	b = binary.NativeEndian.AppendUint16(b, r.Flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0) // the sender: the kernel knows
	return pad(append(b, r.Body...))
}

// AppendNumber appends a 32-bit attribute.
func AppendNumber(b []byte, typ uint16, v uint32) []byte {
	b = binary.NativeEndian.AppendUint16(b, unix.SizeofRtAttr+4)
	b = binary.NativeEndian.AppendUint16(b, typ)
	return binary.NativeEndian.AppendUint32(b, v)
}

// AppendText appends a string attribute, with its final zero.
func AppendText(b []byte, typ uint16, v string) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(v)+1))
	b = binary.NativeEndian.AppendUint16(b, typ)
	return pad(append(append(b, v...), 0))
}

// pad appends zeros up to a multiple of four bytes: messages and attributes
// have this alignment.
func pad(b []byte) []byte { return append(b, make([]byte, -len(b)&3)...) }

// Attributes yields the attributes of a message, without the flags in their
// types.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	const header = unix.SizeofRtAttr
	const flags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= header {
			n := int(binary.NativeEndian.Uint16(b))
			if n < header || n > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&^flags, b[header:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}

// Number reads a 32-bit attribute. It returns 0 for a shorter one.
func Number(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// Text reads a string attribute, with or without its final zero.
func Text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}
