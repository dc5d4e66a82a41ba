// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package sticky_test

import (
	"testing"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky/stickytest"
)

// forgotten is a lease as an agent that was restarted knows it.
func forgotten(l sticky.Lease) sticky.Lease {
	l.Spec.Holder = block.Owner{}
	return sticky.Lease{Name: l.Name, Spec: l.Spec}
}

func TestWhatIsHeldIsAffirmedWithOneWrite(t *testing.T) {
	t.Parallel()
	store, s := stickytest.NewMem(), slots(t, 4)
	d := claimer(store, 1)
	l := mustTake(t, d, s, pod(0))
	gets := store.Calls(blocktest.Get)
	now, err := d.Affirm(t.Context(), l)
	if err != nil || now.ResourceVersion == l.ResourceVersion || now != must(t, store, l.Name) {
		t.Errorf("error %v, %+v", err, now)
	}
	if n := store.Calls(blocktest.Get) - gets; n != 0 || store.Calls(stickytest.Update) != 1 {
		t.Errorf("%d reads, %d writes", n, store.Calls(stickytest.Update))
	}
	// An agent that was restarted, or an agent with a lease that was written since.
	for _, known := range []sticky.Lease{forgotten(l), l} {
		if again, err := d.Affirm(t.Context(), known); err != nil || again.ResourceVersion == now.ResourceVersion || again.Spec.Holder != holder(1) {
			t.Errorf("error %v, %+v", err, again)
		}
	}
}

func TestWhatEtcdHasForgottenIsMadeAgain(t *testing.T) {
	t.Parallel()
	store, s := stickytest.NewMem(), slots(t, 4)
	before := store.Snapshot()
	d := claimer(store, 1)
	l := mustTake(t, d, s, pod(0))
	for _, known := range []sticky.Lease{l, forgotten(l)} {
		store.Restore(before)
		got, err := d.Affirm(t.Context(), known)
		if err != nil || got.Name != l.Name || got.Spec.Holder != holder(1) || got.Spec.Key() != pod(0) || got != must(t, store, l.Name) {
			t.Errorf("error %v, %+v", err, got)
		}
	}
}

func TestWhatEtcdSaysWasReleasedIsHeldAgain(t *testing.T) {
	t.Parallel()
	store, s := stickytest.NewMem(), slots(t, 4)
	put(t, store, s, 70, pod(0), block.Owner{})
	before := store.Snapshot()
	l := mustTake(t, claimer(store, 1), s, pod(0))
	store.Restore(before)
	if got, err := claimer(store, 1).Affirm(t.Context(), l); err != nil || got.Spec.Holder != holder(1) {
		t.Errorf("error %v, %+v", err, got)
	}
}

// TestAHostIndexThatIsAnotherPodsAfterARestoreIsHeldAllTheSame: the pod that had the
// slot when etcd was saved must not get it elsewhere.
func TestAHostIndexThatIsAnotherPodsAfterARestoreIsHeldAllTheSame(t *testing.T) {
	t.Parallel()
	store, s := stickytest.NewMem(), slots(t, 4)
	former := put(t, store, s, 70, pod(7), block.Owner{})
	before := store.Snapshot()
	store.Restore(nil)
	l := put(t, store, s, 70, pod(0), holder(1))
	store.Restore(before)
	got, err := claimer(store, 1).Affirm(t.Context(), l)
	if err != nil || got.UID != former.UID || got.Spec.Key() != pod(7) || got.Spec.Holder != holder(1) {
		t.Fatalf("error %v, %+v", err, got)
	}
	_, err = claimer(store, 2).Take(t.Context(), s, pod(7))
	wantHeld(t, err, 1)
	mustRelease(t, claimer(store, 1), l)
	if got := mustTake(t, claimer(store, 2), s, pod(7)); got.Name != former.Name {
		t.Errorf("took %s", got.Name)
	}
}

// TestWhatEtcdSaysAFormerHolderHasComesBack: a node that is said to hold what it
// has given back gives it back again.
func TestWhatEtcdSaysAFormerHolderHasComesBack(t *testing.T) {
	t.Parallel()
	store, s := stickytest.NewMem(), slots(t, 4)
	former := mustTake(t, claimer(store, 1), s, pod(0))
	before := store.Snapshot()
	mustRelease(t, claimer(store, 1), former)
	l := mustTake(t, claimer(store, 2), s, pod(0))
	store.Restore(before)
	for _, known := range []sticky.Lease{l, forgotten(l)} {
		_, err := claimer(store, 2).Affirm(t.Context(), known)
		wantHeld(t, err, 1)
	}
	held, err := claimer(store, 1).Held(t.Context(), "gpu")
	if err != nil || len(held) != 1 {
		t.Fatalf("holds %v, error %v", held, err)
	}
	mustRelease(t, claimer(store, 1), held[0])
	if got, err := claimer(store, 2).Affirm(t.Context(), l); err != nil || got.Spec.Holder != holder(2) {
		t.Errorf("error %v, %+v", err, got)
	}
}

func TestALeaseThatIsMadeAgainIsNotKeptForEver(t *testing.T) {
	t.Parallel()
	store, s := stickytest.NewMem(), slots(t, 4)
	l := put(t, store, s, 70, pod(0), holder(1))
	l.Spec.Keep = true
	store.Restore(nil)
	if got, err := claimer(store, 1).Affirm(t.Context(), l); err != nil || got.Spec.Keep {
		t.Errorf("error %v, %+v", err, got)
	}
}

func TestWhatIsGoneNeedsNoRelease(t *testing.T) {
	t.Parallel()
	store, s := stickytest.NewMem(), slots(t, 4)
	l := mustTake(t, claimer(store, 1), s, pod(0))
	store.Restore(nil)
	mustRelease(t, claimer(store, 1), l)
	if n := len(store.Snapshot()); n != 0 {
		t.Errorf("%d leases", n)
	}
}
