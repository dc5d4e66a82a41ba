// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

// asides returns all addresses that are set aside.
func asides(t *testing.T, s Store) []Aside {
	t.Helper()
	var out []Aside
	err := s.View(t.Context(), func(l *Ledger) error {
		for a, err := range l.Asides() {
			if err != nil {
				return err
			}
			out = append(out, a)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAnAddressIsSetAsideUntilItIsDropped(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	want := []Aside{
		{addr(1), Owner{IfName: "net1", Netns: Netns{"/run/netns/x", 4, 7}}},
		{addr(2), Owner{}},
	}
	err := s.Update(t.Context(), func(l *Ledger) error { return errors.Join(l.SetAside(want[1]), l.SetAside(want[0])) })
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(want, asides(t, s), addrs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	err = s.Update(t.Context(), func(l *Ledger) error {
		if got, found, err := l.Aside(addr(1)); !found || err != nil || got != want[0] {
			t.Errorf("got %v, %t, %v", got, found, err)
		}
		if _, found, err := l.Aside(addr(3)); found || err != nil {
			t.Errorf("an address that is not set aside: got %t, %v", found, err)
		}
		return l.DropAside(addr(1))
	})
	if diff := gocmp.Diff(want[1:], asides(t, s), addrs); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if why := damage(t, s); why != nil {
		t.Errorf("it counts as damage: %v", why)
	}
}

// The previous version wrote testdata/past.db.gz. It had three leases: one is still
// held, one address is in quarantine, and one is at conflict. A rebuild has left
// 10.0.0.9 and 10.0.0.10 in the pool "*"; the second of them is in quarantine.
func TestADatabaseOfTheVersionBeforeIsRead(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	unpack(t, s, "past.db.gz")
	type seen struct {
		Held        []Place
		Quarantined []State
		Aside       []Aside
	}
	var got seen
	err := s.Update(t.Context(), func(l *Ledger) error {
		for h, err := range l.Holdings() {
			if err != nil {
				return err
			}
			got.Held = append(got.Held, h.Places...)
		}
		for r, err := range l.AllQuarantined() {
			if err != nil {
				return err
			}
			got.Quarantined = append(got.Quarantined, r.State)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got.Aside = asides(t, s)
	want := seen{
		Held:        []Place{{Spot: Spot{"a", addr(1)}, Since: s.Now()}},
		Quarantined: []State{Released, Conflicted},
		Aside:       []Aside{{addr(9), Owner{IfName: "net1", Netns: Netns{"/run/netns/x", 4, 77}}}},
	}
	if diff := gocmp.Diff(want, got, addrs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if why := damage(t, s); why != nil {
		t.Errorf("it counts as damaged: %v", why)
	}
}

// unpack gives a store a database of testdata.
func unpack(t *testing.T, s Store, name string) {
	t.Helper()
	packed, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	file, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(s.db(), b, 0o600), os.WriteFile(s.lock(), []byte(boot1), 0o600)); err != nil {
		t.Fatal(err)
	}
}
