// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
)

func names(blocks []block.Block) (out []string) {
	for _, b := range blocks {
		out = append(out, b.Name)
	}
	return out
}

func TestABlockThatARestoreForgotIsMadeAgain(t *testing.T) {
	t.Parallel()
	s, store := sized(t, 64), blocktest.NewMem()
	c := claimer(store, 1)
	first := mustClaim(t, c, s)
	backup := store.Snapshot()
	second := mustClaim(t, c, s, first)
	store.Restore(backup)
	for range 2 { // and again: nothing more happens
		kept, lost, err := claimer(store, 1).Assert(t.Context(), s, []block.Block{first, second})
		if diff := cmp.Diff([]string{first.Name, second.Name}, names(kept)); err != nil || len(lost) > 0 || diff != "" {
			t.Fatalf("error %v, lost %v, (-want +kept)\n%s", err, names(lost), diff)
		}
		if len(store.Snapshot()) != 2 || kept[1].UID == second.UID {
			t.Errorf("%d blocks; uid %s after %s", len(store.Snapshot()), kept[1].UID, second.UID)
		}
	}
}

func TestABlockThatAnotherNodeHasClaimedSinceIsLost(t *testing.T) {
	t.Parallel()
	s, store := sized(t, 1), blocktest.NewMem()
	b := mustClaim(t, claimer(store, 1), s)
	store.Restore(nil)
	theirs := mustClaim(t, claimer(store, 2), s)
	kept, lost, err := claimer(store, 1).Assert(t.Context(), s, []block.Block{b})
	if cnierr.CodeOf(err) != cnierr.Limited || len(kept) != 0 || len(lost) != 1 || lost[0] != b {
		t.Errorf("kept %v, lost %v, error %v", names(kept), names(lost), err)
	}
	if there := store.Snapshot(); len(there) != 1 || there[0] != theirs {
		t.Errorf("there is %+v, want %+v", there, theirs)
	}
}

func TestBlocksStayWhileTheStoreIsUnreachable(t *testing.T) {
	t.Parallel()
	s, store := sized(t, 64), blocktest.NewMem()
	b := mustClaim(t, claimer(store, 1), s)
	for _, fault := range []blocktest.Fault{blocktest.Lost, blocktest.Landed, blocktest.Refused} {
		store.Fault = func(blocktest.Op, string) blocktest.Fault { return fault }
		c := claimer(store, 1)
		ctx, cancel := context.WithCancel(t.Context())
		c.Wait = func(context.Context, time.Duration) error { cancel(); return ctx.Err() }
		kept, lost, err := c.Assert(ctx, s, []block.Block{b})
		if cnierr.CodeOf(err) != cnierr.TryAgain || len(lost) != 0 || len(kept) != 1 {
			t.Errorf("%s: kept %v, lost %v, error %v", fault, names(kept), names(lost), err)
		}
	}
}

func TestABlockIsKeptWhenThePoolIsChangedUnderIt(t *testing.T) {
	t.Parallel()
	store := blocktest.NewMem()
	c := claimer(store, 1)
	b := mustClaim(t, c, space(t, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}]}`, ""))
	kept, lost, err := c.Assert(t.Context(), space(t, `{"blockSize": 8, "rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}]}`, ""), []block.Block{b})
	if cnierr.CodeOf(err) != cnierr.BadConfig || len(kept) != 1 || len(lost) != 0 {
		t.Errorf("kept %v, lost %v, error %v", names(kept), names(lost), err)
	}
}

// An agent that could not wait for an answer, and then asked for all that it has.
func TestABlockThatOwnHasFoundIsNotClaimedOnceMore(t *testing.T) {
	t.Parallel()
	s, store := sized(t, 64), blocktest.NewMem()
	c := claimer(store, 1)
	store.Fault = func(op blocktest.Op, _ string) blocktest.Fault {
		if op == blocktest.Create {
			return blocktest.Landed
		}
		return blocktest.None
	}
	ctx, cancel := context.WithCancel(t.Context())
	wait := c.Wait
	c.Wait = func(context.Context, time.Duration) error { cancel(); return ctx.Err() }
	if _, err := c.Claim(ctx, s, nil); cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Error(err)
	}
	c.Wait, store.Fault = wait, nil
	own, err := c.Own(t.Context(), s)
	if err != nil || len(own) != 1 {
		t.Fatalf("own %v, error %v", names(own), err)
	}
	if next := mustClaim(t, c, s, own...); next.Name == own[0].Name {
		t.Errorf("%s once more", next.Name)
	}
}

func TestAssertsLandWithAnyFault(t *testing.T) {
	t.Parallel()
	s, store := sized(t, 64), blocktest.NewMem()
	c := claimer(store, 1)
	b := mustClaim(t, c, s)
	for seed := range uint64(50) {
		store.Restore(nil)
		store.Fault = faulty(seed)
		kept, lost, err := c.Assert(t.Context(), s, []block.Block{b})
		if err != nil || len(lost) != 0 || len(kept) != 1 {
			t.Fatalf("seed %d: kept %v, lost %v, error %v", seed, names(kept), names(lost), err)
		}
		if there := store.Snapshot(); len(there) != 1 || there[0].UID != kept[0].UID {
			t.Fatalf("seed %d: there is %+v, kept %+v", seed, there, kept)
		}
	}
}
