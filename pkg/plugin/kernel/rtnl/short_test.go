// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// rows is a socket that gives the same rows as the answer to every request, as a recording
// of a stranger can.
type rows [][]byte

func (rows) Close() {}

func (r rows) Dump(context.Context, nlsock.Request) ([][]byte, error) { return r, nil }

func (r rows) Exchange(_ context.Context, reqs ...nlsock.Request) ([]nlsock.Reply, error) {
	out := make([]nlsock.Reply, len(reqs))
	for i := range out {
		out[i].Rows = r
	}
	return out, nil
}

// question is one way to ask, with the length of the fixed part of its answers.
type question struct {
	message string
	fixed   int
	ask     func(context.Context, *Conn) error
}

func questions() []question {
	lo := netip.MustParseAddr("::1")
	return []question{
		{"RTM_GETLINK", unix.SizeofIfInfomsg, func(ctx context.Context, c *Conn) error { _, err := c.Links(ctx); return err }},
		{"RTM_GETLINK", unix.SizeofIfInfomsg, func(ctx context.Context, c *Conn) error { _, err := c.LinkByName(ctx, "lo"); return err }},
		{"RTM_GETLINK", unix.SizeofIfInfomsg, func(ctx context.Context, c *Conn) error { _, err := c.LinkByIndex(ctx, 1); return err }},
		{"RTM_GETLINK", unix.SizeofIfInfomsg, func(ctx context.Context, c *Conn) error { _, err := c.VFs(ctx, "lo"); return err }},
		{"RTM_GETADDR", unix.SizeofIfAddrmsg, func(ctx context.Context, c *Conn) error { _, err := c.Addresses(ctx, 0); return err }},
		{"RTM_GETROUTE", unix.SizeofRtMsg, func(ctx context.Context, c *Conn) error { _, err := c.Routes(ctx); return err }},
		{"RTM_GETROUTE", unix.SizeofRtMsg, func(ctx context.Context, c *Conn) error { _, err := c.RoutesOf(ctx, unix.AF_INET, 1); return err }},
		{"RTM_GETROUTE", unix.SizeofRtMsg, func(ctx context.Context, c *Conn) error { _, err := c.RouteTo(ctx, lo, lo); return err }},
		{"RTM_GETRULE", unix.SizeofRtMsg, func(ctx context.Context, c *Conn) error { _, err := c.Rules(ctx, unix.AF_UNSPEC); return err }},
		{"RTM_GETNEIGH", unix.SizeofNdMsg, func(ctx context.Context, c *Conn) error {
			_, err := c.HasNeighbour(ctx, Neighbour{Addr: lo})
			return err
		}},
		{"RTM_GETNSID", 4, func(ctx context.Context, c *Conn) error { _, err := c.NSID(ctx, 0); return err }},
		{"RTM_GETNSID", 4, func(ctx context.Context, c *Conn) error { _, err := c.GiveNSID(ctx, 0); return err }},
	}
}

// TestAShortRowIsNamed has answers that end in their fixed part, with memory behind them
// that is not theirs.
func TestAShortRowIsNamed(t *testing.T) {
	t.Parallel()
	for _, q := range questions() {
		for n := range q.fixed {
			row := bytes.Repeat([]byte{unix.AF_INET}, 64)[:n]
			err := q.ask(t.Context(), New(rows{row}))
			want := fmt.Sprintf("row 1 of the answer to %s has %d bytes, want at least %d", q.message, n, q.fixed)
			if !errors.Is(err, ErrShort) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
	}
	if _, err := New(rows{}).LinkByIndex(t.Context(), 1); !errors.Is(err, unix.ENODATA) {
		t.Errorf("an answer without rows: %v", err)
	}
	whole := make([]byte, unix.SizeofIfInfomsg)
	if _, err := New(rows{whole, whole, whole[:3]}).Links(t.Context()); err == nil || !strings.Contains(err.Error(), "row 3 ") {
		t.Errorf("the third row is short: %v", err)
	}
}

// FuzzRows: no answer to any question panics, and only one that is shorter than its fixed
// part is an error.
func FuzzRows(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{unix.AF_INET})
	f.Add(make([]byte, unix.SizeofRtMsg))
	rule := append([]byte{unix.AF_INET}, make([]byte, unix.SizeofRtMsg-1)...)
	f.Add(append(rule, nested(unix.FRA_PROTOCOL)...)) // without a value
	info := make([]byte, unix.SizeofIfInfomsg)
	f.Add(append(info, nested(unix.IFLA_LINKINFO, nested(unix.IFLA_INFO_KIND, []byte("vlan")), nested(unix.IFLA_INFO_DATA, []byte{1}))...))
	f.Add(append(info, nested(unix.IFLA_VFINFO_LIST, nested(1, nested(4, []byte{1, 2, 3})))...))
	f.Add(append(info, 3, 0, 1, 0)) // an attribute that is shorter than its head
	route := append([]byte{unix.AF_INET6, 200}, make([]byte, unix.SizeofRtMsg-2)...)
	f.Add(append(route, nested(unix.RTA_MULTIPATH, []byte{2, 0, 0, 0, 1, 0, 0, 0, 9})...))
	f.Add(append(route, nested(unix.RTA_DST, []byte{1, 2, 3})...))
	f.Fuzz(func(t *testing.T, row []byte) {
		for _, q := range questions() {
			err := q.ask(t.Context(), New(rows{row}))
			if short := len(row) < q.fixed; short != errors.Is(err, ErrShort) || !short && err != nil {
				t.Errorf("%s, %x: %v", q.message, row, err)
			}
		}
	})
}
