// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"bytes"
	"net/netip"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
)

// Run returns the run of used addresses of a pool that contains a, or the next
// run after it. That one may be of the other family. It returns the zero Range
// if there is none.
//
// The key of a run is its last address, so that the search is one seek forward.
// A seek backward would need Cursor.Prev of bbolt, which stops at a page that
// the transaction has emptied.
func (l *Ledger) Run(pool string, a netip.Addr) netrange.Range {
	prefix := appendString(nil, pool)
	it := l.run.ceil(runKey(pool, a))
	if !bytes.HasPrefix(it.Key, prefix) {
		return netrange.Range{}
	}
	k := reader{b: it.Key[len(prefix):]}
	v := reader{b: it.Value}
	r := netrange.Range{Last: k.addr()}
	r.First = r.Last
	if len(it.Value) > 0 {
		r.First = v.addr()
	}
	if k.short || v.short || r.Last.Less(r.First) || r.First.Is4() != r.Last.Is4() {
		fail(damagef("run %x is malformed", it.Key))
	}
	return r
}

// addToRun makes a free address used.
func (l *Ledger) addToRun(s Spot) {
	right := l.Run(s.Pool, s.Addr)
	if right.Contains(s.Addr) {
		fail(damagef("address %v of pool %q is in a run already", s.Addr, s.Pool))
	}
	grown := netrange.Range{First: s.Addr, Last: s.Addr}
	if next := s.Addr.Next(); next.IsValid() && right.First == next {
		grown.Last = right.Last // under the same key
	}
	if before := s.Addr.Prev(); before.IsValid() {
		if left := l.Run(s.Pool, before); left.Last == before {
			grown.First = left.First
			l.run.del(runKey(s.Pool, before))
		}
	}
	l.putRun(s.Pool, grown)
}

// takeFromRun makes a used address free.
func (l *Ledger) takeFromRun(s Spot) {
	r := l.Run(s.Pool, s.Addr)
	if !r.Contains(s.Addr) {
		fail(damagef("address %v of pool %q is in no run", s.Addr, s.Pool))
	}
	if r.First != s.Addr {
		l.putRun(s.Pool, netrange.Range{First: r.First, Last: s.Addr.Prev()})
	}
	if r.Last == s.Addr {
		l.run.del(runKey(s.Pool, s.Addr))
	} else {
		l.putRun(s.Pool, netrange.Range{First: s.Addr.Next(), Last: r.Last})
	}
}

// putRun stores a run: the key is the last address, the value is the first one,
// or nothing if both are the same.
func (l *Ledger) putRun(pool string, r netrange.Range) {
	var first []byte
	if r.First != r.Last {
		first = appendAddr(nil, r.First)
	}
	l.run.put(runKey(pool, r.Last), first)
}

func runKey(pool string, last netip.Addr) []byte { return appendAddr(appendString(nil, pool), last) }
