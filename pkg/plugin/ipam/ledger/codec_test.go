// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/kv"
)

func someHolding() Holding {
	return Holding{owner(1), []Place{
		{Spot{"pool", addr(1)}, 5, false},
		{Spot{"", netip.MustParseAddr("2001:db8::1")}, 7, true},
	}}
}

func TestValuesSurviveFieldsOfALaterVersion(t *testing.T) {
	t.Parallel()
	h := someHolding()
	got, err := decodeHolding(kv.Item{Key: []byte("k"), Value: append(h.encode(), "more"...)})
	if diff := gocmp.Diff(h, got, addrs); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	r := Quarantined{Spot{"pool", addr(1)}, Conflicted, 9, owner(2)}
	gotQuarantined, err := decodeQuarantined(kv.Item{Key: quarantineKey(r.Spot, r.Freed), Value: append(r.encode(), "more"...)})
	if diff := gocmp.Diff(r, gotQuarantined, addrs); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestValuesOfAnotherVersionOrCutShortAreDamage(t *testing.T) {
	t.Parallel()
	hold := someHolding().encode()
	quarantined := Quarantined{Spot{"pool", addr(1)}, Released, 9, owner(2)}
	key := quarantineKey(quarantined.Spot, quarantined.Freed)
	for n := range len(hold) {
		if _, err := decodeHolding(kv.Item{Key: []byte("k"), Value: hold[:n]}); !errors.Is(err, kv.ErrDamaged) {
			t.Errorf("%d of %d bytes of a holding: got %v", n, len(hold), err)
		}
	}
	for n := range len(quarantined.encode()) {
		if _, err := decodeQuarantined(kv.Item{Key: key, Value: quarantined.encode()[:n]}); !errors.Is(err, kv.ErrDamaged) {
			t.Errorf("%d bytes of an address in quarantine: got %v", n, err)
		}
	}
	for n := range len(key) {
		if _, err := decodeQuarantined(kv.Item{Key: key[:n], Value: quarantined.encode()}); !errors.Is(err, kv.ErrDamaged) {
			t.Errorf("%d of %d bytes of the key of an address in quarantine: got %v", n, len(key), err)
		}
	}
	hold[0]++
	for what, err := range map[string]error{
		"holding":     second(decodeHolding(kv.Item{Key: []byte("k"), Value: hold})),
		"neighbour":   second(netnsOf(kv.Item{Key: []byte("k"), Value: hold})),
		"quarantined": second(decodeQuarantined(kv.Item{Key: key, Value: append([]byte{9}, quarantined.encode()[1:]...)})),
	} {
		if !errors.Is(err, kv.ErrDamaged) {
			t.Errorf("%s of another version: got %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

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
		if h, err := decodeHolding(kv.Item{Key: key, Value: value}); err == nil {
			if again, err := decodeHolding(kv.Item{Key: key, Value: h.encode()}); err != nil || !gocmp.Equal(h, again, addrs) {
				t.Errorf("%v becomes %v, %v", h, again, err)
			}
		}
		if r, err := decodeQuarantined(kv.Item{Key: key, Value: value}); err == nil {
			if again, err := decodeQuarantined(kv.Item{Key: quarantineKey(r.Spot, r.Freed), Value: r.encode()}); err != nil || !gocmp.Equal(r, again, addrs) {
				t.Errorf("%v becomes %v, %v", r, again, err)
			}
		}
	})
}
