// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
	"github.com/roce-cni/roce-cni/pkg/base/pace"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

// space is that of a pool of two rails with that many blocks, a power of two.
func space(t testing.TB, pool string, blocks int) block.Space {
	t.Helper()
	length := 28
	for n := 1; n < blocks; n *= 2 {
		length--
	}
	p := block.Pool{Name: pool, Spec: block.PoolSpec{Template: &block.Template{
		Count: 2, Subnets: []block.Subnet{{Subnet: fmt.Sprintf("10.{rail}.0.0/%d", length)}},
	}}}
	s, err := p.Space("")
	must(t, err)
	if s.Blocks() != blocks {
		t.Fatalf("%d blocks, want %d", s.Blocks(), blocks)
	}
	return s
}

// api reaches an API server as the programs do.
func api(t testing.TB, config *rest.Config) *kube.API {
	t.Helper()
	a, err := kube.Open(config, time.Now)
	must(t, err)
	return a
}

// claimer is that of a node, which has no Node object.
func claimer(a *kube.API, name string) *block.Claimer {
	began := time.Now()
	return &block.Claimer{
		Doubt:   func(error) {},
		Store:   a.Blocks(),
		Node:    block.Node{Name: name, MachineID: ground.MachineID(name)},
		Machine: a.Machine,
		Clock:   pace.Clock{Wait: wait, Rand: rand.Float64, Now: func() time.Duration { return time.Since(began) }},
	}
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// crowd is nodes that claim at once.
type crowd struct {
	space   block.Space
	pool    string
	nodes   []*block.Claimer
	each    int // blocks that each claims
	claimed chan struct{}
	got     [][]block.Block
	effort  block.Claim // summed
	took    time.Duration
}

func newCrowd(t testing.TB, config *rest.Config, pool string, blocks, nodes, each int) *crowd {
	t.Helper()
	c := &crowd{
		space: space(t, pool, blocks), pool: pool, each: each,
		claimed: make(chan struct{}, nodes*each), got: make([][]block.Block, nodes),
	}
	for i := range nodes {
		c.nodes = append(c.nodes, claimer(api(t, config), fmt.Sprintf("%s-node-%d", pool, i)))
	}
	return c
}

// claim returns when each node has all its blocks. Each claim that succeeded is
// told to the channel claimed, which is closed in the end.
func (c *crowd) claim(t *testing.T) {
	defer close(c.claimed)
	var all sync.WaitGroup
	var sum sync.Mutex
	began := time.Now()
	for i, node := range c.nodes {
		all.Go(func() {
			for range c.each {
				b, err := node.Claim(t.Context(), c.space, c.got[i])
				if err != nil {
					t.Errorf("node %d: %v", i, err)
					return
				}
				c.got[i] = append(c.got[i], b.Block)
				sum.Lock()
				c.effort.Conflicts += b.Conflicts
				c.effort.Lists += b.Lists
				sum.Unlock()
				c.claimed <- struct{}{}
			}
		})
	}
	all.Wait()
	c.took = time.Since(began)
}

// tell prints what it took.
func (c *crowd) tell(t *testing.T) {
	t.Helper()
	t.Logf("%d nodes, %d claims in a pool of %d blocks: %d conflicts, %d lists, %.2f s",
		len(c.nodes), len(c.nodes)*c.each, c.space.Blocks(), c.effort.Conflicts, c.effort.Lists, c.took.Seconds())
}

// eachHasItsOwn compares what nodes were told with what there is: nothing twice,
// nothing lost.
func (c *crowd) eachHasItsOwn(t *testing.T, config *rest.Config) {
	t.Helper()
	owner := map[string]string{}
	for i, blocks := range c.got {
		for _, b := range blocks {
			if other := owner[b.Name]; other != "" {
				t.Errorf("%s was given to %s and to node %d", b.Name, other, i)
			}
			owner[b.Name] = b.Spec.NodeName
		}
	}
	there, err := api(t, config).Blocks().List(t.Context(), block.Query{Pool: c.pool, Freshness: block.Latest})
	must(t, err)
	for _, b := range there {
		if b.Spec.NodeName != owner[b.Name] {
			t.Errorf("%s is %s's, and %q was told that it is its", b.Name, b.Spec.NodeName, owner[b.Name])
		}
	}
	if len(there) != len(owner) || len(owner) != len(c.nodes)*c.each {
		t.Errorf("%d blocks; nodes were told of %d, and claimed %d", len(there), len(owner), len(c.nodes)*c.each)
	}
}
