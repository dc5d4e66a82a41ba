// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/kv"
)

// usedBy lists what a transaction sees: each used address with its pool and state.
func usedBy(l *Ledger) (out []string, err error) {
	n, _, err := content(l)
	for _, h := range n.held {
		for _, p := range h.Places {
			out = append(out, fmt.Sprint(p.Pool, " ", p.Addr, " ", Leased))
		}
	}
	for _, r := range n.rest {
		out = append(out, fmt.Sprint(r.Pool, " ", r.Addr, " ", r.State))
	}
	slices.SortFunc(out, cmp.Compare[string])
	return out, err
}

// Version 1 wrote testdata/version1.db.gz. There the containers c1 to c5 leased from the
// RailPool compute, and c1 and c9 from the pool team-a. The addresses of c4 and c9 are in
// quarantine, that of c5 is at conflict.
func TestLeasesOfRailPoolsOfTheVersionBeforeMoveToTheirOwnPools(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	unpack(t, s, "version1.db.gz")
	nodeFile := filepath.Join(s.Dir, "pools", "compute", "ranges")
	if err := errors.Join(os.MkdirAll(filepath.Dir(nodeFile), 0o700), os.WriteFile(nodeFile, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"rail:compute 10.0.0.1 leased", "rail:compute 10.0.0.2 leased", "rail:compute 10.0.0.3 leased",
		"rail:compute 10.0.0.4 resting", "rail:compute 10.0.0.5 conflict",
		"team-a 10.0.0.1 leased", "team-a 10.0.0.9 resting",
	}
	before, err := os.ReadFile(s.db())
	if err != nil {
		t.Fatal(err)
	}
	same := func(what string, want []string) func(l *Ledger) error {
		return func(l *Ledger) error {
			got, err := usedBy(l)
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
			return err
		}
	}
	if err := errors.Join(s.View(t.Context(), same("View", want)), s.Try(t.Context(), same("Try", want))); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(s.db()); err != nil || string(after) != string(before) {
		t.Errorf("reading has changed the database, %v", err)
	}
	if err := s.Existing(t.Context(), same("Existing", want)); err != nil {
		t.Fatal(err)
	}
	if why := damage(t, s); why != nil {
		t.Errorf("it counts as damaged: %v", why)
	}
	// From now on, a pool with the RailPool's name is another pool.
	err = s.Update(t.Context(), func(l *Ledger) error { return l.Give(owner(7), Spot{"compute", addr(1)}) })
	if err == nil {
		err = s.View(t.Context(), same("after the conversion", append([]string{"compute 10.0.0.1 leased"}, want...)))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestReleaseOfALeaseOfTheVersionBefore(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	unpack(t, s, "version1.db.gz")
	err := s.Existing(t.Context(), func(l *Ledger) error {
		h, held, err := l.Holding(owner(1).Attachment())
		if err != nil || !held {
			return fmt.Errorf("c1 holds nothing: %w", err)
		}
		_, err = l.Retire(h, func(Place) State { return Released })
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if why := damage(t, s); errors.Is(why, kv.ErrDamaged) {
		t.Errorf("it counts as damaged: %v", why)
	}
}
