// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package stickytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/nodefile"
	"github.com/roce-cni/roce-cni/pkg/block/sticky"
)

// Suite tests what sticky.Store promises. The store needs not be empty: each
// behaviour is shown in its own pools, with names that begin with "suite".
func Suite(t *testing.T, s sticky.Store) {
	pools := 0
	for name, test := range map[string]func(*testing.T, sticky.Store, string){
		"a lease is kept as it was created":         keeps,
		"of all who create one succeeds":            oneOfMany,
		"what is not there is not found":            notFound,
		"a list is of what was asked for":           lists,
		"an update writes holder and time alone":    updates,
		"an update takes the holder away":           releases,
		"of all who update one version one does":    updatesOnce,
		"another lease's uid updates nothing":       updatesAnother,
		"a lease is deleted as it was seen":         deletes,
		"a lease that has changed is not deleted":   deletesChanged,
		"a name can be given again":                 again,
		"a call without time has no answer":         noTime,
		"a lease without holder is kept without it": keepsForOperators,
	} {
		pools++
		pool := fmt.Sprintf("suite%d", pools)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s, pool)
		})
	}
}

// noon is a time as fine as all stores keep it.
func noon() time.Time { return time.Date(2026, 1, 2, 12, 0, 0, 345678000, time.UTC) }

// sample is the lease of slot i of a pool, for a pod of that number.
func sample(poolName string, i int) sticky.Lease {
	return sticky.Lease{Name: fmt.Sprintf("%s-s%d", poolName, i), Spec: sticky.Spec{
		Pool: poolName, Slot: i, Namespace: "default", Pod: fmt.Sprintf("db-%d", i), Interface: "net1",
		Holder: holder(i), Written: noon(),
	}}
}

func holder(i int) sticky.Holder {
	return sticky.Holder{NodeName: fmt.Sprintf("node-%d", i), MachineID: fmt.Sprintf("machine-%d", i)}
}

// made creates a lease.
func made(t *testing.T, s sticky.Store, l sticky.Lease) sticky.Lease {
	t.Helper()
	got, err := s.Create(t.Context(), l)
	if err != nil {
		t.Fatalf("create %s: %v", l.Name, err)
	}
	return got
}

func wantError(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// wantKept reads a lease.
func wantKept(t *testing.T, s sticky.Store, want sticky.Lease) {
	t.Helper()
	there, err := s.Get(t.Context(), want.Name)
	if diff := cmp.Diff(want, there); err != nil || diff != "" {
		t.Errorf("error %v, (-want +got)\n%s", err, diff)
	}
}

func keeps(t *testing.T, s sticky.Store, pool string) {
	want := sample(pool, 3)
	got := made(t, s, want)
	if got.UID == "" || got.ResourceVersion == "" || got.Created.IsZero() {
		t.Errorf("created %+v", got)
	}
	wantKept(t, s, got)
	want.UID, want.ResourceVersion, want.Created = got.UID, got.ResourceVersion, got.Created
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-sent +got)\n%s", diff)
	}
}

func keepsForOperators(t *testing.T, s sticky.Store, pool string) {
	l := sample(pool, 3)
	l.Spec.Keep, l.Spec.Holder, l.Spec.Written = true, sticky.Holder{}, time.Time{}
	got := made(t, s, l)
	if got.Spec != l.Spec {
		t.Errorf("got %+v, want %+v", got.Spec, l.Spec)
	}
	wantKept(t, s, got)
	got.Spec.Holder, got.Spec.Written = holder(1), noon()
	now, err := s.Update(t.Context(), got)
	if err != nil || now.Spec != got.Spec {
		t.Errorf("got %+v, error %v, want %+v", now.Spec, err, got.Spec)
	}
}

func oneOfMany(t *testing.T, s sticky.Store, pool string) {
	const many = 16
	errs := make([]error, many)
	var all sync.WaitGroup
	for i := range many {
		l := sample(pool, 0)
		l.Spec.Holder = holder(i)
		all.Go(func() { _, errs[i] = s.Create(t.Context(), l) })
	}
	all.Wait()
	wantOne(t, s, pool+"-s0", errs)
}

// wantOne looks who of many has a lease: the one who was told so.
func wantOne(t *testing.T, s sticky.Store, name string, errs []error, others ...error) {
	t.Helper()
	winner := slices.Index(errs, nil)
	for i, err := range errs {
		if i != winner && !errors.Is(err, block.ErrExists) && !slices.ContainsFunc(others, func(o error) bool { return errors.Is(err, o) }) {
			t.Errorf("writer %d, beside %d: %v", i, winner, err)
		}
	}
	got, err := s.Get(t.Context(), name)
	if winner < 0 || err != nil || got.Spec.Holder != holder(winner) {
		t.Errorf("error %v; %+v has it, and number %d was told so", err, got.Spec.Holder, winner)
	}
}

func notFound(t *testing.T, s sticky.Store, pool string) {
	_, err := s.Get(t.Context(), pool+"-s0")
	wantError(t, "get", err, block.ErrNotFound)
	l := sample(pool, 0)
	l.UID, l.ResourceVersion = "00000000-0000-0000-0000-000000000000", "1"
	_, err = s.Update(t.Context(), l)
	wantError(t, "update", err, block.ErrNotFound)
	wantError(t, "delete", s.Delete(t.Context(), l.Name, l.UID, "1"), block.ErrNotFound)
}

