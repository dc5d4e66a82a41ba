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

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// Kind is one kind of objects with resource versions, and its store. For a new kind,
// fill in all fields and call Suite, with the store in memory and with the one on an
// API server. For a new behaviour of all stores, add a method and a line in Suite.
type Kind[S, Q any] struct {
	Store block.Objects[S, Q]
	// Sample returns object i of a pool, which belongs to node i.
	Sample func(pool string, i int) block.Object[S]
	// Owned returns the object as one that belongs to node i.
	Owned func(o block.Object[S], i int) block.Object[S]
	// Write writes an object, if it still has the UID, so that its version is another
	// one. Changed is what Write may change of an object.
	Write   func(ctx context.Context, o block.Object[S]) (block.Object[S], error)
	Changed func(o block.Object[S]) block.Object[S]
	// Listed returns objects in the pool, or in pool+"q", and what lists of them have.
	Listed func(pool string) ([]block.Object[S], []Listing[Q])
	// More are the behaviours that only this kind has. Each gets a pool of its own.
	More map[string]func(t *testing.T, pool string)
}

// Listing has the names of the objects that a query matches, sorted.
type Listing[Q any] struct {
	Query Q
	Want  []string
}

// NoUID is a UID that no object has.
const NoUID = "00000000-0000-0000-0000-000000000000"

// Suite tests what a store promises. The store needs not be empty: each behaviour is
// shown in its own pools, with names that begin with "suite".
func (k Kind[S, Q]) Suite(t *testing.T) {
	tests := map[string]func(*testing.T, string){
		"an object is kept as it was created":       k.keeps,
		"a name is given once":                      k.once,
		"of all who create one succeeds":            k.oneOfMany,
		"what is not there is not found":            k.notFound,
		"a list is of what was asked for":           k.lists,
		"a written object has another version":      k.writes,
		"another object's uid writes nothing":       k.writesAnother,
		"an object is deleted as it was seen":       k.deletes,
		"an object that has changed is not deleted": k.deletesChanged,
		"a name can be given again":                 k.again,
		"a call without time has no answer":         k.noTime,
	}
	pools := 0
	for _, all := range []map[string]func(*testing.T, string){tests, k.More} {
		for name, test := range all {
			pools++
			pool := fmt.Sprintf("suite%d", pools)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, pool)
			})
		}
	}
}

// Made creates an object.
func (k Kind[S, Q]) Made(t *testing.T, o block.Object[S]) block.Object[S] {
	t.Helper()
	got, err := k.Store.Create(t.Context(), o)
	if err != nil {
		t.Fatalf("create %s: %v", o.Name, err)
	}
	return got
}

// WantKept checks that the store has the object.
func (k Kind[S, Q]) WantKept(t *testing.T, want block.Object[S]) {
	t.Helper()
	there, err := k.Store.Get(t.Context(), want.Name)
	if diff := cmp.Diff(want, there); err != nil || diff != "" {
		t.Errorf("error %v, (-want +got)\n%s", err, diff)
	}
}

// delete deletes the object of that name, UID and version.
func (k Kind[S, Q]) delete(t *testing.T, o block.Object[S]) error {
	t.Helper()
	return k.Store.Delete(t.Context(), o.Name, o.UID, o.ResourceVersion)
}

// stored returns the object with what a store has set in another one.
func (k Kind[S, Q]) stored(o, as block.Object[S]) block.Object[S] {
	o.UID, o.ResourceVersion, o.Created = as.UID, as.ResourceVersion, as.Created
	return o
}

func wantError(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func (k Kind[S, Q]) keeps(t *testing.T, pool string) {
	want := k.Sample(pool, 3)
	got := k.Made(t, want)
	if got.UID == "" || got.ResourceVersion == "" || got.Created.IsZero() {
		t.Errorf("created %+v", got)
	}
	k.WantKept(t, got)
	if diff := cmp.Diff(k.stored(want, got), got); diff != "" {
		t.Errorf("(-sent +got)\n%s", diff)
	}
}

func (k Kind[S, Q]) once(t *testing.T, pool string) {
	first := k.Made(t, k.Sample(pool, 1))
	_, err := k.Store.Create(t.Context(), k.Owned(k.Sample(pool, 1), 2))
	wantError(t, "create it again", err, block.ErrExists)
	k.WantKept(t, first)
}

func (k Kind[S, Q]) oneOfMany(t *testing.T, pool string) {
	k.OneOfMany(t, k.Sample(pool, 0), k.Store.Create, block.ErrExists)
}

// OneOfMany has many writers write an object, each as its own. One succeeds, the store
// has its object, and the others get one of the errors.
func (k Kind[S, Q]) OneOfMany(t *testing.T, o block.Object[S], write func(context.Context, block.Object[S]) (block.Object[S], error), losers ...error) {
	t.Helper()
	const many = 16
	errs, written := make([]error, many), make([]block.Object[S], many)
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() { written[i], errs[i] = write(t.Context(), k.Owned(o, i)) })
	}
	all.Wait()
	winner := slices.Index(errs, nil)
	for i, err := range errs {
		if i != winner && !slices.ContainsFunc(losers, func(want error) bool { return errors.Is(err, want) }) {
			t.Errorf("writer %d, beside %d: %v", i, winner, err)
		}
	}
	if winner < 0 {
		t.Fatal("no writer succeeded")
	}
	k.WantKept(t, written[winner])
	if diff := cmp.Diff(k.stored(k.Owned(o, winner), written[winner]), written[winner]); diff != "" {
		t.Errorf("writer %d (-sent +got)\n%s", winner, diff)
	}
}

