// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/pace"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// read makes a pool of what an operator writes.
func read(t *testing.T, spec string) block.Pool {
	t.Helper()
	p := block.Pool{Name: "gpu"}
	d := json.NewDecoder(strings.NewReader(spec))
	d.DisallowUnknownFields()
	must(t, d.Decode(&p.Spec))
	return p
}

// space is the space of a pool, in a rack.
func space(t *testing.T, spec, rack string) block.Space {
	t.Helper()
	p := read(t, spec)
	if err := p.Validate(); err != nil {
		t.Fatalf("validate: %v", err)
	}
	s, err := p.Space(rack)
	must(t, err)
	return s
}

// flat has 8 rails of 256 blocks, the first and last of which lack an address.
const flat = `{"template": {"count": 8, "subnets": [{"subnet": "10.{rail}.0.0/20"}]}}`

// sized is a pool of two rails with that many blocks, a power of two.
func sized(t *testing.T, blocks int) block.Space {
	t.Helper()
	length := 28
	for n := 1; n < blocks; n *= 2 {
		length--
	}
	s := space(t, fmt.Sprintf(`{"template": {"count": 2, "subnets": [{"subnet": "10.{rail}.0.0/%d"}]}}`, length), "")
	if s.Blocks() != blocks {
		t.Fatalf("%d blocks, want %d", s.Blocks(), blocks)
	}
	return s
}

// claimer is that of node i, which never really waits.
func claimer(store block.Store, i int) *block.Claimer {
	random := rand.New(rand.NewPCG(uint64(i), 1))
	return &block.Claimer{
		Doubt:   func(error) {},
		Store:   store,
		Node:    block.Node{Name: fmt.Sprintf("node-%d", i), MachineID: fmt.Sprintf("%032x", i)},
		Machine: func(context.Context, string) (string, error) { return "", nil },
		Clock: pace.Clock{
			Wait: func(ctx context.Context, _ time.Duration) error { return ctx.Err() },
			Rand: random.Float64,
			Now:  func() time.Duration { return 0 },
		},
	}
}

// mustClaim claims a block beside have.
func mustClaim(t *testing.T, c *block.Claimer, s block.Space, have ...block.Block) block.Block {
	t.Helper()
	got, err := c.Claim(t.Context(), s, have)
	if err != nil {
		t.Fatalf("claim: %v", err)
	}
	if got.Spec.NodeName != c.Node.Name || got.Spec.MachineID != c.Node.MachineID {
		t.Fatalf("%s got %+v", c.Node.Name, got)
	}
	return got.Block
}

// must is for what a test needs and does not test.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