func lists(t *testing.T, s sticky.Store, pool string) {
	racked, twice, free := sample(pool, 3), sample(pool, 4), sample(pool, 5)
	racked.Name, racked.Spec.Rack = pool+".r1-s3", "r1"
	twice.Spec.Pod, twice.Spec.Interface = "db-1", "net2"
	free.Spec.Holder = sticky.Holder{}
	for _, l := range []sticky.Lease{sample(pool, 1), sample(pool, 2), racked, twice, free, sample(pool+"q", 1)} {
		made(t, s, l)
	}
	db1 := nodefile.Key{Namespace: "default", Pod: "db-1", Interface: "net1"}
	for _, tt := range []struct {
		q    sticky.Query
		want []string
	}{
		{sticky.Query{Pool: pool}, []string{pool + "-s1", pool + "-s2", pool + "-s4", pool + "-s5", pool + ".r1-s3"}},
		{sticky.Query{Pool: pool, Key: db1}, []string{pool + "-s1"}},
		{sticky.Query{Pool: pool, Node: "node-3"}, []string{pool + ".r1-s3"}},
		{sticky.Query{Pool: pool, Node: "node-5"}, nil},
		{sticky.Query{Pool: pool + "q", Key: db1, Node: "node-1"}, []string{pool + "q-s1"}},
		{sticky.Query{Pool: pool + "none"}, nil},
	} {
		got, err := s.List(t.Context(), tt.q)
		var names []string
		for _, l := range got {
			names = append(names, l.Name)
			wantKept(t, s, l)
		}
		slices.Sort(names)
		if diff := cmp.Diff(tt.want, names); err != nil || diff != "" {
			t.Errorf("%+v: error %v, (-want +got)\n%s", tt.q, err, diff)
		}
	}
}

func updates(t *testing.T, s sticky.Store, pool string) {
	l := made(t, s, sample(pool, 1))
	want := l
	want.Spec.Holder, want.Spec.Written = holder(2), noon().Add(time.Minute)
	meant := want
	meant.Spec.Keep, meant.Spec.Pod = true, "another-1"
	got, err := s.Update(t.Context(), meant)
	if err != nil || got.ResourceVersion == l.ResourceVersion {
		t.Fatalf("error %v, version %q after %q", err, got.ResourceVersion, l.ResourceVersion)
	}
	want.ResourceVersion = got.ResourceVersion
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	wantKept(t, s, want)
}

func releases(t *testing.T, s sticky.Store, pool string) {
	l := made(t, s, sample(pool, 1))
	l.Spec.Holder, l.Spec.Written = sticky.Holder{}, noon().Add(time.Minute)
	got, err := s.Update(t.Context(), l)
	if err != nil || got.Spec != l.Spec {
		t.Errorf("got %+v, error %v, want %+v", got.Spec, err, l.Spec)
	}
	wantKept(t, s, got)
}

func updatesOnce(t *testing.T, s sticky.Store, pool string) {
	const many = 16
	l := made(t, s, sample(pool, 0))
	errs := make([]error, many)
	var all sync.WaitGroup
	for i := range many {
		mine := l
		mine.Spec.Holder, mine.Spec.Written = holder(i), noon().Add(time.Duration(i+1)*time.Minute)
		all.Go(func() { _, errs[i] = s.Update(t.Context(), mine) })
	}
	all.Wait()
	wantOne(t, s, pool+"-s0", errs, block.ErrConflict)
}

func updatesAnother(t *testing.T, s sticky.Store, pool string) {
	l := made(t, s, sample(pool, 1))
	other := l
	other.UID, other.Spec.Holder = "00000000-0000-0000-0000-000000000000", holder(2)
	_, err := s.Update(t.Context(), other)
	wantError(t, "update", err, block.ErrConflict)
	wantKept(t, s, l)
}

func deletes(t *testing.T, s sticky.Store, pool string) {
	l, other := made(t, s, sample(pool, 1)), made(t, s, sample(pool, 2))
	wantError(t, "with another uid", s.Delete(t.Context(), l.Name, other.UID, l.ResourceVersion), block.ErrConflict)
	if err := s.Delete(t.Context(), l.Name, l.UID, l.ResourceVersion); err != nil {
		t.Fatal(err)
	}
	_, err := s.Get(t.Context(), l.Name)
	wantError(t, "get", err, block.ErrNotFound)
	wantKept(t, s, other)
}

func deletesChanged(t *testing.T, s sticky.Store, pool string) {
	l := made(t, s, sample(pool, 1))
	changed := l
	changed.Spec.Written = noon().Add(time.Minute)
	now, err := s.Update(t.Context(), changed)
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, "delete", s.Delete(t.Context(), l.Name, l.UID, l.ResourceVersion), block.ErrConflict)
	wantKept(t, s, now)
}

func again(t *testing.T, s sticky.Store, pool string) {
	l := made(t, s, sample(pool, 1))
	if err := s.Delete(t.Context(), l.Name, l.UID, l.ResourceVersion); err != nil {
		t.Fatal(err)
	}
	next := made(t, s, sample(pool, 1))
	if next.UID == l.UID {
		t.Errorf("two leases have the uid %s", l.UID)
	}
	wantError(t, "delete the first", s.Delete(t.Context(), l.Name, l.UID, l.ResourceVersion), block.ErrConflict)
	_, err := s.Update(t.Context(), l)
	wantError(t, "update the first", err, block.ErrConflict)
	wantKept(t, s, next)
}

func noTime(t *testing.T, s sticky.Store, pool string) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Create(ctx, sample(pool, 1))
	wantError(t, "create", err, block.ErrUnknown)
	_, err = s.List(ctx, sticky.Query{Pool: pool})
	wantError(t, "list", err, block.ErrUnknown)
}
