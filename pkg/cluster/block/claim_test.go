// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
)

// faulty makes one of four calls go wrong, in one way or another.
func faulty(seed uint64) func(blocktest.Op, string) blocktest.Fault {
	random := rand.New(rand.NewPCG(seed, 2))
	return func(blocktest.Op, string) blocktest.Fault {
		faults := []blocktest.Fault{blocktest.Refused, blocktest.Lost, blocktest.Landed, blocktest.Late}
		if n := random.IntN(16); n < len(faults) {
			return faults[n]
		}
		return blocktest.None
	}
}

// TestNodesThatClaimAtOnceNeverShareABlock claims and asserts with many nodes
// on a store that loses requests and answers, and does some late, in a pool that is
// just big enough, and one above smallPool.
func TestNodesThatClaimAtOnceNeverShareABlock(t *testing.T) {
	t.Parallel()
	for _, blocks := range []int{64, 2048} {
		for seed := range uint64(2) {
			t.Run(fmt.Sprintf("%d blocks, seed %d", blocks, seed), func(t *testing.T) {
				t.Parallel()
				const each = 2
				s, store := sized(t, blocks), blocktest.NewMem()
				store.Fault, store.Lag = faulty(seed), 5
				nodes := min(blocks, 256) / each
				got := make([][]block.Block, nodes)
				var all sync.WaitGroup
				for i := range nodes {
					all.Go(func() {
						c := claimer(store, i)
						c.Wait = func(ctx context.Context, _ time.Duration) error {
							store.Land()
							return ctx.Err()
						}
						for range each {
							b, err := c.Claim(t.Context(), s, got[i])
							if err != nil {
								t.Errorf("node %d: %v", i, err)
								return
							}
							got[i] = append(got[i], b.Block)
						}
					})
				}
				all.Wait()
				for store.Land() { // to no avail
				}
				eachHasItsOwn(t, store, got)
			})
		}
	}
}

// eachHasItsOwn compares what nodes were told with what there is: nothing twice,
// nothing lost.
func eachHasItsOwn(t *testing.T, store *blocktest.Mem, got [][]block.Block) {
	t.Helper()
	owner := map[string]string{}
	for i, blocks := range got {
		for _, b := range blocks {
			if other := owner[b.Name]; other != "" {
				t.Errorf("%s was given to %s and node-%d", b.Name, other, i)
			}
			owner[b.Name] = fmt.Sprintf("node-%d", i)
		}
	}
	there := store.Snapshot()
	for _, b := range there {
		if b.Spec.NodeName != owner[b.Name] {
			t.Errorf("%s is %s's, and %q was told that it is its", b.Name, b.Spec.NodeName, owner[b.Name])
		}
	}
	if len(there) != len(owner) {
		t.Errorf("%d blocks, and nodes were told of %d", len(there), len(owner))
	}
}

func TestNodesWithHintsDoNotMeet(t *testing.T) {
	t.Parallel()
	s, store := sized(t, 256), blocktest.NewMem()
	for i := range 256 {
		c := claimer(store, i)
		c.Node.Own = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}
		got, err := c.Claim(t.Context(), s, nil)
		if err != nil || got.Conflicts != 0 {
			t.Fatalf("node %d: %d conflicts, error %v", i, got.Conflicts, err)
		}
	}
	if creates := store.Calls(blocktest.Create); creates != 256 {
		t.Errorf("%d creates for 256 nodes", creates)
	}
}

func TestAClaimIsOneListAndOneCreate(t *testing.T) {
	t.Parallel()
	for _, blocks := range []int{64, 2048} {
		store := blocktest.NewMem()
		mustClaim(t, claimer(store, 1), sized(t, blocks))
		if l, c, rest := store.Calls(blocktest.List), store.Calls(blocktest.Create), store.Calls(blocktest.Get)+store.Calls(blocktest.Touch); l != 1 || c != 1 || rest != 0 {
			t.Errorf("%d blocks: %d lists, %d creates, %d others", blocks, l, c, rest)
		}
	}
}

