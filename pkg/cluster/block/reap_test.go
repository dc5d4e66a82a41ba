// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
)

// cluster has nodes, by machine-id, and pods.
type cluster struct {
	nodes   block.Nodes
	bound   map[string]bool
	err     error // of questions about nodes
	podsErr error
}

func (c cluster) Machine(_ context.Context, node string) (string, error) {
	id, there := c.nodes[node]
	if c.err == nil && !there {
		return "", block.ErrNotFound
	}
	return id, c.err
}

func (c cluster) Bound(_ context.Context, node string) (bool, error) { return c.bound[node], c.podsErr }

func TestABlockIsDueAnHourAfterItsOwnerWent(t *testing.T) {
	t.Parallel()
	store := blocktest.NewMem()
	b := mustClaim(t, claimer(store, 1), sized(t, 64))
	mustClaim(t, claimer(store, 2), sized(t, 64))
	here := block.Nodes{"node-1": b.Spec.MachineID, "node-2": ""}
	young := block.Nodes{"node-1": "", "node-2": ""} // kubelet has not reported yet
	gone := block.Nodes{"node-2": ""}
	again := block.Nodes{"node-1": "another", "node-2": ""}
	pods := map[string]bool{"node-1": true}
	type sighting struct {
		minute int
		nodes  block.Nodes
		bound  map[string]bool
		due    bool
	}
	for name, sightings := range map[string][]sighting{
		"never gone":                       {{0, here, pods, false}, {90, here, pods, false}},
		"one sighting is not two":          {{600, gone, nil, false}},
		"gone for an hour":                 {{0, gone, nil, false}, {30, gone, nil, false}, {59, gone, nil, false}, {60, gone, nil, true}, {61, gone, nil, true}},
		"back in between":                  {{0, gone, nil, false}, {30, here, nil, false}, {60, gone, nil, false}, {119, gone, nil, false}, {120, gone, nil, true}},
		"back at the last sighting":        {{0, gone, nil, false}, {60, here, nil, false}, {61, gone, nil, false}},
		"a pod is bound to its name":       {{0, gone, pods, false}, {90, gone, pods, false}},
		"a pod was, in between":            {{0, gone, nil, false}, {30, gone, pods, false}, {60, gone, nil, false}, {120, gone, nil, true}},
		"replaced, with pods of its own":   {{0, again, pods, false}, {59, again, pods, false}, {60, again, pods, true}},
		"replaced, then gone":              {{0, again, pods, false}, {60, gone, nil, true}},
		"replaced, then itself again":      {{0, again, pods, false}, {30, here, pods, false}, {60, again, pods, false}},
		"a machine that has not said who":  {{0, young, pods, false}, {90, young, pods, false}},
		"replaced by one that has not yet": {{0, again, nil, false}, {60, young, nil, false}, {61, again, nil, false}},
	} {
		var seen block.Sightings
		for _, look := range sightings {
			var due []block.Block
			seen, due = seen.Look(time.Duration(look.minute)*time.Minute, store.Snapshot(), look.nodes, look.bound)
			if got := len(due) == 1 && due[0] == b; got != look.due || len(due) > 1 {
				t.Errorf("%s, minute %d: due %v", name, look.minute, due)
			}
		}
	}
}

func TestOnlyTheNamesWithoutNodeAreAskedForPods(t *testing.T) {
	t.Parallel()
	of := func(name, machine string) block.Block {
		return block.Block{Spec: block.Spec{Owner: block.Owner{NodeName: name, MachineID: machine}}}
	}
	blocks := []block.Block{of("d", "5"), of("c", "3"), of("b", "2"), of("c", "4"), of("a", "1")}
	nodes := block.Nodes{"a": "1", "b": "another"}
	if diff := cmp.Diff([]string{"c", "d"}, nodes.Missing(block.Owners(blocks))); diff != "" {
		t.Error(diff)
	}
}

func TestSightingsAreOfOneBlock(t *testing.T) {
	t.Parallel()
	nodes := block.Nodes{"other": ""}
	b := block.Block{Name: "gpu-1", UID: "1", Spec: block.Spec{Owner: block.Owner{NodeName: "a"}}}
	seen, _ := block.Sightings{}.Look(0, []block.Block{b}, nodes, nil)
	claimed, touched := b, b
	claimed.UID, touched.ResourceVersion = "2", "2" // the node was back
	for _, b := range []block.Block{claimed, touched} {
		if _, due := seen.Look(2*time.Hour, []block.Block{b}, nodes, nil); len(due) != 0 {
			t.Errorf("due %v", due)
		}
	}
	if _, due := seen.Look(2*time.Hour, []block.Block{b}, nodes, nil); len(due) != 1 {
		t.Errorf("due %v, want the block that was seen", due)
	}
}

