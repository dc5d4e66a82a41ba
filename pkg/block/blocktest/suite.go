// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package blocktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/block"
)

// Suite tests what block.Store promises. The store needs not be empty: each behaviour
// is shown in its own pools, with names that begin with "suite".
func Suite(t *testing.T, s block.Store) {
	pools := 0
	for name, test := range map[string]func(*testing.T, block.Store, string){
		"a block is kept as it was created":       keeps,
		"a name is given once":                    once,
		"of all who create one succeeds":          oneOfMany,
		"what is not there is not found":          notFound,
		"a list is of what was asked for":         lists,
		"a touched block has another version":     touches,
		"another block's uid touches nothing":     touchesAnother,
		"a block is deleted as it was seen":       deletes,
		"a block that has changed is not deleted": deletesChanged,
		"a name can be given again":               again,
		"a call without time has no answer":       noTime,
	} {
		pools++
		pool := fmt.Sprintf("suite%d", pools)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s, pool)
		})
	}
}

// sample is block i of a pool, of a node of that number.
func sample(poolName string, i int) block.Block {
	return block.Block{Name: fmt.Sprintf("%s-%d", poolName, i), Spec: block.Spec{
		Pool: poolName, Index: i, Size: 16, NodeName: fmt.Sprintf("node-%d", i), MachineID: fmt.Sprintf("machine-%d", i),
	}}
}

// made creates a block.
func made(t *testing.T, s block.Store, b block.Block) block.Block {
	t.Helper()
	got, err := s.Create(t.Context(), b)
	if err != nil {
		t.Fatalf("create %s: %v", b.Name, err)
	}
	return got
}

