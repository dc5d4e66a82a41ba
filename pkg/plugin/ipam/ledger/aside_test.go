// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"errors"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
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
		{addr(1), Owner{IfName: "net1", Program: "roce", Netns: netns.Ref{Path: "/run/netns/x", ID: netns.ID{Dev: 4, Ino: 7}}}},
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