func TestARestartedNodeFindsItsBlocks(t *testing.T) {
	t.Parallel()
	for _, blocks := range []int{64, 2048} {
		s, store := sized(t, blocks), blocktest.NewMem()
		store.Lag = 100 // a cache that knows nothing
		c := claimer(store, 1)
		first := mustClaim(t, c, s)
		second := mustClaim(t, c, s, first)
		names := []string{mustClaim(t, claimer(store, 1), s).Name, mustClaim(t, claimer(store, 1), s, first).Name}
		if !slices.Equal(names, []string{first.Name, second.Name}) {
			t.Errorf("claimed %v after %s and %s", names, first.Name, second.Name)
		}
		if there := store.Snapshot(); len(there) != 2 {
			t.Errorf("%d blocks after a restart, 2 before", len(there))
		}
		store.Lag = 0
		if own, err := claimer(store, 1).Own(t.Context(), s); err != nil || len(own) != 2 {
			t.Errorf("%d of 2 blocks, error %v", len(own), err)
		}
	}
}

func TestAFullPoolIsExhausted(t *testing.T) {
	t.Parallel()
	for _, blocks := range []int{16, 2048} {
		s, store := sized(t, blocks), blocktest.NewMem()
		for n := range blocks {
			fill(t, store, s, n)
		}
		c := claimer(store, 1)
		c.Machine = func(_ context.Context, node string) (string, error) {
			t.Errorf("%d blocks: it asks about %s, which has another machine-id", blocks, node)
			return "", nil
		}
		_, err := c.Claim(t.Context(), s, nil)
		if cnierr.CodeOf(err) != cnierr.PoolExhausted {
			t.Errorf("%d blocks: %v", blocks, err)
		}
		if lists := store.Calls(blocktest.List); lists > 3 {
			t.Errorf("%d blocks: %d lists", blocks, lists)
		}
		if creates := store.Calls(blocktest.Create) - blocks; creates > 256 {
			t.Errorf("%d blocks: %d creates to no avail", blocks, creates)
		}
	}
}

// fill gives block n to another node.
func fill(t *testing.T, store *blocktest.Mem, s block.Space, n int) block.Block {
	t.Helper()
	index := s.Index(n)
	b, err := store.Create(t.Context(), block.Block{Name: s.Name(index), Spec: block.Spec{
		Pool: "gpu", Index: index, Size: 16, Owner: block.Owner{NodeName: fmt.Sprintf("other-%d", n), MachineID: fmt.Sprintf("other-%d", n)},
	}})
	must(t, err)
	return b
}

func TestABlockIsTriedOnce(t *testing.T) {
	t.Parallel()
	s, store := sized(t, 16), blocktest.NewMem()
	for n := range 16 {
		fill(t, store, s, n)
	}
	store.Lag = 16 // a cache that knows nothing
	c := claimer(store, 1)
	c.Node.Own = []netip.Addr{netip.MustParseAddr("10.1.0.9")}
	if _, err := c.Claim(t.Context(), s, nil); cnierr.CodeOf(err) != cnierr.PoolExhausted {
		t.Error(err)
	}
	if creates := store.Calls(blocktest.Create) - 16; creates != 16 {
		t.Errorf("%d creates in a pool of 16 blocks", creates)
	}
	store.Lag = 0 // the next claim sees it in the list
	if _, err := c.Claim(t.Context(), s, nil); cnierr.CodeOf(err) != cnierr.PoolExhausted || store.Calls(blocktest.Create) != 32 {
		t.Errorf("%d creates more: %v", store.Calls(blocktest.Create)-32, err)
	}
}

func TestABlockThatHasJustBeenFreedIsFound(t *testing.T) {
	t.Parallel()
	s, store := sized(t, 16), blocktest.NewMem()
	var last block.Block
	for n := range 16 {
		last = fill(t, store, s, n)
	}
	must(t, store.Delete(t.Context(), last.Name, last.UID, last.ResourceVersion))
	store.Lag = 1 // to a cached list the pool is full
	if got := mustClaim(t, claimer(store, 1), s); got.Name != last.Name {
		t.Errorf("got %s, free was %s", got.Name, last.Name)
	}
}

// asked is a store that notes what is listed.
type asked struct {
	*blocktest.Mem
	queries []block.Query
}

func (a *asked) List(ctx context.Context, q block.Query) ([]block.Block, error) {
	a.queries = append(a.queries, q)
	return a.Mem.List(ctx, q)
}

