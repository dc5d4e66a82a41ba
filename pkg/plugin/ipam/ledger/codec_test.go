// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

func someHolding() Holding {
	return Holding{owner(1), []Place{
		{Spot{"pool", addr(1)}, 5, false},
		{Spot{"", netip.MustParseAddr("2001:db8::1")}, 7, true},
	}}
}

// in runs fn in a transaction, and returns how that ended.
func in(t *testing.T) func(fn func()) error {
	t.Helper()
	s, _ := store(t)
	give(t, s, 1)
	return func(fn func()) error { return s.View(t.Context(), always(func(*Ledger) { fn() })) }
}

func TestValuesSurviveFieldsOfALaterVersion(t *testing.T) {
	t.Parallel()
	h := someHolding()
	got := decodeHolding(item{Key: []byte("k"), Value: append(h.encode(), "more"...)})
	if diff := gocmp.Diff(h, got, addrs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r := Quarantined{Spot{"pool", addr(1)}, Conflicted, 9, owner(2)}
	gotQuarantined := decodeQuarantined(item{Key: quarantineKey(r.Spot, r.Freed), Value: append(r.encode(), "more"...)})
	if diff := gocmp.Diff(r, gotQuarantined, addrs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestValuesOfAnotherVersionOrCutShortAreDamage(t *testing.T) {
	t.Parallel()
	run := in(t)
	refused := func(what string, fn func()) {
		t.Helper()
		if err := run(fn); !errors.Is(err, errDamaged) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	hold := someHolding().encode()
	quarantined := Quarantined{Spot{"pool", addr(1)}, Released, 9, owner(2)}
	key, value := quarantineKey(quarantined.Spot, quarantined.Freed), quarantined.encode()
	for n := range len(hold) {
		refused("a part of a holding", func() { decodeHolding(item{Key: []byte("k"), Value: hold[:n]}) })
	}
	for n := range len(value) {
		refused("a part of an address in quarantine", func() { decodeQuarantined(item{Key: key, Value: value[:n]}) })
	}
	for n := range len(key) {
		refused("a part of its key", func() { decodeQuarantined(item{Key: key[:n], Value: value}) })
	}
	aside := appendOwner([]byte{valueVersion}, owner(2))
	for n := range len(aside) {
		refused("a part of an address that is set aside", func() { decodeAside(item{Key: asideKey(addr(1)), Value: aside[:n]}) })
	}
	v6 := netip.MustParseAddr("2001:db8::1")
	other := strings.Replace(string(hold), string(appendAddr(nil, v6)), "5"+string(v6.AsSlice()), 1)
	refused("an address of no family", func() { decodeHolding(item{Key: []byte("k"), Value: []byte(other)}) })
	hold[0]++
	value[0]++
	refused("a holding of another version", func() { decodeHolding(item{Key: []byte("k"), Value: hold}) })
	refused("a neighbour of another version", func() { netnsOf(item{Key: []byte("k"), Value: hold}) })
	refused("an address of another version", func() { decodeQuarantined(item{Key: key, Value: value}) })
}

// No two things may share a key, and addresses must sort as addresses.
func TestKeysAreInjectiveAndSort(t *testing.T) {
	t.Parallel()
	pools := []string{"", "a", "a\x00", "a\x00\x00", "aa", "a\x004", "\x00\x01a", "b"}
	list := []string{"0.0.0.0", "1.2.3.4", "10.0.0.255", "10.0.1.0", "255.255.255.255", "::", "::1.2.3.4", "::ffff:0:0", "2001:db8::1", "ffff::"}
	seen := map[string]bool{}
	for _, pool := range pools {
		var last []byte
		for _, s := range list {
			k := runKey(pool, netip.MustParseAddr(s))
			if seen[string(k)] {
				t.Errorf("%q %s shares the key %x", pool, s, k)
			}
			if bytes.Compare(last, k) >= 0 {
				t.Errorf("%q %s sorts before what is before it", pool, s)
			}
			seen[string(k)], last = true, k
		}
	}
	keys := map[string]Key{}
	for _, a := range pools {
		for _, b := range pools {
			for _, k := range []Key{{a, b, "", ""}, {"", a, b, "net"}, {"", "c", a, b}} {
				if other, ok := keys[string(holdKey(k))]; ok {
					t.Errorf("%q and %q share a key", k, other)
				}
				keys[string(holdKey(k))] = k
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("k"), someHolding().encode())
	r := Quarantined{Spot{"pool", addr(1)}, Released, 9, owner(2)}
	f.Add(quarantineKey(r.Spot, r.Freed), r.encode())
	f.Fuzz(func(t *testing.T, key, value []byte) {
		run := in(t)
		var h Holding
		if run(func() { h = decodeHolding(item{Key: key, Value: value}) }) == nil {
			if again := decodeHolding(item{Key: key, Value: h.encode()}); !gocmp.Equal(h, again, addrs) {
				t.Errorf("%v becomes %v", h, again)
			}
		}
		var r Quarantined
		if run(func() { r = decodeQuarantined(item{Key: key, Value: value}) }) == nil {
			if again := decodeQuarantined(item{Key: quarantineKey(r.Spot, r.Freed), Value: r.encode()}); !gocmp.Equal(r, again, addrs) {
				t.Errorf("%v becomes %v", r, again)
			}
		}
	})
}
