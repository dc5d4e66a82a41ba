// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package sticky_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky/stickytest"
)

func TestAPodGetsItsHostIndexAgainOnAnyNode(t *testing.T) {
	t.Parallel()
	store, s := stickytest.NewMem(), slots(t, 4)
	first := map[int]string{}
	for move := range 5 {
		for p := range 10 {
			d := claimer(store, (p+move)%3)
			l := mustTake(t, d, s, pod(p))
			if move == 0 {
				first[p] = l.Name
			}
			if l.Name != first[p] {
				t.Errorf("move %d of pod %d: %s after %s", move, p, l.Name, first[p])
			}
			mustRelease(t, d, l)
		}
	}
	if n := len(store.Snapshot()); n != 10 {
		t.Errorf("%d leases", n)
	}
}

func TestAnInterfaceOfAPodHasASlotOfItsOwn(t *testing.T) {
	t.Parallel()
	store, s := stickytest.NewMem(), slots(t, 4)
	other := pod(0)
	other.Interface = "net2"
	a, b := mustTake(t, claimer(store, 0), s, pod(0)), mustTake(t, claimer(store, 0), s, other)
	if a.Name == b.Name {
		t.Errorf("both have %s", a.Name)
	}
}

func TestASlotThatAnotherNodeHoldsIsNotTaken(t *testing.T) {
	t.Parallel()
	store, s := stickytest.NewMem(), slots(t, 4)
	l := mustTake(t, claimer(store, 1), s, pod(0))
	_, err := claimer(store, 2).Take(t.Context(), s, pod(0))
	wantHeld(t, err, 1)
	if now := must(t, store, l.Name); now != l {
		t.Errorf("it was written: %+v", now)
	}
	mustRelease(t, claimer(store, 2), l) // it has nothing to give back
	_, err = claimer(store, 2).Take(t.Context(), s, pod(0))
	wantHeld(t, err, 1)
	mustRelease(t, claimer(store, 1), l)
	mustTake(t, claimer(store, 2), s, pod(0))
}

func TestAnotherMachineUnderTheNameOfTheHolderIsNotTheHolder(t *testing.T) {
	t.Parallel()
	store, s := stickytest.NewMem(), slots(t, 4)
	l := mustTake(t, claimer(store, 1), s, pod(0))
	again := claimer(store, 1)
	again.Node.MachineID = "reinstalled"
	_, err := again.Take(t.Context(), s, pod(0))
	wantHeld(t, err, 1)
	_, err = again.Affirm(t.Context(), l)
	wantHeld(t, err, 1)
	mustRelease(t, again, l)
	if held, err := again.Held(t.Context(), "gpu"); err != nil || len(held) > 0 || must(t, store, l.Name) != l {
		t.Errorf("it holds %v, error %v", held, err)
	}
}

// TestARequestThatComesLateNeverUndoesAGrant: what a node has sent before it takes
// a slot must not give the slot away afterwards.
func TestARequestThatComesLateNeverUndoesAGrant(t *testing.T) {
	t.Parallel()
	store, s := stickytest.NewMem(), slots(t, 4)
	d := claimer(store, 1)
	l := mustTake(t, d, s, pod(0))
	failNth(store, 1, blocktest.Late) // behind Get
	if err := d.Release(t.Context(), l); !errors.Is(err, block.ErrUnknown) {
		t.Fatal(err)
	}
	l = mustTake(t, d, s, pod(0)) // of an agent that has been restarted, for all it knows
	if !store.Land() {
		t.Fatal("nothing was late")
	}
	if now := must(t, store, l.Name); now.Spec.Holder != holder(1) {
		t.Errorf("%+v holds what was granted to node 1", now.Spec.Holder)
	}

	failNth(store, 1, blocktest.Late)
	if err := d.Release(t.Context(), l); !errors.Is(err, block.ErrUnknown) {
		t.Fatal(err)
	}
	if l, err := d.Affirm(t.Context(), l); err != nil || !store.Land() || must(t, store, l.Name) != l {
		t.Errorf("affirmed with error %v, and then it is %+v", err, must(t, store, l.Name))
	}
}

