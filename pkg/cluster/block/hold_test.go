// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
)

// TestANameIsAskedForUntilThereIsAnAnswer cuts the node off in the middle of a
// claim that lands, and of one that does not.
func TestANameIsAskedForUntilThereIsAnAnswer(t *testing.T) {
	t.Parallel()
	for _, fault := range []blocktest.Fault{blocktest.Landed, blocktest.Lost, blocktest.Refused} {
		s, store := sized(t, 64), blocktest.NewMem()
		var asked []string
		down := true
		store.Fault = func(op blocktest.Op, name string) blocktest.Fault {
			if op != blocktest.Create {
				return blocktest.None
			}
			if asked = append(asked, name); down {
				return fault
			}
			return blocktest.None
		}
		c := claimer(store, 1)
		ctx, cancel := context.WithCancel(t.Context())
		c.Wait = func(ctx context.Context, _ time.Duration) error {
			if len(asked) == 3 {
				cancel()
			}
			return ctx.Err()
		}
		_, err := c.Claim(ctx, s, nil)
		if cnierr.CodeOf(err) != cnierr.TryAgain || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", fault, err)
		}
		// By its order, and by a list that is old, it would begin elsewhere now.
		down, store.Lag = false, 10
		c.Node.Own = []netip.Addr{netip.MustParseAddr("10.1.0.9")}
		got := mustClaim(t, c, s)
		asked = slices.Compact(asked)
		if len(asked) != 1 || asked[0] != got.Name || len(store.Snapshot()) != 1 {
			t.Errorf("%s: asked for %v, got %s, there are %d blocks", fault, asked, got.Name, len(store.Snapshot()))
		}
	}
}

// A node that is in another rack now does not ask for a block of its former one.
func TestANameOfAnotherRackIsNotAskedForAgain(t *testing.T) {
	t.Parallel()
	const racks = `{"rails": [{"subnets": [{"subnet": "10.0.{rack}.0/24"}]}], "rackLabel": "rack"}`
	store, now := blocktest.NewMem(), space(t, racks, "2")
	c := claimer(store, 1)
	ctx, cancel := context.WithCancel(t.Context())
	store.Fault = func(op blocktest.Op, _ string) blocktest.Fault {
		if op != blocktest.Create || ctx.Err() != nil {
			return blocktest.None
		}
		cancel()
		return blocktest.Lost
	}
	if _, err := c.Claim(ctx, space(t, racks, "1"), nil); cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("without an answer: %v", err)
	}
	if got := mustClaim(t, c, now); now.Check(got) != nil {
		t.Errorf("got %+v: %v", got, now.Check(got))
	}
}

func TestWaitsGrowAndHonourTheServer(t *testing.T) {
	t.Parallel()
	for fault, after := range map[blocktest.Fault]time.Duration{blocktest.Lost: 0, blocktest.Refused: blocktest.RetryAfter} {
		store, left := blocktest.NewMem(), 9
		store.Fault = func(op blocktest.Op, _ string) blocktest.Fault {
			if op == blocktest.Create && left > 0 {
				left--
				return fault
			}
			return blocktest.None
		}
		var waits []time.Duration
		c := claimer(store, 1)
		c.Wait = func(_ context.Context, d time.Duration) error {
			waits = append(waits, d)
			return nil
		}
		mustClaim(t, c, sized(t, 64))
		base := 100 * time.Millisecond
		for i, d := range waits {
			if lo, hi := after+base/2, 2*after+base*3/2; d < lo || d > hi {
				t.Errorf("%s: wait %d is %v, want %v to %v", fault, i, d, lo, hi)
			}
			base = min(2*base, 5*time.Second)
		}
		if len(waits) != 9 || len(slices.Compact(slices.Clone(waits))) != 9 {
			t.Errorf("%s: waits %v", fault, waits)
		}
	}
}

// All that were refused in a second would be in that second again, when it comes.
func TestNodesThatWereRefusedComeBackApart(t *testing.T) {
	t.Parallel()
	const nodes, parts = 400, 4
	var came [parts]int
	for i := range nodes {
		store, refused := blocktest.NewMem(), false
		store.Fault = func(op blocktest.Op, _ string) blocktest.Fault {
			if op == blocktest.Create && !refused {
				refused = true
				return blocktest.Refused
			}
			return blocktest.None
		}
		c := claimer(store, i)
		c.Wait = func(_ context.Context, d time.Duration) error {
			part := int((d - blocktest.RetryAfter) * parts / blocktest.RetryAfter)
			came[min(part, parts-1)]++
			return nil
		}
		mustClaim(t, c, sized(t, 64))
	}
	for i, n := range came {
		if n < nodes/parts/3 {
			t.Errorf("part %d of the time that they were told is for %d of %d: %v", i, n, nodes, came)
		}
	}
}

// vanishing is a store in which a block is deleted just before a Get.
type vanishing struct {
	*blocktest.Mem
	gone bool
}

func (v *vanishing) Get(ctx context.Context, name string) (block.Block, error) {
	if !v.gone {
		v.gone = true
		v.Restore(nil)
	}
	return v.Mem.Get(ctx, name)
}

func TestABlockThatGoesBetweenTwoRequestsIsAskedForAgain(t *testing.T) {
	t.Parallel()
	s, store := sized(t, 1), &vanishing{Mem: blocktest.NewMem()}
	fill(t, store.Mem, s, 0)
	store.Lag = 10
	mustClaim(t, claimer(store, 1), s)
}

// TestABlockOfAnotherNodeIsNotClaimedBeforeItIsGone has the look at a block that
// exists go wrong a few times: writes cost the server most.
func TestABlockOfAnotherNodeIsNotClaimedBeforeItIsGone(t *testing.T) {
	t.Parallel()
	for _, fault := range []blocktest.Fault{blocktest.Refused, blocktest.Lost, blocktest.Landed} {
		for op, ours := range map[blocktest.Op]bool{blocktest.Get: false, blocktest.Touch: true} {
			s, store := sized(t, 1), blocktest.NewMem()
			theirs := claimer(store, 1)
			if !ours {
				theirs = claimer(store, 2)
			}
			there := mustClaim(t, theirs, s)
			store.Lag = 10 // a cache that knows nothing
			left := 5
			store.Fault = func(of blocktest.Op, _ string) blocktest.Fault {
				if of == op && left > 0 {
					left--
					return fault
				}
				return blocktest.None
			}
			before := store.Calls(blocktest.Create)
			got, err := claimer(store, 1).Claim(t.Context(), s, nil)
			if ours && (err != nil || got.UID != there.UID) || !ours && cnierr.CodeOf(err) != cnierr.PoolExhausted {
				t.Errorf("%s %s: got %+v, error %v", op, fault, got, err)
			}
			if creates := store.Calls(blocktest.Create) - before; creates != 1 || left != 0 {
				t.Errorf("%s %s: %d creates of a block that exists, %d faults left", op, fault, creates, left)
			}
		}
	}
}
