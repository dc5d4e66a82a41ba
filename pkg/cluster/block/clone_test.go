// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
)

// Any node can write our machine-id into its blocks, so that does not stop a claim.
func TestAnotherLiveNodeWithOurMachineIDIsReportedAndStopsNothing(t *testing.T) {
	t.Parallel()
	for _, blocks := range []int{64, 2048} {
		s, store := sized(t, blocks), blocktest.NewMem()
		former := claimer(store, 1) // a node that is gone
		former.Node.Name = "former"
		old := mustClaim(t, former, s)
		theirs := mustClaim(t, claimer(store, 1), s)
		clone := claimer(store, 1)
		clone.Node.Name = "clone"
		clone.Machine = func(_ context.Context, node string) (string, error) {
			if node == "former" {
				return "", block.ErrNotFound
			}
			return clone.Node.MachineID, nil
		}
		var doubt error
		clone.Doubt = func(err error) { doubt = err }
		if own, err := clone.Own(t.Context(), s); err != nil || len(own) != 0 {
			t.Errorf("%d blocks: owns %v, error %v", blocks, own, err)
		}
		if got := mustClaim(t, clone, s); got.Spec.NodeName != "clone" || got.Name == theirs.Name || got.Name == old.Name || len(store.Snapshot()) != 3 {
			t.Errorf("%d blocks: got %+v", blocks, got)
		}
		want := `compare machine-ids in RailPool "gpu": nodes "node-1" and "clone" have the same machine-id ` + clone.Node.MachineID + `, and node-1 has block ` + theirs.Name
		if fmt.Sprint(doubt) != want || !strings.Contains(cnierr.CNI("", doubt).Details, "in the image of node-1 and clone") {
			t.Errorf("%d blocks: %v, want %s", blocks, doubt, want)
		}
		// When the other node is gone, there is nothing to report.
		doubt, clone.Machine = nil, noNode
		if own, err := clone.Own(t.Context(), s); err != nil || len(own) != 1 || doubt != nil {
			t.Errorf("%d blocks: owns %v, error %v, doubt %v", blocks, own, err, doubt)
		}
	}
}

// A clone in another rack has blocks that share no address with ours.
func TestACloneInAnotherRackIsReportedAsAClone(t *testing.T) {
	t.Parallel()
	const racks = `{"rails": [{"subnets": [{"subnet": "10.0.{rack}.0/24"}]}], "rackLabel": "rack"}`
	store := blocktest.NewMem()
	mustClaim(t, claimer(store, 1), space(t, racks, "2"))
	clone := claimer(store, 1)
	clone.Node.Name = "clone"
	var doubts []string
	clone.Doubt = func(err error) { doubts = append(doubts, err.Error()) }
	if own, err := clone.Own(t.Context(), space(t, racks, "1")); err != nil || len(own) != 0 {
		t.Errorf("owns %v, error %v", names(own), err)
	}
	if len(doubts) != 1 || !strings.Contains(doubts[0], "have the same machine-id") {
		t.Errorf("doubts %q", doubts)
	}
}

// Clones begin at different blocks, so that they do not meet at each.
func TestClonesHaveAnOrderOfTheirOwn(t *testing.T) {
	t.Parallel()
	s := sized(t, 256)
	first := map[string]bool{}
	for i := range 8 {
		clone := claimer(blocktest.NewMem(), 1)
		clone.Node.Name = fmt.Sprint("clone-", i)
		first[mustClaim(t, clone, s).Name] = true
	}
	if len(first) < 7 {
		t.Errorf("8 clones begin at %v", first)
	}
}

func noNode(context.Context, string) (string, error) { return "", block.ErrNotFound }

// Who does what the remedy says leaves a block under the old machine-id behind,
// which must not keep the other node from claiming until it is reaped.
func TestANodeThatGotAMachineIDOfItsOwnIsNoCloneAnyMore(t *testing.T) {
	t.Parallel()
	s, store := sized(t, 64), blocktest.NewMem()
	original, renewed := claimer(store, 1), claimer(store, 1)
	original.Node.Name, renewed.Node.MachineID = "original", "another"
	old := mustClaim(t, claimer(store, 1), s)
	original.Machine = func(context.Context, string) (string, error) { return "another", nil }
	original.Doubt = func(err error) { t.Errorf("it doubts: %v", err) }
	theirs, ours := mustClaim(t, renewed, s), mustClaim(t, original, s)
	if there := store.Snapshot(); len(there) != 3 || theirs.Name == old.Name || ours.Name == old.Name {
		t.Errorf("got %s and %s, there is %+v", theirs.Name, ours.Name, there)
	}
}

func TestANodeWithAnotherMachineIDInItsObjectMustNotClaim(t *testing.T) {
	t.Parallel()
	n := block.Node{Name: "gpu-1", MachineID: "a"}
	for reported, want := range map[string]cnierr.Code{"": 0, "a": 0, "b": cnierr.TryAgain} {
		err := n.Confirm(reported)
		if want == 0 && err != nil || want != 0 && cnierr.CodeOf(err) != want {
			t.Errorf("reported %q: %v", reported, err)
		}
		const text = `confirm machine-id of node "gpu-1": it is a here, and b in the Node object`
		if want != 0 && (err.Error() != text || !strings.Contains(cnierr.CNI("", err).Details, "kubectl get node gpu-1 ")) {
			t.Errorf("it says %v, want %s", err, text)
		}
	}
}

// A clone that a cached list does not show yet is met at its block.
func TestAnotherNodeWithOurMachineIDIsMetAtItsBlock(t *testing.T) {
	t.Parallel()
	s, store := sized(t, 16), blocktest.NewMem()
	original, clone := claimer(store, 1), claimer(store, 1)
	clone.Node.Name = "clone"
	doubts := 0
	clone.Doubt = func(error) { doubts++ }
	hint := []netip.Addr{netip.MustParseAddr("10.1.0.9")} // the address is cloned too
	original.Node.Own, clone.Node.Own = hint, hint
	theirs := mustClaim(t, original, s)
	store.Lag = 10
	got := mustClaim(t, clone, s)
	if there := store.Snapshot(); len(there) != 2 || !slices.Contains(there, theirs) || got.Name == theirs.Name || doubts == 0 {
		t.Errorf("got %s, there is %+v, %d doubts", got.Name, there, doubts)
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
