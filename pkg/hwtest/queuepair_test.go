// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// pairs has queue pairs, and answers to requests for a raw one.
type pairs struct {
	rows [][]byte
	raw  nlsock.Reply
	sent nlsock.Request
}

func (*pairs) Close() {}

func (p *pairs) Dump(context.Context, nlsock.Request) ([][]byte, error) { return p.rows, nil }

func (p *pairs) Exchange(_ context.Context, reqs ...nlsock.Request) ([]nlsock.Reply, error) {
	p.sent = reqs[0]
	return []nlsock.Reply{p.raw}, nil
}

func TestQueuePairsThatKnowTheirPeer(t *testing.T) {
	t.Parallel()
	var table []byte
	for _, q := range []struct{ number, pid, state uint32 }{{1, 0, 3}, {17, 42, 1}, {18, 42, 2}, {19, 42, 3}, {20, 43, 3}} {
		entry := nlsock.AppendNumber(nlsock.AppendNumber(nil, attrQPNumber, q.number), attrPID, q.pid)
		table = nlsock.AppendText(table, 20, string(nlsock.AppendText(entry, attrQPState, string([]byte{byte(q.state)}))))
	}
	c := nldev.New(&pairs{rows: [][]byte{nlsock.AppendText(nil, 19, string(table))}})
	got, err := connected(t.Context(), c, 7, 42)
	if err != nil || !slices.Equal(got, []uint32{18, 19}) {
		t.Errorf("%v, %v, want 18 and 19", got, err)
	}
}

func TestRawQueuePair(t *testing.T) {
	t.Parallel()
	p := &pairs{raw: nlsock.Reply{Rows: [][]byte{nlsock.AppendText(nil, attrRaw, "bytes")}}}
	got, err := raw(t.Context(), nldev.New(p), 7, 18)
	if err != nil || nlsock.Text(got) != "bytes" {
		t.Errorf("%q, %v", got, err)
	}
	want := nlsock.AppendNumber(nlsock.AppendNumber(nil, 1, 7), attrQPNumber, 18)
	if p.sent.Type != 5<<10|cmdQPGetRaw || !slices.Equal(p.sent.Body, want) {
		t.Errorf("it asks %d with %x, want %x", p.sent.Type, p.sent.Body, want)
	}
	for errno, want := range map[unix.Errno]error{unix.EINVAL: errNotOffered, unix.EOPNOTSUPP: errNotOffered, unix.ENOENT: unix.ENOENT} {
		if _, err := raw(t.Context(), nldev.New(&pairs{raw: nlsock.Reply{Err: errno}}), 7, 18); !errors.Is(err, want) {
			t.Errorf("%v: %v, want %v", errno, err, want)
		}
	}
}
