// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/blocktest"
)

// cluster has nodes and pods.
type cluster struct {
	lives, bound map[string]bool
	err          error
}

func (c cluster) Lives(_ context.Context, node string) (bool, error) { return c.lives[node], c.err }
func (c cluster) Bound(_ context.Context, node string) (bool, error) { return c.bound[node], c.err }

func TestABlockIsDueAnHourAfterItsNodeWent(t *testing.T) {
	t.Parallel()
	s, store := sized(t, 64), blocktest.NewMem()
	b := mustClaim(t, claimer(store, 1), s)
	mustClaim(t, claimer(store, 2), s)
	type sighting struct {
		minute int
		here   bool
		due    bool
	}
	for name, sightings := range map[string][]sighting{
		"never gone":                {{0, true, false}, {90, true, false}},
		"one sighting is not two":   {{600, false, false}},
		"gone for an hour":          {{0, false, false}, {30, false, false}, {59, false, false}, {60, false, true}, {61, false, true}},
		"back in between":           {{0, false, false}, {30, true, false}, {60, false, false}, {119, false, false}, {120, false, true}},
		"back at the last sighting": {{0, false, false}, {60, true, false}, {61, false, false}},
	} {
		var seen block.Sightings
		for _, look := range sightings {
			var due []block.Block
			present := map[string]bool{"node-2": true, "node-1": look.here}
			seen, due = seen.Look(time.Duration(look.minute)*time.Minute, store.Snapshot(), present)
			if got := len(due) == 1 && due[0] == b; got != look.due || len(due) > 1 {
				t.Errorf("%s, minute %d: due %v", name, look.minute, names(due))
			}
		}
	}
}

func TestSightingsAreOfOneBlock(t *testing.T) {
	t.Parallel()
	present := map[string]bool{"other": true}
	b := block.Block{Name: "gpu-1", UID: "1", Spec: block.Spec{NodeName: "a"}}
	seen, _ := block.Sightings{}.Look(0, []block.Block{b}, present)
	b.UID = "2" // the node was back, and has claimed it again
	if _, due := seen.Look(2*time.Hour, []block.Block{b}, present); len(due) != 0 {
		t.Errorf("due %v", names(due))
	}
}

func TestWithoutAnyNodeNothingIsDue(t *testing.T) {
	t.Parallel()
	b := []block.Block{{Name: "gpu-1", UID: "1", Spec: block.Spec{NodeName: "a"}}}
	seen, _ := block.Sightings{}.Look(0, b, map[string]bool{"other": true})
	if seen, due := seen.Look(2*time.Hour, b, nil); len(due) != 0 {
		t.Errorf("due %v", names(due))
	} else if _, due := seen.Look(3*time.Hour, b, map[string]bool{"other": true}); len(due) != 0 {
		t.Errorf("due at the first sighting after it: %v", names(due))
	}
}

func TestWhatIsDueIsReapedOnlyIfItStillIs(t *testing.T) {
	t.Parallel()
	away := errors.New("no API server")
	for name, tt := range map[string]struct {
		c      cluster
		change func(t *testing.T, store *blocktest.Mem, b block.Block)
		reaped bool
		err    error
	}{
		"gone":             {reaped: true},
		"the node is back": {c: cluster{lives: map[string]bool{"node-1": true}}},
		"a pod is bound":   {c: cluster{bound: map[string]bool{"node-1": true}}},
		"nobody knows":     {c: cluster{err: away}, err: away},
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
			if err := store.Delete(t.Context(), b.Name, b.UID, b.ResourceVersion); err != nil {
				t.Fatal(err)
			}
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
		b := mustClaim(t, claimer(store, 1), s)
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
