// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package sticky_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky/stickytest"
)

func TestTermsAreThoseOfPoolsThatKeepAddresses(t *testing.T) {
	t.Parallel()
	kept, deleted, plain := pool(t, 1), pool(t, 1), pool(t, 1)
	deleted.Name, deleted.Deleted, plain.Name, plain.Spec.Sticky = "deleted", true, "plain", nil
	want := map[string]sticky.Terms{"gpu": {TTL: 24 * time.Hour, Quarantine: 2 * time.Minute}}
	if diff := cmp.Diff(want, sticky.TermsOf([]block.Pool{kept, deleted, plain})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestOwnersAreThoseWhoHoldLeases(t *testing.T) {
	t.Parallel()
	held := func(h block.Owner) sticky.Lease { return sticky.Lease{Spec: sticky.Spec{Holder: h}} }
	got := sticky.Owners([]sticky.Lease{held(holder(1)), held(block.Owner{}), held(holder(2))})
	if diff := cmp.Diff([]block.Owner{holder(1), holder(2)}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestALeaseWithTheNameOfAnotherSlotIsDeletedAtOnce has one that a living node holds, and one that
// would be right in a rack.
func TestALeaseWithTheNameOfAnotherSlotIsDeletedAtOnce(t *testing.T) {
	t.Parallel()
	store := stickytest.NewMem()
	for name, spec := range map[string]sticky.Spec{
		"gpu-s64": {Slot: 65, Holder: holder(1)}, "gpu-s66": {Slot: 66, Rack: "7", Keep: true},
		"gpu-s67": {Slot: 67, Holder: holder(1)}, "gpu.7-s66": {Slot: 66, Rack: "7", Keep: true},
	} {
		spec.Pool = "gpu"
		if _, err := store.Create(t.Context(), sticky.Lease{Name: name, Spec: spec}); err != nil {
			t.Fatal(err)
		}
	}
	w := sticky.World{Leases: store.Snapshot(), Pools: sticky.TermsOf([]block.Pool{pool(t, 1)}), Nodes: block.Nodes{holder(1).NodeName: holder(1).MachineID}}
	_, due := sticky.Look(block.Sightings{}, time.Hour, day(), w)
	for _, l := range due {
		if done, err := sticky.Reap(t.Context(), store, newCluster(1), day(), l); !done || err != nil {
			t.Errorf("%s: %v, %v", l.Name, done, err)
		}
	}
	var left []string
	for _, l := range store.Snapshot() {
		left = append(left, l.Name)
	}
	slices.Sort(left)
	if diff := cmp.Diff([]string{"gpu-s67", "gpu.7-s66"}, left); diff != "" {
		t.Errorf("left (-want +got)\n%s", diff)
	}
}

// TestALeaseIsKeptForTheTTLAfterItsLastWrite has a reaper that has seen it for as long as the
// quarantine.
func TestALeaseIsKeptForTheTTLAfterItsLastWrite(t *testing.T) {
	t.Parallel()
	l := sticky.Lease{Name: "gpu-s64", UID: "u", ResourceVersion: "1", Created: day(), Spec: sticky.Spec{Pool: "gpu", Slot: 64, Written: day().Add(time.Hour)}}
	terms := map[string]sticky.Terms{"gpu": {TTL: 3 * time.Hour, Quarantine: 2 * time.Minute}}
	for _, c := range []struct {
		written, seen, date time.Duration
		due                 bool
	}{
		{time.Hour, 2 * time.Minute, 4 * time.Hour, true},
		{time.Hour, 2 * time.Minute, 4*time.Hour - 1, false},
		{time.Hour, 2*time.Minute - 1, 4 * time.Hour, false},
		{-time.Hour, 2 * time.Minute, 3 * time.Hour, true}, // a clock was wrong: it counts since its creation
		{-time.Hour, 2 * time.Minute, 3*time.Hour - 1, false},
		{time.Hour, 3 * time.Hour, 0, true},
		{time.Hour, 3*time.Hour - 1, 0, false},
	} {
		l.Spec.Written = day().Add(c.written)
		w := sticky.World{Leases: []sticky.Lease{l}, Pools: terms}
		seen, due := sticky.Look(block.Sightings{}, 0, day(), w)
		if len(due) > 0 {
			t.Errorf("%+v: it is due at the first look", c)
		}
		if _, due = sticky.Look(seen, c.seen, day().Add(c.date), w); (len(due) == 1) != c.due {
			t.Errorf("%+v: due %v", c, due)
		}
	}
}

// TestWhatIsNotAskedAboutStaysAbsent has so many leases that a look asks about all but one.
func TestWhatIsNotAskedAboutStaysAbsent(t *testing.T) {
	t.Parallel()
	var all []sticky.Lease
	for i := range 501 {
		all = append(all, sticky.Lease{Name: fmt.Sprintf("gpu-s%03d", i), UID: fmt.Sprint(i), Spec: sticky.Spec{Holder: holder(1)}})
	}
	var a sticky.Absences
	asked := 0
	look := func(now time.Duration) (due []sticky.Lease) {
		t.Helper()
		var err error
		asked = 0
		if a, due, err = a.Look(now, all, func(sticky.Lease) (bool, error) { asked++; return false, nil }); err != nil || asked != 500 {
			t.Fatalf("%d questions, error %v", asked, err)
		}
		return due
	}
	look(0)                // 0 to 499
	look(1)                // 500, and 0 to 498
	due := look(time.Hour) // 499, 500, and 0 to 497
	if since, absent := a.Since(all[498]); !absent || since != 0 {
		t.Errorf("the one that was not asked about: since %v, %v", since, absent)
	}
	if len(due) != 499 || slices.ContainsFunc(due, func(l sticky.Lease) bool { return l.UID == "500" || l.UID == "498" }) {
		t.Errorf("%d are due, want all but one that was seen later, and one that was not asked about", len(due))
	}
	if due = look(time.Hour + 1); len(due) != 500 || due[0].UID != "498" {
		t.Errorf("then %d are due, first %s", len(due), due[0].Name)
	}
}

// TestWithoutAnAnswerNothingIsDone has each call of the store fail, one by one.
func TestWithoutAnAnswerNothingIsDone(t *testing.T) {
	t.Parallel()
	s := slots(t, 2)
	for name, do := range map[string]func(*stickytest.Mem, sticky.Lease) error{
		"take": func(m *stickytest.Mem, _ sticky.Lease) error {
			_, err := claimer(m, 1).Take(t.Context(), s, pod(9))
			return err
		},
		"release": func(m *stickytest.Mem, l sticky.Lease) error { return claimer(m, 1).Release(t.Context(), l) },
		"held": func(m *stickytest.Mem, _ sticky.Lease) error {
			_, err := claimer(m, 1).Held(t.Context(), "gpu")
			return err
		},
		"free": func(m *stickytest.Mem, l sticky.Lease) error {
			done, err := sticky.Free(t.Context(), m, newPods(1), day(), l)
			if done {
				t.Error("it is said to be freed")
			}
			return err
		},
	} {
		store := stickytest.NewMem()
		l := mustTake(t, claimer(store, 1), s, pod(1))
		before := store.Snapshot()
		store.Fault = func(op blocktest.Op, _ string) blocktest.Fault {
			if op == blocktest.List || op == blocktest.Get {
				return blocktest.Lost
			}
			return blocktest.None
		}
		if err := do(store, l); !errors.Is(err, block.ErrUnknown) {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(before, store.Snapshot()); diff != "" {
			t.Errorf("%s (-before +after)\n%s", name, diff)
		}
	}
}

// TestAListOfAFullPoolThatFailsIsAnError has the first slots be those of other pods.
func TestAListOfAFullPoolThatFailsIsAnError(t *testing.T) {
	t.Parallel()
	s, store := slots(t, 2), stickytest.NewMem()
	for i := range 7 {
		mustTake(t, claimer(store, 2), s, pod(i))
	}
	lists := 0
	store.Fault = func(op blocktest.Op, _ string) blocktest.Fault {
		if op == blocktest.List {
			if lists++; lists == 2 {
				return blocktest.Lost
			}
		}
		return blocktest.None
	}
	failed := false
	for i := 100; i < 200 && !failed; i++ { // one of them meets four others first
		lists = 0
		l, err := claimer(store, 1).Take(t.Context(), s, pod(i))
		if failed = err != nil; failed && !errors.Is(err, block.ErrUnknown) {
			t.Error(err)
		}
		if !failed {
			if err := store.Delete(t.Context(), l.Name, l.UID, l.ResourceVersion); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !failed {
		t.Error("no pod meets four others: the test shows nothing")
	}
}

func TestALeaseOfAnotherPoolIsNotThatOfThePod(t *testing.T) {
	t.Parallel()
	s, store := slots(t, 1), stickytest.NewMem()
	put(t, store, block.Slots{Pool: "another"}, 64, pod(1), block.Owner{})
	if got := mustTake(t, claimer(store, 1), s, pod(1)); got.Spec.Pool != "gpu" || !got.Spec.Written.Equal(day().Truncate(time.Microsecond)) {
		t.Errorf("it gets %+v", got)
	}
	wrong := put(t, store, block.Slots{Pool: "gpu"}, 65, pod(2), block.Owner{}) // its name will be that of another slot
	if err := store.Delete(t.Context(), wrong.Name, wrong.UID, wrong.ResourceVersion); err != nil {
		t.Fatal(err)
	}
	for _, slot := range []int{64, 65, 66, 67} { // all names are of other slots, but that of pod 1
		wrong.Name, wrong.UID, wrong.Spec.Slot = s.Name(slot), "", 64+(slot-63)%4
		_, _ = store.Create(t.Context(), wrong)
	}
	var none *sticky.NoneError
	if got, err := claimer(store, 1).Take(t.Context(), s, pod(2)); !errors.As(err, &none) {
		t.Errorf("with leases of other slots under the names it gets %+v, error %v", got, err)
	}
}

func TestANodeHoldsWhatIsOfItsMachineAndThePool(t *testing.T) {
	t.Parallel()
	s, store := slots(t, 2), stickytest.NewMem()
	replaced := holder(1)
	replaced.MachineID = "of before"
	put(t, store, s, 67, pod(1), holder(1))
	put(t, store, s, 64, pod(2), holder(1))
	put(t, store, s, 65, pod(3), holder(2))
	put(t, store, s, 66, pod(4), replaced)
	put(t, store, s, 68, pod(5), block.Owner{})
	put(t, store, block.Slots{Pool: "another"}, 64, pod(6), holder(1))
	held, err := claimer(store, 1).Held(t.Context(), "gpu")
	var got []string
	for _, l := range held {
		got = append(got, l.Name)
	}
	if diff := cmp.Diff([]string{"gpu-s64", "gpu-s67"}, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got)\n%s", err, diff)
	}
}

// TestAnotherLeaseOfTheSameNameIsNotFreed: the first one was deleted, and the pod has another.
func TestAnotherLeaseOfTheSameNameIsNotFreed(t *testing.T) {
	t.Parallel()
	s, store := slots(t, 1), stickytest.NewMem()
	l := mustTake(t, claimer(store, 1), s, pod(1))
	for name, c := range map[string]struct {
		due  func(*sticky.Lease)
		node func(*pods)
	}{
		"another lease":  {func(l *sticky.Lease) { l.UID = "another" }, func(*pods) {}},
		"another holder": {func(l *sticky.Lease) { l.Spec.Holder = holder(2) }, func(*pods) {}},
		"a sick node":    {func(*sticky.Lease) {}, func(p *pods) { p.sick[holder(1).NodeName] = true }},
		"the pod is":     {func(*sticky.Lease) {}, func(p *pods) { p.bind(pod(1), 1) }},
	} {
		due, p := l, newPods(1)
		c.due(&due)
		c.node(p)
		if done, err := sticky.Free(t.Context(), store, p, day(), due); done || err != nil || must(t, store, l.Name) != l {
			t.Errorf("%s: %v, error %v", name, done, err)
		}
	}
	p := newPods(1)
	p.err = errors.New("forbidden")
	if done, err := sticky.Free(t.Context(), store, p, day(), l); done || !errors.Is(err, p.err) {
		t.Errorf("without an answer: %v, error %v", done, err)
	}
	if done, err := sticky.Free(t.Context(), store, newPods(1), day(), l); !done || err != nil || must(t, store, l.Name).Spec.Holder != (block.Owner{}) {
		t.Errorf("%v, error %v", done, err)
	}
}
