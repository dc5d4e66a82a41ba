// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package blocktest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// Suite tests what block.Store promises.
func Suite(t *testing.T, s block.Store) {
	k := Kind[block.Spec, block.Query]{
		Store: s, Sample: sample, Listed: listed,
		Owned: func(b block.Block, i int) block.Block { b.Spec.NodeName = fmt.Sprintf("node-%d", i); return b },
		Write: func(ctx context.Context, b block.Block) (block.Block, error) {
			return s.Touch(ctx, b.Name, b.UID)
		},
		Changed: func(b block.Block) block.Block { return b },
	}
	k.More = map[string]func(*testing.T, string){
		// A cache may not have it yet, and never has another one.
		"a peek sees the block or none": func(t *testing.T, pool string) {
			b := sample(pool, 3)
			_, err := s.Peek(t.Context(), b.Name)
			wantError(t, "peek", err, block.ErrNotFound)
			b = k.Made(t, b)
			if cached, err := s.Peek(t.Context(), b.Name); !errors.Is(err, block.ErrNotFound) && (err != nil || cached != b) {
				t.Errorf("error %v; created %+v, peeked %+v", err, b, cached)
			}
		},
		"a cached list may lack any": func(t *testing.T, pool string) {
			blocks, lists := listed(pool)
			for _, b := range blocks {
				k.Made(t, b)
			}
			for _, l := range lists {
				l.Query.Freshness = block.Cached
				if got, err := s.List(t.Context(), l.Query); err != nil || len(got) > len(l.Want) {
					t.Errorf("%+v: %d blocks, error %v", l.Query, len(got), err)
				}
			}
		},
	}
	k.Suite(t)
}

// sample is block i of a pool, of a node of that number.
func sample(poolName string, i int) block.Block {
	return block.Block{Name: fmt.Sprintf("%s-%d", poolName, i), Spec: block.Spec{
		Pool: poolName, Index: i, Size: 16, Owner: block.Owner{NodeName: fmt.Sprintf("node-%d", i), MachineID: fmt.Sprintf("machine-%d", i)},
	}}
}

func listed(pool string) ([]block.Block, []Listing[block.Query]) {
	racked := sample(pool, 3)
	racked.Name, racked.Spec.Rack = pool+".r1-3", "r1"
	return []block.Block{sample(pool, 1), sample(pool, 2), racked, sample(pool+"q", 1)}, []Listing[block.Query]{
		{block.Query{Pool: pool, Freshness: block.Latest}, []string{pool + "-1", pool + "-2", pool + ".r1-3"}},
		{block.Query{Pool: pool, Rack: "r1", Freshness: block.Latest}, []string{pool + ".r1-3"}},
		{block.Query{Pool: pool, MachineID: "machine-1", Freshness: block.Latest}, []string{pool + "-1"}},
		{block.Query{Pool: pool + "q", Freshness: block.Latest}, []string{pool + "q-1"}},
		{block.Query{Pool: pool + "none", Freshness: block.Latest}, nil},
	}
}
