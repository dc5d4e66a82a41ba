// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package recording

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/tool/redact"
)

// Bytes are written as hexadecimal digits.
type Bytes []byte

// MarshalText implements encoding.TextMarshaler.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(b)), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *Bytes) UnmarshalText(text []byte) (err error) {
	*b, err = hex.DecodeString(string(text))
	return err
}

// Message is a request to the kernel and its answer, without the headers of netlink.
type Message struct {
	Protocol int     `json:"protocol"` // NETLINK_ROUTE or NETLINK_RDMA
	Type     uint16  `json:"type"`
	Body     Bytes   `json:"body"`
	Rows     []Bytes `json:"rows,omitempty"`
	Errno    int     `json:"errno,omitempty"`
}

// Tap returns a socket that adds to the recording what passes through another one.
func (r *Recording) Tap(protocol int, sock nlsock.Socket) nlsock.Socket {
	return &tap{sock, r, protocol}
}

type tap struct {
	nlsock.Socket
	to       *Recording
	protocol int
}

// Dump implements nlsock.Socket.
func (t *tap) Dump(ctx context.Context, req nlsock.Request) ([][]byte, error) {
	rows, err := t.Socket.Dump(ctx, req)
	t.add(req, nlsock.Reply{Rows: rows, Err: err})
	return rows, err
}

// Exchange implements nlsock.Socket.
func (t *tap) Exchange(ctx context.Context, reqs ...nlsock.Request) ([]nlsock.Reply, error) {
	replies, err := t.Socket.Exchange(ctx, reqs...)
	for i := range replies {
		t.add(reqs[i], replies[i])
	}
	return replies, err
}

func (t *tap) add(req nlsock.Request, reply nlsock.Reply) {
	m := Message{Protocol: t.protocol, Type: req.Type, Body: req.Body}
	for _, row := range reply.Rows {
		m.Rows = append(m.Rows, row)
	}
	var errno unix.Errno
	if errors.As(reply.Err, &errno) {
		m.Errno = int(errno)
	}
	known := func(o Message) bool { return o.asks(t.protocol, req) }
	if !slices.ContainsFunc(t.to.Netlink, known) {
		t.to.Netlink = append(t.to.Netlink, m)
	}
}

// asks says whether a message is this request.
func (m Message) asks(protocol int, req nlsock.Request) bool {
	return m.Protocol == protocol && m.Type == req.Type && string(m.Body) == string(req.Body)
}

// Play returns a socket that gives the recorded answers. Its error for a request that
// was not recorded is ErrUnknown.
func (r *Recording) Play(protocol int) nlsock.Socket { return player{r, protocol} }

// ErrUnknown says that a recording lacks the answer to a request.
var ErrUnknown = errors.New("the recording has no answer to this request")

type player struct {
	from     *Recording
	protocol int
}

// Close implements nlsock.Socket.
func (player) Close() {}

// Dump implements nlsock.Socket.
func (p player) Dump(ctx context.Context, req nlsock.Request) ([][]byte, error) {
	replies, err := p.Exchange(ctx, req)
	if err != nil {
		return nil, err
	}
	return replies[0].Rows, replies[0].Err
}

// Exchange implements nlsock.Socket.
func (p player) Exchange(_ context.Context, reqs ...nlsock.Request) ([]nlsock.Reply, error) {
	var out []nlsock.Reply
	for _, req := range reqs {
		i := slices.IndexFunc(p.from.Netlink, func(m Message) bool { return m.asks(p.protocol, req) })
		if i < 0 {
			return nil, fmt.Errorf("%w: protocol %d, type %d, %x", ErrUnknown, p.protocol, req.Type, req.Body)
		}
		m := p.from.Netlink[i]
		var reply nlsock.Reply
		for _, row := range m.Rows {
			reply.Rows = append(reply.Rows, row)
		}
		if m.Errno != 0 {
			reply.Err = unix.Errno(m.Errno)
		}
		out = append(out, reply)
	}
	return out, nil
}

// change returns what replaces the value of an attribute, and whether the attribute
// stays at all.
type change func(r *redact.Redactor, value []byte) (new []byte, stays bool)

