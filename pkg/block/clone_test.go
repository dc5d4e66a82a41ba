// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block_test

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cnierr"
)

func TestAnotherLiveNodeWithOurMachineIDIsAnError(t *testing.T) {
	t.Parallel()
	for _, blocks := range []int{64, 2048} {
		s, store := sized(t, blocks), blocktest.NewMem()
		mustClaim(t, claimer(store, 1), s)
		clone := claimer(store, 1)
		clone.Node.Name = "clone"
		_, err := clone.Claim(t.Context(), s, nil)
		c := cnierr.CNI("rocectl", err)
		if c == nil || cnierr.Code(c.Code) != cnierr.BadConfig || !strings.Contains(c.Msg, `"node-1" and "clone" have the same machine-id`) || !strings.Contains(c.Details, "systemd-machine-id-setup") {
			t.Errorf("%d blocks: %v", blocks, c)
		}
		if _, err := clone.Own(t.Context(), s); cnierr.CodeOf(err) != cnierr.BadConfig {
			t.Errorf("%d blocks: own: %v", blocks, err)
		}
		if n := len(store.Snapshot()); n != 1 {
			t.Errorf("%d blocks: %d claimed", blocks, n)
		}
		// When the other node is no more, its machine has another name; the block
		// is not ours all the same.
		clone.Lives = func(context.Context, string) (bool, error) { return false, nil }
		if got := mustClaim(t, clone, s); got.Spec.NodeName != "clone" || len(store.Snapshot()) != 2 {
			t.Errorf("%d blocks: got %+v", blocks, got)
		}
	}
}

// A clone that a cached list does not show yet is met at its block.
func TestAnotherNodeWithOurMachineIDIsMetAtItsBlock(t *testing.T) {
	t.Parallel()
	for lives, want := range map[bool]int{true: 1, false: 2} {
		s, store := sized(t, 16), blocktest.NewMem()
		original, clone := claimer(store, 1), claimer(store, 1)
		clone.Node.Name = "clone"
		clone.Lives = func(context.Context, string) (bool, error) { return lives, nil }
		hint := []netip.Addr{netip.MustParseAddr("10.1.0.9")} // the address is cloned too
		original.Node.Own, clone.Node.Own = hint, hint
		theirs := mustClaim(t, original, s)
		store.Lag = 10
		got, err := clone.Claim(t.Context(), s, nil)
		if lives && cnierr.CodeOf(err) != cnierr.BadConfig || !lives && err != nil {
			t.Errorf("lives %t: %v", lives, err)
		}
		there := store.Snapshot()
		if len(there) != want || !slices.Contains(there, theirs) || got.Name == theirs.Name {
			t.Errorf("lives %t: got %s, there is %+v", lives, got.Name, there)
		}
	}
}

func TestANodeWithoutIdentityClaimsNothing(t *testing.T) {
	t.Parallel()
	for _, node := range []block.Node{{Name: "a"}, {MachineID: "b"}} {
		store := blocktest.NewMem()
		c := claimer(store, 1)
		c.Node = node
		if _, err := c.Claim(t.Context(), sized(t, 16), nil); cnierr.CodeOf(err) != cnierr.BadConfig || len(store.Snapshot()) != 0 {
			t.Errorf("%+v: %v", node, err)
		}
	}
}