func TestALostGrantCostsAPodNothing(t *testing.T) {
	t.Parallel()
	for _, fault := range []blocktest.Fault{blocktest.Refused, blocktest.Lost, blocktest.Landed, blocktest.Late} {
		for nth := range 12 {
			t.Run(fmt.Sprintf("%s %d", fault, nth), func(t *testing.T) {
				store, s := stickytest.NewMem(), slots(t, 1)
				want := firstOf(s, 0)
				d := claimer(store, 1)
				failNth(store, nth, fault)
				for range 3 {
					var l sticky.Lease
					until(t, func() (err error) { l, err = d.Take(t.Context(), s, pod(0)); return err })
					store.Land()
					if now := must(t, store, want); l.Name != want || now.Spec.Holder != holder(1) {
						t.Fatalf("took %s, want %s, which is %+v", l.Name, want, now)
					}
					until(t, func() error { return d.Release(t.Context(), l) })
					store.Land()
					if now := must(t, store, want); now.Spec.Holder != (block.Owner{}) {
						t.Fatalf("released, and it is %+v", now)
					}
				}
				if n := len(store.Snapshot()); n != 1 {
					t.Errorf("%d leases", n)
				}
			})
		}
	}
}

// firstOf is the lease that a pod takes in an empty pool.
func firstOf(s block.Slots, p int) string {
	for slot := range s.Order(pod(p).String()) {
		return s.Name(slot)
	}
	return ""
}

// until does something again while there is no answer.
func until(t *testing.T, do func() error) {
	t.Helper()
	for range 3 {
		err := do()
		if err == nil {
			return
		}
		if !errors.Is(err, block.ErrUnknown) && !errors.As(err, new(*block.BusyError)) {
			t.Fatal(err)
		}
	}
	t.Fatal("no answer")
}

func TestAPoolThatIsFullSaysSoAfterOneList(t *testing.T) {
	t.Parallel()
	store, s := stickytest.NewMem(), slots(t, 4)
	for p := range 16 {
		mustTake(t, claimer(store, p), s, pod(p))
	}
	lists, gets := store.Calls(blocktest.List), store.Calls(blocktest.Get)
	_, err := claimer(store, 1).Take(t.Context(), s, pod(99))
	var none *sticky.NoneError
	if !errors.As(err, &none) || !strings.Contains(none.Why, "all 16 host indexes in sticky.slots of RailPool gpu are reserved") {
		t.Errorf("error %v", err)
	}
	if lists, gets := store.Calls(blocktest.List)-lists, store.Calls(blocktest.Get)-gets; lists != 2 || gets != 4 {
		t.Errorf("%d lists and %d reads to find that out", lists, gets)
	}
}

// TestTwoNodesThatTakeASlotForOnePodAtOnce is what an API server makes possible: a
// pod is deleted by force and runs on two nodes.
func TestTwoNodesThatTakeASlotForOnePodAtOnceHoldTwo(t *testing.T) {
	t.Parallel()
	store, s := stickytest.NewMem(), slots(t, 4)
	younger := put(t, store, s, 70, pod(0), block.Owner{})
	older := put(t, store, s, 71, pod(0), holder(1))
	older.Created = younger.Created.Add(-1)
	store.Restore([]sticky.Lease{younger, older})
	_, err := claimer(store, 2).Take(t.Context(), s, pod(0))
	wantHeld(t, err, 1) // the older one counts, for all
	if got := mustTake(t, claimer(store, 1), s, pod(0)); got.Name != older.Name {
		t.Errorf("node 1 took %s", got.Name)
	}
	older.Created = younger.Created
	store.Restore([]sticky.Lease{younger, older})
	if got := mustTake(t, claimer(store, 2), s, pod(0)); got.Name != younger.Name {
		t.Errorf("of one age the name counts: took %s", got.Name)
	}
}