func TestALargePoolIsNotListed(t *testing.T) {
	t.Parallel()
	for blocks, want := range map[int]block.Query{
		1024: {Pool: "gpu", Freshness: block.Cached},
		2048: {Pool: "gpu", Freshness: block.Cached, MachineID: fmt.Sprintf("%032x", 1)},
	} {
		store := &asked{Mem: blocktest.NewMem()}
		mustClaim(t, claimer(store, 1), sized(t, blocks))
		if len(store.queries) != 1 || store.queries[0] != want {
			t.Errorf("%d blocks: %+v", blocks, store.queries)
		}
	}
}

// An agent that starts in a large pool has asked for its blocks just before it claims
// one. In a small pool it has not asked for those of others.
func TestANodeThatStartsAsksForItsBlocksOnce(t *testing.T) {
	t.Parallel()
	for blocks, want := range map[int]int{64: 2, 2048: 1} {
		s, store := sized(t, blocks), blocktest.NewMem()
		mustClaim(t, claimer(store, 2), s)
		lists, creates := store.Calls(blocktest.List), store.Calls(blocktest.Create)
		c := claimer(store, 1)
		if own, err := c.Own(t.Context(), s); err != nil || len(own) != 0 {
			t.Fatalf("%d blocks: own %v, error %v", blocks, names(own), err)
		}
		got, err := c.Claim(t.Context(), s, nil)
		if err != nil || got.Lists != want-1 {
			t.Errorf("%d blocks: %d lists for the claim, error %v", blocks, got.Lists, err)
		}
		lists, creates = store.Calls(blocktest.List)-lists, store.Calls(blocktest.Create)-creates
		if lists != want || creates != 1 {
			t.Errorf("%d blocks: %d lists and %d creates, want %d and 1", blocks, lists, creates, want)
		}
	}
}

func TestABlockThatOwnHasFoundIsAdopted(t *testing.T) {
	t.Parallel()
	s, store := sized(t, 2048), blocktest.NewMem()
	before := mustClaim(t, claimer(store, 1), s)
	c := claimer(store, 1)
	c.Node.Own = []netip.Addr{netip.MustParseAddr("10.1.0.9")} // it would begin elsewhere now
	lists := store.Calls(blocktest.List)
	if own, err := c.Own(t.Context(), s); err != nil || len(own) != 1 {
		t.Fatalf("own %v, error %v", names(own), err)
	}
	got := mustClaim(t, c, s)
	if lists = store.Calls(blocktest.List) - lists; got.UID != before.UID || lists != 1 {
		t.Errorf("got %s after %d lists, the node has %s", got.Name, lists, before.Name)
	}
	// It was told to the caller, and is not given once more.
	if next := mustClaim(t, c, s, got); next.Name == before.Name {
		t.Errorf("%s once more", next.Name)
	}
}

// Another agent of this node, which is about to end, claims a block behind Own; or the
// node is in another rack now.
func TestWhatOwnHasFoundIsForgotten(t *testing.T) {
	t.Parallel()
	const racked = `{"rackLabel": "rack", "rails": [{"subnets": [{"subnet": "10.{rack}.0.0/17"}]}]}`
	for name, tt := range map[string]struct {
		rack string
		now  time.Duration
	}{"after a while": {"1", 5 * time.Second}, "in another rack": {"2", 0}} {
		store := blocktest.NewMem()
		c := claimer(store, 1)
		if own, err := c.Own(t.Context(), space(t, racked, "1")); err != nil || len(own) != 0 {
			t.Fatalf("own %v, error %v", names(own), err)
		}
		s := space(t, racked, tt.rack)
		theirs := mustClaim(t, claimer(store, 1), s)
		c.Node.Own = []netip.Addr{netip.MustParseAddr("10." + tt.rack + ".0.9")} // it would begin elsewhere
		c.Now = func() time.Duration { return tt.now }
		if got := mustClaim(t, c, s); got.Name != theirs.Name {
			t.Errorf("%s: got %s, the node has %s", name, got.Name, theirs.Name)
		}
	}
}

// behind is a store with cached lists that know nothing.
type behind struct{ *blocktest.Mem }

func (b behind) List(ctx context.Context, q block.Query) ([]block.Block, error) {
	if q.Freshness == block.Cached {
		return nil, nil
	}
	return b.Mem.List(ctx, q)
}

