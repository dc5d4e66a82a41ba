// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package reap_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/block"
)

// pool64 is a space of 64 blocks.
func pool64(t *testing.T) block.Space {
	t.Helper()
	p := block.Pool{Name: "gpu", Spec: block.PoolSpec{Rails: []block.Rail{{Subnets: []block.Subnet{{Subnet: "10.0.0.0/22"}}}}}}
	s, err := p.Space("")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// owner is the claimer of node i, which never waits.
func owner(store block.Store, i int) *block.Claimer {
	return &block.Claimer{
		Doubt:   func(error) {},
		Store:   store,
		Node:    block.Node{Name: fmt.Sprintf("node-%d", i), MachineID: fmt.Sprintf("%032x", i)},
		Machine: func(context.Context, string) (string, error) { return "", nil },
		Wait:    func(ctx context.Context, _ time.Duration) error { return ctx.Err() },
		Rand:    func() float64 { return 0 },
		Now:     func() time.Duration { return 0 },
	}
}

// claim has node i claim a block.
func claim(t *testing.T, store block.Store, i int) block.Block {
	t.Helper()
	got, err := owner(store, i).Claim(t.Context(), pool64(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	return got.Block
}

func names(blocks []block.Block) (out []string) {
	for _, b := range blocks {
		out = append(out, b.Name)
	}
	return out
}