func (k Kind[S, Q]) notFound(t *testing.T, pool string) {
	o := k.Sample(pool, 0)
	o.UID, o.ResourceVersion = NoUID, "1"
	_, err := k.Store.Get(t.Context(), o.Name)
	wantError(t, "get", err, block.ErrNotFound)
	_, err = k.Write(t.Context(), o)
	wantError(t, "write", err, block.ErrNotFound)
	wantError(t, "delete", k.delete(t, o), block.ErrNotFound)
}

func (k Kind[S, Q]) lists(t *testing.T, pool string) {
	objects, lists := k.Listed(pool)
	for _, o := range objects {
		k.Made(t, o)
	}
	for _, l := range lists {
		got, err := k.Store.List(t.Context(), l.Query)
		var names []string
		for _, o := range got {
			names = append(names, o.Name)
			k.WantKept(t, o)
		}
		slices.Sort(names)
		if diff := cmp.Diff(l.Want, names); err != nil || diff != "" {
			t.Errorf("%+v: error %v, (-want +got)\n%s", l.Query, err, diff)
		}
	}
}

func (k Kind[S, Q]) writes(t *testing.T, pool string) {
	o := k.Made(t, k.Sample(pool, 1))
	want := k.Changed(o)
	got, err := k.Write(t.Context(), want)
	if err != nil || got.ResourceVersion == o.ResourceVersion {
		t.Fatalf("error %v, version %q after %q", err, got.ResourceVersion, o.ResourceVersion)
	}
	want.ResourceVersion = got.ResourceVersion
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	k.WantKept(t, want)
}

func (k Kind[S, Q]) writesAnother(t *testing.T, pool string) {
	o := k.Made(t, k.Sample(pool, 1))
	other := k.Changed(o)
	other.UID = NoUID
	_, err := k.Write(t.Context(), other)
	wantError(t, "write", err, block.ErrConflict)
	k.WantKept(t, o)
}

func (k Kind[S, Q]) deletes(t *testing.T, pool string) {
	o, other := k.Made(t, k.Sample(pool, 1)), k.Made(t, k.Sample(pool, 2))
	mixed := o
	mixed.UID = other.UID
	wantError(t, "with another uid", k.delete(t, mixed), block.ErrConflict)
	if err := k.delete(t, o); err != nil {
		t.Fatal(err)
	}
	_, err := k.Store.Get(t.Context(), o.Name)
	wantError(t, "get", err, block.ErrNotFound)
	k.WantKept(t, other)
}

func (k Kind[S, Q]) deletesChanged(t *testing.T, pool string) {
	o := k.Made(t, k.Sample(pool, 1))
	now, err := k.Write(t.Context(), k.Changed(o))
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, "delete", k.delete(t, o), block.ErrConflict)
	k.WantKept(t, now)
}

func (k Kind[S, Q]) again(t *testing.T, pool string) {
	o := k.Made(t, k.Sample(pool, 1))
	if err := k.delete(t, o); err != nil {
		t.Fatal(err)
	}
	next := k.Made(t, k.Sample(pool, 1))
	if next.UID == o.UID {
		t.Errorf("two objects have the uid %s", o.UID)
	}
	wantError(t, "delete the first", k.delete(t, o), block.ErrConflict)
	_, err := k.Write(t.Context(), k.Changed(o))
	wantError(t, "write the first", err, block.ErrConflict)
	k.WantKept(t, next)
}

func (k Kind[S, Q]) noTime(t *testing.T, pool string) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := k.Store.Create(ctx, k.Sample(pool, 1))
	wantError(t, "create", err, block.ErrUnknown)
	_, lists := k.Listed(pool)
	_, err = k.Store.List(ctx, lists[0].Query)
	wantError(t, "list", err, block.ErrUnknown)
}
