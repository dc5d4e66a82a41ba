// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
)

// lockstep is a store on which all nodes create at the same moment: a Create is
// done when every node that has not left waits for one. There is nothing worse
// than that for those who claim.
type lockstep struct {
	*blocktest.Mem
	mu              sync.Mutex
	active, waiting int
	open            chan struct{}
}

func newLockstep(nodes int) *lockstep {
	return &lockstep{Mem: blocktest.NewMem(), active: nodes, open: make(chan struct{})}
}

// move opens the gate if all have arrived. The lock is held.
func (l *lockstep) move() {
	if l.waiting == l.active {
		close(l.open)
		l.open, l.waiting = make(chan struct{}), 0
	}
}

func (l *lockstep) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active--
	l.move()
}

func (l *lockstep) Create(ctx context.Context, b block.Block) (block.Block, error) {
	l.mu.Lock()
	open := l.open
	l.waiting++
	l.move()
	l.mu.Unlock()
	<-open
	return l.Mem.Create(ctx, b)
}

// together lets so many nodes claim a block each in lockstep, and returns the
// mean numbers of conflicts and lists.
func together(t *testing.T, s block.Space, nodes int, hinted string) (conflicts, lists float64) {
	t.Helper()
	store := newLockstep(nodes)
	var met, listed atomic.Int64
	var all sync.WaitGroup
	for i := range nodes {
		c := claimer(store, i)
		if hinted != "" {
			c.Node.Own = []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte((i + 1) >> 8), byte(i + 1)})}
		}
		all.Go(func() {
			defer store.leave()
			got, err := c.Claim(t.Context(), s, nil)
			if err != nil {
				t.Error(err)
			}
			met.Add(int64(got.Conflicts))
			listed.Add(int64(got.Lists))
		})
	}
	all.Wait()
	if there := len(store.Snapshot()); there != nodes {
		t.Errorf("%d blocks for %d nodes", there, nodes)
	}
	return float64(met.Load()) / float64(nodes), float64(listed.Load()) / float64(nodes)
}

// TestConflictsStayFew counts what a claim costs when all nodes of a pool claim
// at the same moment. A pool of 512 blocks is small: claims begin with a list;
// one of 2,048 is not.
func TestConflictsStayFew(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		blocks, percent int
		hint            string
		most            float64
	}{
		{512, 50, "", 1},
		{512, 90, "", 1},
		{512, 99, "", 1},
		{2048, 50, "", 1},
		{2048, 90, "", 1},
		{2048, 99, "", 1},
		{512, 90, "hints", 0},
		{2048, 99, "hints", 0},
	} {
		t.Run(fmt.Sprintf("%d blocks, %d %% %s", tt.blocks, tt.percent, tt.hint), func(t *testing.T) {
			t.Parallel()
			conflicts, lists := together(t, sized(t, tt.blocks), tt.blocks*tt.percent/100, tt.hint)
			t.Logf("%.2f conflicts and %.2f lists a claim", conflicts, lists)
			if conflicts > tt.most {
				t.Errorf("%.2f conflicts a claim, want at most %.0f", conflicts, tt.most)
			}
		})
	}
}

// TestConflictsOfOneMoreNode counts them for a single node that joins a pool that
// is so full.
func TestConflictsOfOneMoreNode(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		blocks, percent int
		most            float64
	}{
		{512, 50, 0},
		{512, 90, 0},
		{512, 99, 0},
		{2048, 50, 1}, // the first one is not looked at
		{2048, 90, 1},
		{2048, 99, 1},
	} {
		t.Run(fmt.Sprintf("%d blocks, %d %%", tt.blocks, tt.percent), func(t *testing.T) {
			t.Parallel()
			s, store := sized(t, tt.blocks), blocktest.NewMem()
			for _, n := range rand.New(rand.NewPCG(1, 1)).Perm(tt.blocks)[:tt.blocks*tt.percent/100] {
				fill(t, store, s, n)
			}
			const nodes = 40
			sum := 0
			for i := range nodes {
				got, err := claimer(store, i).Claim(t.Context(), s, nil)
				must(t, err)
				sum += got.Conflicts
				must(t, store.Delete(t.Context(), got.Name, got.UID, got.ResourceVersion))
			}
			mean := float64(sum) / nodes
			t.Logf("%.2f conflicts a claim", mean)
			if mean > tt.most {
				t.Errorf("%.2f conflicts a claim, want at most %.0f", mean, tt.most)
			}
		})
	}
}