// redact replaces what identifies the user, and drops each attribute that the lists
// below do not name and that is longer than a number.
func (m Message) redact(r *redact.Redactor) Message {
	header, known := layout(m.Protocol, m.Type)
	out := m
	out.Body = rewrite(r, m.Body, header, known)
	out.Rows = nil
	for _, row := range m.Rows {
		out.Rows = append(out.Rows, rewrite(r, row, header, known))
	}
	return out
}

// layout returns how long the fixed part of a message is, and what is done with its
// attributes.
func layout(protocol int, typ uint16) (int, map[uint16]change) {
	switch {
	case protocol == unix.NETLINK_RDMA:
		return 0, map[uint16]change{2: text, 5: text, 6: guid, 7: guid, 51: text, 67: text} // RDMA_NLDEV_ATTR_*
	case typ == unix.RTM_GETADDR:
		return unix.SizeofIfAddrmsg, map[uint16]change{
			unix.IFA_ADDRESS: address, unix.IFA_LOCAL: address, unix.IFA_BROADCAST: drop, unix.IFA_ANYCAST: drop, unix.IFA_LABEL: text,
		}
	}
	return unix.SizeofIfInfomsg, map[uint16]change{
		unix.IFLA_ADDRESS: mac, unix.IFLA_BROADCAST: mac, unix.IFLA_IFNAME: text, unix.IFLA_ALT_IFNAME: text, unix.IFLA_PHYS_PORT_NAME: text,
		unix.IFLA_PARENT_DEV_NAME: text, unix.IFLA_PARENT_DEV_BUS_NAME: text, unix.IFLA_IFALIAS: drop,
		unix.IFLA_PROP_LIST:   nested(map[uint16]change{unix.IFLA_ALT_IFNAME: text}),
		unix.IFLA_VFINFO_LIST: nested(map[uint16]change{vfInfo: nested(map[uint16]change{vfSpoofCheck: keep, vfTrust: keep})}),
		unix.IFLA_LINKINFO: nested(map[uint16]change{
			unix.IFLA_INFO_KIND: text, unix.IFLA_INFO_SLAVE_KIND: text, unix.IFLA_INFO_DATA: drop, unix.IFLA_INFO_SLAVE_DATA: drop,
		}),
	}
}

// Attributes of a VF in linux/if_link.h: IFLA_VF_INFO, IFLA_VF_SPOOFCHK, IFLA_VF_TRUST.
const (
	vfInfo       = 1
	vfSpoofCheck = 4
	vfTrust      = 9
)

// longest is the length of an attribute that stays although no list names it: a number.
const longest = 4

func rewrite(r *redact.Redactor, b []byte, header int, known map[uint16]change) []byte {
	if len(b) < header {
		return nil
	}
	out := slices.Clone(b[:header])
	for typ, v := range nlsock.Attributes(b[header:]) {
		stays := len(v) <= longest
		if f, ok := known[typ]; ok {
			v, stays = f(r, v)
		}
		if stays {
			out = attribute(out, typ, v)
		}
	}
	return out
}

// attribute appends an attribute of any size.
func attribute(b []byte, typ uint16, v []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(v)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, v...)
	return append(b, make([]byte, -len(b)&3)...)
}

func keep(_ *redact.Redactor, v []byte) ([]byte, bool) { return v, true }

func drop(*redact.Redactor, []byte) ([]byte, bool) { return nil, false }

func text(r *redact.Redactor, v []byte) ([]byte, bool) {
	return append([]byte(r.Text(nlsock.Text(v))), 0), true
}

func mac(r *redact.Redactor, v []byte) ([]byte, bool) { return r.MAC(v), true }

// guid replaces a GUID, which nldev sends in host byte order.
func guid(r *redact.Redactor, v []byte) ([]byte, bool) {
	if len(v) != 8 {
		return nil, false
	}
	return binary.NativeEndian.AppendUint64(nil, r.GUID(binary.NativeEndian.Uint64(v))), true
}

func address(r *redact.Redactor, v []byte) ([]byte, bool) {
	a, ok := netip.AddrFromSlice(v)
	if !ok {
		return nil, false
	}
	if like := r.Addr(a); like.Is4() == a.Is4() {
		return like.AsSlice(), true
	}
	return nil, false
}

func nested(known map[uint16]change) change {
	return func(r *redact.Redactor, v []byte) ([]byte, bool) { return rewrite(r, v, 0, known), true }
}
