// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package stickytest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// suite tests a store of leases.
type suite struct {
	blocktest.Kind[sticky.Spec, sticky.Query]
	store sticky.Store
}

// Suite tests what sticky.Store promises.
func Suite(t *testing.T, s sticky.Store) {
	k := suite{store: s, Kind: blocktest.Kind[sticky.Spec, sticky.Query]{
		Store: s, Sample: sample, Listed: listed, Write: s.Update,
		Owned: func(l sticky.Lease, i int) sticky.Lease { // no two writes are the same
			l.Spec.Holder, l.Spec.Written = holder(i), noon().Add(time.Duration(i+1)*time.Minute)
			return l
		},
		Changed: func(l sticky.Lease) sticky.Lease {
			l.Spec.Holder, l.Spec.Written = holder(9), noon().Add(time.Hour)
			return l
		},
	}}
	k.More = map[string]func(*testing.T, string){
		"an update writes holder and time alone":    k.updates,
		"an update takes the holder away":           k.releases,
		"of all who update one version one does":    k.updatesOnce,
		"a lease without holder is kept without it": k.keepsForOperators,
	}
	k.Suite(t)
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

func holder(i int) block.Owner {
	return block.Owner{NodeName: fmt.Sprintf("node-%d", i), MachineID: fmt.Sprintf("machine-%d", i)}
}

func listed(pool string) ([]sticky.Lease, []blocktest.Listing[sticky.Query]) {
	racked, twice, free := sample(pool, 3), sample(pool, 4), sample(pool, 5)
	racked.Name, racked.Spec.Rack = pool+".r1-s3", "r1"
	twice.Spec.Pod, twice.Spec.Interface = "db-1", "net2"
	free.Spec.Holder = block.Owner{}
	db1 := nodefile.Key{Namespace: "default", Pod: "db-1", Interface: "net1"}
	return []sticky.Lease{sample(pool, 1), sample(pool, 2), racked, twice, free, sample(pool+"q", 1)}, []blocktest.Listing[sticky.Query]{
		{Query: sticky.Query{Pool: pool}, Want: []string{pool + "-s1", pool + "-s2", pool + "-s4", pool + "-s5", pool + ".r1-s3"}},
		{Query: sticky.Query{Pool: pool, Rack: "r1"}, Want: []string{pool + ".r1-s3"}},
		{Query: sticky.Query{Pool: pool, Key: db1}, Want: []string{pool + "-s1"}},
		{Query: sticky.Query{Pool: pool, Node: "node-3"}, Want: []string{pool + ".r1-s3"}},
		{Query: sticky.Query{Pool: pool, Node: "node-5"}},
		{Query: sticky.Query{Pool: pool + "q", Key: db1, Node: "node-1"}, Want: []string{pool + "q-s1"}},
		{Query: sticky.Query{Pool: pool + "none"}},
	}
}

func (k suite) keepsForOperators(t *testing.T, pool string) {
	l := sample(pool, 3)
	l.Spec.Keep, l.Spec.Holder, l.Spec.Written = true, block.Owner{}, time.Time{}
	got := k.Made(t, l)
	if got.Spec != l.Spec {
		t.Errorf("got %+v, want %+v", got.Spec, l.Spec)
	}
	k.WantKept(t, got)
	got.Spec.Holder, got.Spec.Written = holder(1), noon()
	now, err := k.store.Update(t.Context(), got)
	if err != nil || now.Spec != got.Spec {
		t.Errorf("got %+v, error %v, want %+v", now.Spec, err, got.Spec)
	}
}

func (k suite) updates(t *testing.T, pool string) {
	want := k.Changed(k.Made(t, sample(pool, 1)))
	meant := want
	meant.Spec.Keep, meant.Spec.Pod = true, "another-1"
	got, err := k.store.Update(t.Context(), meant)
	if err != nil {
		t.Fatal(err)
	}
	want.ResourceVersion = got.ResourceVersion
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	k.WantKept(t, want)
}

func (k suite) releases(t *testing.T, pool string) {
	l := k.Made(t, sample(pool, 1))
	l.Spec.Holder, l.Spec.Written = block.Owner{}, noon().Add(time.Minute)
	got, err := k.store.Update(t.Context(), l)
	if err != nil || got.Spec != l.Spec {
		t.Errorf("got %+v, error %v, want %+v", got.Spec, err, l.Spec)
	}
	k.WantKept(t, got)
}

func (k suite) updatesOnce(t *testing.T, pool string) {
	k.OneOfMany(t, k.Made(t, sample(pool, 0)), k.store.Update, block.ErrConflict)
}