// rival is a store on which another node is faster for the first block that is free.
type rival struct {
	*blocktest.Mem
	came bool
}

func (r *rival) Create(ctx context.Context, b block.Block) (block.Block, error) {
	if !r.came {
		other := b
		other.Spec.NodeName, other.Spec.MachineID = "rival", "rival"
		_, err := r.Mem.Create(ctx, other)
		r.came = err == nil
	}
	return r.Mem.Create(ctx, b)
}

func TestAClaimCountsItsConflictsAndLists(t *testing.T) {
	t.Parallel()
	got, err := claimer(&rival{Mem: blocktest.NewMem()}, 1).Claim(t.Context(), sized(t, 16), nil)
	if err != nil || got.Conflicts != 1 || got.Lists != 1 {
		t.Errorf("%d conflicts and %d lists, error %v; want one of each", got.Conflicts, got.Lists, err)
	}
}

// sorted is a store with lists in the order of their indexes.
type sorted struct{ *blocktest.Mem }

func (s sorted) List(ctx context.Context, q block.Query) ([]block.Block, error) {
	out, err := s.Mem.List(ctx, q)
	slices.SortFunc(out, func(a, b block.Block) int { return a.Spec.Index - b.Spec.Index })
	return out, err
}

// TestTheBlockThatTheCallerDoesNotKnowIsAdopted has one before it that the caller knows, one that has
// no address any more, and one that another node has claimed since the list.
func TestTheBlockThatTheCallerDoesNotKnowIsAdopted(t *testing.T) {
	t.Parallel()
	whole := space(t, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}]}`, "")
	now := space(t, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24", "exclude": ["10.0.0.0/28"]}]}]}`, "")
	store := sorted{blocktest.NewMem()}
	var all []block.Block
	for range whole.Blocks() {
		all = append(all, mustClaim(t, claimer(store, 1), whole, all...))
	}
	slices.SortFunc(all, func(a, b block.Block) int { return a.Spec.Index - b.Spec.Index })
	if _, err := store.List(t.Context(), block.Query{Freshness: block.Cached}); err != nil { // the cache knows all of it
		t.Fatal(err)
	}
	store.Lag = 10
	must(t, store.Delete(t.Context(), all[2].Name, all[2].UID, all[2].ResourceVersion))
	theirs := all[2]
	theirs.Spec.Owner = block.Owner{NodeName: "other", MachineID: "other"}
	if _, err := store.Create(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	if got := mustClaim(t, claimer(store, 1), now, all[1]); got.Name != all[3].Name || got.UID != all[3].UID {
		t.Errorf("got %s, want %s", got.Name, all[3].Name)
	}
}

// TestACacheThatIsBehindHidesNoBlock has a large pool of which two blocks are free,
// a cache that has not heard of it, and a rival for the first of them.
func TestACacheThatIsBehindHidesNoBlock(t *testing.T) {
	t.Parallel()
	s, store := sized(t, 2048), &rival{Mem: blocktest.NewMem()}
	for n := range 2048 {
		fill(t, store.Mem, s, n)
	}
	if _, err := store.List(t.Context(), block.Query{Freshness: block.Cached}); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{77, 1234} {
		free, err := store.Get(t.Context(), s.Name(s.Index(n)))
		must(t, err)
		must(t, store.Delete(t.Context(), free.Name, free.UID, free.ResourceVersion))
	}
	store.Lag = 10
	if got, err := claimer(store, 1).Claim(t.Context(), s, nil); err != nil || !store.came {
		t.Errorf("got %q, error %v; want the block that the rival (came: %v) has left", got.Name, err, store.came)
	}
}