func TestWhatIsDueIsReapedOnlyIfItStillIs(t *testing.T) {
	t.Parallel()
	away := errors.New("no API server")
	pods := map[string]bool{"node-1": true}
	own := claimer(nil, 1).Node.MachineID
	for name, tt := range map[string]struct {
		c      cluster
		change func(t *testing.T, store *blocktest.Mem, b block.Block)
		reaped bool
		err    error
	}{
		"gone":                         {reaped: true},
		"the node is back":             {c: cluster{nodes: block.Nodes{"node-1": own}}},
		"a node is back":               {c: cluster{nodes: block.Nodes{"node-1": ""}}},
		"another machine has its name": {c: cluster{nodes: block.Nodes{"node-1": "another"}, bound: pods}, reaped: true},
		"a pod is bound":               {c: cluster{bound: pods}},
		"the node is unknown":          {c: cluster{err: away}, err: away},
		"its pods are unknown":         {c: cluster{podsErr: away}, err: away},
		"its owner has touched it": {change: func(t *testing.T, store *blocktest.Mem, b block.Block) {
			if _, lost, err := claimer(store, 1).Assert(t.Context(), sized(t, 64), []block.Block{b}); err != nil || len(lost) > 0 {
				t.Fatal(err)
			}
		}},
		"its owner has claimed it": {change: func(t *testing.T, store *blocktest.Mem, _ block.Block) {
			mustClaim(t, claimer(store, 1), sized(t, 64))
		}},
		"its owner has met it": {change: func(t *testing.T, store *blocktest.Mem, _ block.Block) {
			store.Lag = 10 // a list does not show it
			mustClaim(t, claimer(store, 1), sized(t, 64))
		}},
		"it is another block": {change: func(t *testing.T, store *blocktest.Mem, b block.Block) {
			must(t, store.Delete(t.Context(), b.Name, b.UID, b.ResourceVersion))
			b.Spec.NodeName = "another"
			if _, err := store.Create(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := blocktest.NewMem()
			b := mustClaim(t, claimer(store, 1), sized(t, 64))
			if tt.change != nil {
				tt.change(t, store, b)
			}
			before := names(store.Snapshot())
			reaped, err := block.Reap(t.Context(), store, tt.c, b)
			if reaped != tt.reaped || !errors.Is(err, tt.err) {
				t.Errorf("reaped %t, error %v", reaped, err)
			}
			if tt.reaped {
				before = nil
			}
			if diff := cmp.Diff(before, names(store.Snapshot())); diff != "" {
				t.Errorf("(-want +there)\n%s", diff)
			}
			// Once more does no harm.
			if again, err := block.Reap(t.Context(), store, tt.c, b); again || !errors.Is(err, tt.err) {
				t.Errorf("again: reaped %t, error %v", again, err)
			}
		})
	}
}

// TestANodeThatComesBackKeepsItsBlockOrGetsAnother plays the race of a reaper
// with a node that returns in its last moment, in both orders.
func TestANodeThatComesBackKeepsItsBlockOrGetsAnother(t *testing.T) {
	t.Parallel()
	for _, reaperFirst := range []bool{true, false} {
		s, store := sized(t, 64), blocktest.NewMem()
		b := mustClaim(t, claimer(store, 1), sized(t, 64))
		steps := []func(){
			func() {
				if _, err := block.Reap(t.Context(), store, cluster{}, b); err != nil {
					t.Error(err)
				}
			},
			func() {
				kept, _, err := claimer(store, 1).Assert(t.Context(), s, []block.Block{b})
				if err != nil || len(kept) != 1 {
					t.Errorf("kept %v, error %v", names(kept), err)
				}
			},
		}
		if !reaperFirst {
			steps[0], steps[1] = steps[1], steps[0]
		}
		for _, step := range steps {
			step()
		}
		if there := store.Snapshot(); len(there) != 1 || there[0].Spec != b.Spec {
			t.Errorf("reaper first %t: there is %+v", reaperFirst, there)
		}
	}
}