func wantError(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func keeps(t *testing.T, s block.Store, pool string) {
	want := sample(pool, 3)
	got := made(t, s, want)
	if got.Name != want.Name || got.Spec != want.Spec || got.UID == "" || got.ResourceVersion == "" || got.Created.IsZero() {
		t.Errorf("created %+v, got %+v", want, got)
	}
	there, err := s.Get(t.Context(), want.Name)
	if diff := cmp.Diff(got, there); err != nil || diff != "" {
		t.Errorf("error %v, (-created +got)\n%s", err, diff)
	}
	// A cache may not have it yet, and never has another one.
	if cached, err := s.Peek(t.Context(), want.Name); !errors.Is(err, block.ErrNotFound) && (err != nil || cached != got) {
		t.Errorf("error %v; created %+v, peeked %+v", err, got, cached)
	}
}

func once(t *testing.T, s block.Store, pool string) {
	first := made(t, s, sample(pool, 1))
	second := sample(pool, 1)
	second.Spec.NodeName = "another"
	_, err := s.Create(t.Context(), second)
	wantError(t, "create it again", err, block.ErrExists)
	if got, err := s.Get(t.Context(), first.Name); err != nil || got != first {
		t.Errorf("error %v; got %+v, want %+v", err, got, first)
	}
}

func oneOfMany(t *testing.T, s block.Store, pool string) {
	const many = 16
	errs := make([]error, many)
	var all sync.WaitGroup
	for i := range many {
		b := sample(pool, 0)
		b.Spec.NodeName = fmt.Sprintf("node-%d", i)
		all.Go(func() { _, errs[i] = s.Create(t.Context(), b) })
	}
	all.Wait()
	winner := slices.Index(errs, nil)
	for i, err := range errs {
		if i != winner {
			wantError(t, "create what another has created", err, block.ErrExists)
		}
	}
	got, err := s.Get(t.Context(), pool+"-0")
	if want := fmt.Sprintf("node-%d", winner); err != nil || got.Spec.NodeName != want {
		t.Errorf("error %v; %s has it, and %s was told so", err, got.Spec.NodeName, want)
	}
}

func notFound(t *testing.T, s block.Store, pool string) {
	_, err := s.Get(t.Context(), pool+"-0")
	wantError(t, "get", err, block.ErrNotFound)
	_, err = s.Peek(t.Context(), pool+"-0")
	wantError(t, "peek", err, block.ErrNotFound)
	_, err = s.Touch(t.Context(), pool+"-0", "uid")
	wantError(t, "touch", err, block.ErrNotFound)
	wantError(t, "delete", s.Delete(t.Context(), pool+"-0", "uid", "1"), block.ErrNotFound)
}

func lists(t *testing.T, s block.Store, pool string) {
	racked := sample(pool, 3)
	racked.Name, racked.Spec.Rack = pool+".r1-3", "r1"
	for _, b := range []block.Block{sample(pool, 1), sample(pool, 2), racked, sample(pool+"q", 1)} {
		made(t, s, b)
	}
	for _, tt := range []struct {
		q    block.Query
		want []string
	}{
		{block.Query{Pool: pool, Freshness: block.Latest}, []string{pool + "-1", pool + "-2", pool + ".r1-3"}},
		{block.Query{Pool: pool, Rack: "r1", Freshness: block.Latest}, []string{pool + ".r1-3"}},
		{block.Query{Pool: pool, MachineID: "machine-1", Freshness: block.Latest}, []string{pool + "-1"}},
		{block.Query{Pool: pool + "q", Freshness: block.Latest}, []string{pool + "q-1"}},
		{block.Query{Pool: pool + "none", Freshness: block.Latest}, nil},
	} {
		got, err := s.List(t.Context(), tt.q)
		var names []string
		for _, b := range got {
			names = append(names, b.Name)
			if there, err := s.Get(t.Context(), b.Name); err != nil || there != b {
				t.Errorf("%+v: error %v; listed %+v, got %+v", tt.q, err, b, there)
			}
		}
		slices.Sort(names)
		if diff := cmp.Diff(tt.want, names); err != nil || diff != "" {
			t.Errorf("%+v: error %v, (-want +got)\n%s", tt.q, err, diff)
		}
		tt.q.Freshness = block.Cached // it may lack any
		if got, err := s.List(t.Context(), tt.q); err != nil || len(got) > len(tt.want) {
			t.Errorf("%+v: %d blocks, error %v", tt.q, len(got), err)
		}
	}
}

func touches(t *testing.T, s block.Store, pool string) {
	b := made(t, s, sample(pool, 1))
	got, err := s.Touch(t.Context(), b.Name, b.UID)
	if err != nil || got.ResourceVersion == b.ResourceVersion {
		t.Fatalf("error %v, version %q after %q", err, got.ResourceVersion, b.ResourceVersion)
	}
	b.ResourceVersion = got.ResourceVersion
	if got != b {
		t.Errorf("got %+v, want %+v", got, b)
	}
	if there, err := s.Get(t.Context(), b.Name); err != nil || there != b {
		t.Errorf("error %v; got %+v, want %+v", err, there, b)
	}
}

func touchesAnother(t *testing.T, s block.Store, pool string) {
	b := made(t, s, sample(pool, 1))
	_, err := s.Touch(t.Context(), b.Name, "00000000-0000-0000-0000-000000000000")
	wantError(t, "touch", err, block.ErrConflict)
	if there, err := s.Get(t.Context(), b.Name); err != nil || there != b {
		t.Errorf("error %v; got %+v, want %+v", err, there, b)
	}
}

func deletes(t *testing.T, s block.Store, pool string) {
	b, other := made(t, s, sample(pool, 1)), made(t, s, sample(pool, 2))
	wantError(t, "with another uid", s.Delete(t.Context(), b.Name, other.UID, b.ResourceVersion), block.ErrConflict)
	if err := s.Delete(t.Context(), b.Name, b.UID, b.ResourceVersion); err != nil {
		t.Fatal(err)
	}
	_, err := s.Get(t.Context(), b.Name)
	wantError(t, "get", err, block.ErrNotFound)
	if _, err := s.Get(t.Context(), other.Name); err != nil {
		t.Errorf("the other block: %v", err)
	}
}

func deletesChanged(t *testing.T, s block.Store, pool string) {
	b := made(t, s, sample(pool, 1))
	if _, err := s.Touch(t.Context(), b.Name, b.UID); err != nil {
		t.Fatal(err)
	}
	wantError(t, "delete", s.Delete(t.Context(), b.Name, b.UID, b.ResourceVersion), block.ErrConflict)
	if _, err := s.Get(t.Context(), b.Name); err != nil {
		t.Errorf("it is gone: %v", err)
	}
}

func again(t *testing.T, s block.Store, pool string) {
	b := made(t, s, sample(pool, 1))
	if err := s.Delete(t.Context(), b.Name, b.UID, b.ResourceVersion); err != nil {
		t.Fatal(err)
	}
	if next := made(t, s, sample(pool, 1)); next.UID == b.UID {
		t.Errorf("two blocks have the uid %s", b.UID)
	}
	wantError(t, "delete the first", s.Delete(t.Context(), b.Name, b.UID, b.ResourceVersion), block.ErrConflict)
}

func noTime(t *testing.T, s block.Store, pool string) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Create(ctx, sample(pool, 1))
	wantError(t, "create", err, block.ErrUnknown)
	_, err = s.List(ctx, block.Query{Pool: pool})
	wantError(t, "list", err, block.ErrUnknown)
}