func TestWhatAnOperatorKeepsGoesFirst(t *testing.T) {
	t.Parallel()
	store, s := stickytest.NewMem(), slots(t, 4)
	own := mustTake(t, claimer(store, 1), s, pod(0))
	kept := put(t, store, s, 70, pod(0), block.Owner{})
	kept.Spec.Keep = true
	store.Restore([]sticky.Lease{own, kept})
	got := mustTake(t, claimer(store, 2), s, pod(0))
	if got.Name != kept.Name || !got.Spec.Keep {
		t.Errorf("took %+v", got)
	}
	mustRelease(t, claimer(store, 2), got)
	if now := must(t, store, kept.Name); !now.Spec.Keep || now.Spec.Holder != (block.Owner{}) {
		t.Errorf("it is %+v", now)
	}
}

func TestASlotThatNoPodMayHaveIsNotGranted(t *testing.T) {
	t.Parallel()
	excluded := `, "reservations": [{"ranges": ["10.3.0.70"], "reason": "a router"}]`
	for name, slot := range map[string]int{"reserved": 70, "not sticky": 40, "beyond": 80, "negative": -1} {
		t.Run(name, func(t *testing.T) {
			store, s := stickytest.NewMem(), slots(t, 4, excluded)
			l := put(t, store, s, slot, pod(0), block.Owner{})
			if got := mustTake(t, claimer(store, 1), s, pod(0)); got.Name == l.Name || got.Spec.Slot == 70 {
				t.Errorf("took %s", got.Name)
			}
			l.Spec.Keep = true
			store.Restore([]sticky.Lease{l})
			_, err := claimer(store, 1).Take(t.Context(), s, pod(0))
			var none *sticky.NoneError
			if !errors.As(err, &none) || !strings.Contains(none.Why, l.Name) || must(t, store, l.Name) != l {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestALeaseWithTheNameOfAnotherHostIndexIsNotGranted(t *testing.T) {
	t.Parallel()
	store, s := stickytest.NewMem(), slots(t, 4)
	l := put(t, store, s, 70, pod(0), block.Owner{})
	l.Spec.Slot, l.Spec.Keep = 71, true // the API server does not admit it
	store.Restore([]sticky.Lease{l})
	if got := mustTake(t, claimer(store, 1), s, pod(0)); got.Spec.Slot == 70 || got.Spec.Slot == 71 || got.Name != s.Name(got.Spec.Slot) {
		t.Errorf("took %+v", got)
	}
}

func TestARackHasSlotsOfItsOwn(t *testing.T) {
	t.Parallel()
	p := block.Pool{Name: "gpu", Spec: block.PoolSpec{
		Rails:     []block.Rail{{Subnets: []block.Subnet{{Subnet: "10.{rack}.0.0/24"}}}},
		RackLabel: "rack", Sticky: &block.Sticky{TTL: "1h", Slots: "64-79"},
	}}
	store := stickytest.NewMem()
	var names []string
	for _, rack := range []string{"1", "2"} {
		s, err := p.Slots(rack)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, mustTake(t, claimer(store, 1), s, pod(0)).Name)
	}
	if !strings.HasPrefix(names[0], "gpu.1-s") || !strings.HasPrefix(names[1], "gpu.2-s") {
		t.Errorf("took %v", names)
	}
	if l := mustTake(t, claimer(store, 2), slots(t, 16), pod(0)); !strings.HasPrefix(l.Name, "gpu-s") { // the pool was made again without racks
		t.Errorf("took %s", l.Name)
	}
	held, err := claimer(store, 1).Held(t.Context(), "gpu")
	if err != nil || len(held) != 2 || held[0].Name != names[0] {
		t.Errorf("holds %v, error %v", held, err)
	}
}
