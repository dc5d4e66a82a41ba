// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package sticky_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky/stickytest"
)

// backwards is a store with lists in another order. If it is contested, another client is faster
// with each write.
type backwards struct {
	*stickytest.Mem
	queries   []sticky.Query
	contested bool
	writes    int
}

func (b *backwards) List(ctx context.Context, q sticky.Query) ([]sticky.Lease, error) {
	b.queries = append(b.queries, q)
	out, err := b.Mem.List(ctx, q)
	slices.Reverse(out)
	return out, err
}

func (b *backwards) Update(ctx context.Context, l sticky.Lease) (sticky.Lease, error) {
	if b.writes++; b.contested {
		return sticky.Lease{}, block.ErrConflict
	}
	return b.Mem.Update(ctx, l)
}

func TestTheOrderOfAListCountsForNothing(t *testing.T) {
	t.Parallel()
	p := block.Pool{Name: "gpu", Spec: block.PoolSpec{
		Rails:     []block.Rail{{Subnets: []block.Subnet{{Subnet: "10.{rack}.0.0/24"}}}},
		RackLabel: "rack", Sticky: &block.Sticky{TTL: "1h", Slots: "64-79"},
	}}
	s, err := p.Slots("7")
	if err != nil {
		t.Fatal(err)
	}
	store := &backwards{Mem: stickytest.NewMem()}
	store.Now = day // all leases are of one age
	var want, got []string
	for slot := 64; slot < 80; slot++ {
		want = append(want, put(t, store, s, slot, pod(slot/2), holder(1)).Name)
	}
	if l, err := claimer(store, 1).Take(t.Context(), s, pod(33)); err != nil || l.Name != s.Name(66) {
		t.Errorf("of two leases of the pod it takes %s, error %v", l.Name, err)
	}
	held, err := claimer(store, 1).Held(t.Context(), "gpu")
	for _, l := range held {
		got = append(got, l.Name)
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("it holds (-want +got), error %v\n%s", err, diff)
	}
	store.queries = nil
	var none *sticky.NoneError
	if _, err := claimer(store, 1).Take(t.Context(), s, pod(99)); !errors.As(err, &none) {
		t.Errorf("of a full rack: %v", err)
	}
	if diff := cmp.Diff([]sticky.Query{{Pool: "gpu", Rack: "7", Key: pod(99)}, {Pool: "gpu", Rack: "7"}}, store.queries); diff != "" {
		t.Errorf("of a full rack it asks for (-want +got)\n%s", diff)
	}
	store.contested, store.writes = true, 0
	var busy *block.BusyError
	if _, err := claimer(store, 1).Take(t.Context(), s, pod(33)); !errors.As(err, &busy) || store.writes != 3 {
		t.Errorf("where others are always faster: %v after %d writes, want 3", err, store.writes)
	}
}

// TestAQuestionWithoutAnAnswerLeavesAllLeasesAsTheyWere has one that is due before it.
func TestAQuestionWithoutAnAnswerLeavesAllLeasesAsTheyWere(t *testing.T) {
	t.Parallel()
	all := []sticky.Lease{{Name: "a", UID: "1"}, {Name: "b", UID: "2"}}
	a, _, err := sticky.Absences{}.Look(0, all, func(l sticky.Lease) (bool, error) { return l.Name == "b", nil })
	if err != nil {
		t.Fatal(err)
	}
	next, due, err := a.Look(time.Hour, all, func(l sticky.Lease) (bool, error) {
		if l.Name == "b" {
			return false, block.ErrUnknown
		}
		return false, nil
	})
	if !errors.Is(err, block.ErrUnknown) || len(due) > 0 {
		t.Errorf("due %v, error %v", due, err)
	}
	_, due, err = next.Look(time.Hour, all, func(sticky.Lease) (bool, error) { return false, nil })
	if err != nil || len(due) != 1 || due[0].Name != "a" {
		t.Errorf("then due %v, error %v", due, err)
	}
}

// TestWritesAtOneTimeAreAMicrosecondApart: the API server keeps no less, and a write that changes
// nothing is none.
func TestWritesAtOneTimeAreAMicrosecondApart(t *testing.T) {
	t.Parallel()
	s, store := slots(t, 2), stickytest.NewMem()
	first := mustTake(t, claimer(store, 1), s, pod(1))
	if second := mustTake(t, claimer(store, 1), s, pod(1)); second.Spec.Written.Sub(first.Spec.Written) != time.Microsecond {
		t.Errorf("written at %v and %v", first.Spec.Written, second.Spec.Written)
	}
}

// TestALeaseThatOthersHaveWrittenIsAffirmedWithoutACreate, and one without an answer with no second
// request.
func TestALeaseThatOthersHaveWrittenIsAffirmedWithoutACreate(t *testing.T) {
	t.Parallel()
	s, store := slots(t, 2), stickytest.NewMem()
	stale := mustTake(t, claimer(store, 1), s, pod(1))
	mustTake(t, claimer(store, 1), s, pod(1))
	creates := store.Calls(blocktest.Create)
	fresh, err := claimer(store, 1).Affirm(t.Context(), stale)
	if err != nil || store.Calls(blocktest.Create) != creates || must(t, store, stale.Name) != fresh {
		t.Errorf("%d creates, %+v, error %v", store.Calls(blocktest.Create)-creates, fresh, err)
	}
	gets := store.Calls(blocktest.Get)
	failNth(store, 0, blocktest.Lost)
	if _, err := claimer(store, 1).Affirm(t.Context(), fresh); !errors.Is(err, block.ErrUnknown) || store.Calls(blocktest.Get) != gets {
		t.Errorf("%d more requests, error %v", store.Calls(blocktest.Get)-gets, err)
	}
}
