// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
)

// A key consists of strings and addresses. Each string has its length in front,
// so that two things never have the same key, whatever bytes a name has. An
// address is a family byte and the address, so that keys sort like addresses.

func appendString(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

func appendStrings(b []byte, all ...string) []byte {
	for _, s := range all {
		b = appendString(b, s)
	}
	return b
}

func appendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		b = append(b, '4')
	} else {
		b = append(b, '6')
	}
	return append(b, a.AsSlice()...)
}

func appendTime(b []byte, t time.Duration) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(t))
}

// reader reads a key or value part by part. After the first part that is
// missing, all results are zero and short is set.
type reader struct {
	b     []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if len(r.b) < n {
		r.b, r.short = nil, true
		return make([]byte, n)
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) byte() byte          { return r.take(1)[0] }
func (r *reader) uint64() uint64      { return binary.BigEndian.Uint64(r.take(8)) }
func (r *reader) time() time.Duration { return time.Duration(r.uint64()) }

func (r *reader) string() string {
	return string(r.take(int(binary.BigEndian.Uint16(r.take(2)))))
}

func (r *reader) addr() netip.Addr {
	n := 16
	switch r.byte() {
	case '4':
		n = 4
	case '6':
	default:
		r.short = true
	}
	a, _ := netip.AddrFromSlice(r.take(n))
	return a
}

// valueVersion is the first byte of the values of the tables hold and quarantine. A
// later version that only appends fields keeps the number.
const valueVersion = 1

// versioned returns a reader of what is behind the version of a value.
func versioned(what string, it item) reader {
	v := reader{b: it.Value}
	if n := v.byte(); n != valueVersion {
		fail(damagef("version %d of %s %x is unknown", n, what, it.Key))
	}
	return v
}

// done is called when an item was read, with the reader of its key if there is one. More
// bytes than needed are no damage: a later version may append fields.
func (r reader) done(what string, it item, key reader) {
	if r.short || key.short {
		fail(damagef("%s %x is malformed", what, it.Key))
	}
}

func appendOwner(b []byte, o Owner) []byte {
	b = appendString(b, o.Netns.Path)
	b = binary.BigEndian.AppendUint64(b, o.Netns.Dev)
	b = binary.BigEndian.AppendUint64(b, o.Netns.Ino)
	return appendStrings(b, o.names()...)
}

func (o Owner) names() []string {
	return []string{o.ContainerID, o.IfName, o.Network, o.Program, o.PodNamespace, o.PodName, o.PodUID}
}

// mustEncode refuses a text that is longer than its length can say: what stands behind it
// could not be read, and that ends all calls on the node.
func (o Owner) mustEncode() {
	for _, s := range append(o.names(), o.Netns.Path) {
		if len(s) > math.MaxUint16 {
			fail(cnierr.New(cnierr.BadConfig, "write lease", fmt.Sprintf("%.20q", s), "use shorter names", "a name has %d bytes, at most %d are possible", len(s), math.MaxUint16))
		}
	}
}

func (r *reader) netns() netns.Ref {
	return netns.Ref{Path: r.string(), ID: netns.ID{Dev: r.uint64(), Ino: r.uint64()}}
}

func (r *reader) owner() Owner {
	o := Owner{Netns: r.netns()}
	for _, s := range []*string{&o.ContainerID, &o.IfName, &o.Network, &o.Program, &o.PodNamespace, &o.PodName, &o.PodUID} {
		*s = r.string()
	}
	return o
}

// netnsOf reads only the namespace of a holding. It is the first field for that
// reason.
func netnsOf(it item) netns.Ref {
	v := versioned("holding", it)
	n := v.netns()
	v.done("holding", it, reader{})
	return n
}

func (h Holding) encode() []byte {
	b := appendOwner([]byte{valueVersion}, h.Owner)
	b = binary.BigEndian.AppendUint16(b, uint16(len(h.Places)))
	for _, p := range h.Places {
		early := byte(0)
		if p.Early {
			early = 1
		}
		b = append(appendTime(appendAddr(appendString(b, p.Pool), p.Addr), p.Since), early)
	}
	return b
}

func decodeHolding(it item) Holding {
	v := versioned("holding", it)
	h := Holding{Owner: v.owner()}
	n := binary.BigEndian.Uint16(v.take(2))
	for range n {
		h.Places = append(h.Places, Place{
			Spot:  Spot{v.string(), v.addr()},
			Since: v.time(),
			Early: v.byte() != 0,
		})
	}
	v.done("holding", it, reader{})
	return h
}

func (r Quarantined) encode() []byte {
	return appendOwner([]byte{valueVersion, byte(r.State)}, r.Owner)
}

func decodeQuarantined(it item) Quarantined {
	k, v := reader{b: it.Key}, versioned("address in quarantine", it)
	var r Quarantined
	r.Pool, r.Freed, r.Addr = k.string(), k.time(), k.addr()
	r.State = State(v.byte())
	r.Owner = v.owner()
	v.done("address in quarantine", it, k)
	return r
}