// The node has its second block, because another node had the first one.
func TestABlockOfTheNodeIsAdoptedWhereItIsMet(t *testing.T) {
	t.Parallel()
	s, store := sized(t, 2048), blocktest.NewMem()
	first := mustClaim(t, claimer(blocktest.NewMem(), 1), s)
	fill(t, store, s, first.Spec.Index)
	second := mustClaim(t, claimer(store, 1), s)
	if got := mustClaim(t, claimer(behind{store}, 1), s); got.UID != second.UID {
		t.Errorf("got %s, the node has %s", got.Name, second.Name)
	}
}

func TestTheLastBlockIsFound(t *testing.T) {
	t.Parallel()
	for _, blocks := range []int{16, 2048} {
		s, store := sized(t, blocks), blocktest.NewMem()
		for n := range blocks - 1 {
			fill(t, store, s, n)
		}
		store.Lag = blocks // a cache that knows nothing
		if got := mustClaim(t, claimer(store, 1), s); got.Spec.Index != s.Index(blocks-1) {
			t.Errorf("%d blocks: got %d", blocks, got.Spec.Index)
		}
	}
}

// One node cannot stop the others with a block that does not fit the pool. The blocks
// that share host indexes with it are not claimed, and all others are.
func TestABlockThatDoesNotFitIsPassedOver(t *testing.T) {
	t.Parallel()
	for _, foe := range []struct {
		index, size int
		shares      []int // indexes of blocks of 16
	}{
		{4, 48, []int{12, 13, 14}},
		{8, 8, []int{4}}, // the first half of a block
		{11, 8, []int{5}},
		{1, 24, []int{1, 2}},
		{15, 17, []int{15}}, // and more than the pool has
		{3, 1, []int{0}},
		{1 << 60, 32, nil}, // the product is no number
		{1, 1 << 40, nil},
	} {
		for _, blocks := range []int{16, 2048} {
			s, store := sized(t, blocks), blocktest.NewMem()
			theirs := block.Spec{Pool: "gpu", Index: foe.index, Size: foe.size, Owner: block.Owner{NodeName: "foe", MachineID: "foe"}}
			if _, err := store.Create(t.Context(), block.Block{Name: s.Name(foe.index), Spec: theirs}); err != nil {
				t.Fatal(err)
			}
			var doubts []string
			c := claimer(store, 2)
			c.Node.Own = []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(foe.index)})} // it begins with the foe's block
			c.Doubt = func(err error) { doubts = append(doubts, err.Error()) }
			if _, err := c.Own(t.Context(), s); err != nil {
				t.Errorf("%d blocks: own: %v", blocks, err)
			}
			taken := map[int]bool{}
			if foe.index < 16 { // the name of a block of the pool
				taken[foe.index] = true
			}
			for _, i := range foe.shares {
				taken[i] = true
			}
			var have []block.Block
			for range 16 - len(taken) {
				have = append(have, mustClaim(t, c, s, have...))
			}
			for _, b := range have {
				if b.Spec.Index == foe.index || blocks == 16 && taken[b.Spec.Index] {
					t.Errorf("%+v of %d blocks: claimed %s", foe, blocks, b.Name)
				}
			}
			met := blocks == 16 || foe.index < blocks
			if met && (len(doubts) == 0 || !strings.Contains(doubts[0], "they would overlap")) {
				t.Errorf("%+v of %d blocks: doubts %q", foe, blocks, doubts)
			}
			if _, err := c.Claim(t.Context(), s, have); blocks == 16 && cnierr.CodeOf(err) != cnierr.PoolExhausted {
				t.Errorf("%+v: one block more: %v, want code %d", foe, err, cnierr.PoolExhausted)
			}
		}
	}
}

func TestABlockOfTheNodeThatDoesNotFitStopsAClaim(t *testing.T) {
	t.Parallel()
	store := blocktest.NewMem()
	mustClaim(t, claimer(store, 1), space(t, `{"blockSize": 8, "rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}]}`, ""))
	_, err := claimer(store, 1).Claim(t.Context(), space(t, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}]}`, ""), nil)
	if cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(err.Error(), "overlap") {
		t.Error(err)
	}
}
