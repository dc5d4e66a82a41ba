// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// always returns a transaction of a function that has no error of its own.
func always(fn func(*Ledger)) func(*Ledger) error {
	return func(l *Ledger) error {
		fn(l)
		return nil
	}
}

// Two boot ids.
const (
	boot1 = "5f0c2d1e-8a3b-4c6d-9e7f-000000000001"
	boot2 = "5f0c2d1e-8a3b-4c6d-9e7f-000000000002"
)

// clock is a Store.Now that a test turns on.
type clock struct{ now time.Duration }

func store(t testing.TB) (Store, *clock) {
	t.Helper()
	c := &clock{now: time.Hour}
	return Store{Dir: t.TempDir(), BootID: boot1, Now: func() time.Duration { return c.now }}, c
}

func owner(n int) Owner {
	return Owner{
		ContainerID: fmt.Sprintf("c%d", n), IfName: "net1", Network: "rail", Program: [...]string{"roce", "macvlan"}[n%2],
		PodNamespace: "default", PodName: fmt.Sprintf("pod-%d", n%7), PodUID: fmt.Sprint("uid-", n),
		Netns: netns.Ref{Path: fmt.Sprint("/run/netns/", n), ID: netns.ID{Dev: 4, Ino: uint64(n)}},
	}
}

func addr(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}) }

// naive is what a ledger should hold, kept in the simplest way.
type naive struct {
	held        map[Key]Holding
	quarantined []Quarantined // in the order in which they became free
}

// content reads all tables.
func content(l *Ledger) (n naive, runs map[string][]netrange.Range) {
	n.held, runs = map[Key]Holding{}, map[string][]netrange.Range{}
	for h := range l.Holdings() {
		n.held[h.Owner.Key()] = h
	}
	n.quarantined = slices.Collect(l.AllQuarantined())
	for it := range l.run.in(nil) {
		k := reader{b: it.Key}
		pool, last := k.string(), k.addr()
		runs[pool] = append(runs[pool], l.Run(pool, last))
	}
	return n, runs
}

// runs is the runs of used addresses, by definition.
func (n naive) runs() map[string][]netrange.Range {
	used := map[string][]netrange.Range{}
	for _, h := range n.held {
		for _, p := range h.Places {
			used[p.Pool] = append(used[p.Pool], netrange.Range{First: p.Addr, Last: p.Addr})
		}
	}
	for _, r := range n.quarantined {
		used[r.Pool] = append(used[r.Pool], netrange.Range{First: r.Addr, Last: r.Addr})
	}
	for pool, ranges := range used {
		used[pool] = netrange.Minus(ranges, nil)
	}
	return used
}

// last returns the addresses of a pool that are in quarantine and that an
// identity had last, by definition.
func (n naive) last(pool string, o Owner) []Spot {
	var out []Spot
	for _, r := range n.quarantined {
		if r.Pool == pool && r.State == Released && r.Owner.Identity() == o.Identity() {
			out = append(out, r.Spot)
		}
	}
	return out
}

func (n naive) clone() naive { return naive{maps.Clone(n.held), slices.Clone(n.quarantined)} }

// Random steps in many transactions must do to the tables what they do to the
// naive ledger, and keep the laws. Some transactions fail and must do nothing.
func TestStepsKeepTheLaws(t *testing.T) {
	t.Parallel()
	s, c := store(t)
	r := rand.New(rand.NewPCG(7, 8))
	want := naive{held: map[Key]Holding{}}
	for round := range 90 {
		next, fail := want.clone(), r.IntN(6) == 0
		err := s.Update(t.Context(), func(l *Ledger) error {
			for range 1 + r.IntN(12) {
				c.now++
				l.Now = c.now
				if err := randomStep(r, l, &next); err != nil {
					return err
				}
			}
			if fail {
				return errStop
			}
			return nil
		})
		switch {
		case err != nil && !(fail && errors.Is(err, errStop)):
			t.Fatalf("round %d: %v", round, err)
		case !fail:
			want = next
		}
		checkLedger(t, s, want)
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
}

var errStop = errors.New("stop")

func randomStep(r *rand.Rand, l *Ledger, n *naive) error {
	pool := []string{"a", "b", "a\x00b"}[r.IntN(3)]
	o := owner(r.IntN(20))
	at := o.Key()
	switch r.IntN(5) {
	case 0, 1: // give a free address, of either family
		spot := Spot{pool, addr(r.IntN(80))}
		if r.IntN(3) == 0 {
			spot.Addr = netip.AddrFrom16([16]byte{0x20, 1, 15: byte(r.IntN(40))})
		}
		if r.IntN(8) == 0 { // the first and the last of a family
			ends := []string{"0.0.0.0", "0.0.0.1", "255.255.255.254", "255.255.255.255", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}
			spot.Addr = netip.MustParseAddr(ends[r.IntN(len(ends))])
		}
		if slices.ContainsFunc(n.runs()[pool], func(r netrange.Range) bool { return r.Contains(spot.Addr) }) {
			return nil
		}
		n.held[at] = Holding{o, append(slices.Clone(n.held[at].Places), Place{spot, l.Now, false})}
		l.Give(o, spot)
		return nil
	case 2: // lease any address in quarantine
		if len(n.quarantined) == 0 {
			return nil
		}
		i := r.IntN(len(n.quarantined))
		quarantined, early := n.quarantined[i], r.IntN(2) == 0
		n.quarantined = slices.Delete(n.quarantined, i, i+1)
		n.held[at] = Holding{o, append(slices.Clone(n.held[at].Places), Place{quarantined.Spot, l.Now, early})}
		l.Wake(o, quarantined, early)
		return nil
	case 3: // free any address in quarantine
		if len(n.quarantined) == 0 {
			return nil
		}
		i := r.IntN(len(n.quarantined))
		quarantined := n.quarantined[i]
		n.quarantined = slices.Delete(n.quarantined, i, i+1)
		l.Free(quarantined)
		return nil
	}
	return retireSome(r, l, n, at)
}

// retireSome retires some of what an attachment holds.
func retireSome(r *rand.Rand, l *Ledger, n *naive, at Key) error {
	h, ok := n.held[at]
	if !ok {
		return nil
	}
	states, left := map[Spot]State{}, Holding{Owner: h.Owner}
	for _, p := range h.Places {
		state := State(r.IntN(4))
		if state < Released {
			left.Places = append(left.Places, p)
			continue
		}
		states[p.Spot] = state
		n.quarantined = append(n.quarantined, Quarantined{p.Spot, state, l.Now, h.Owner})
	}
	n.held[at] = left
	if len(left.Places) == 0 {
		delete(n.held, at)
	}
	got := l.Retire(h, func(p Place) State { return states[p.Spot] })
	if diff := gocmp.Diff(left.Places, got.Places, addrs); diff != "" {
		return fmt.Errorf("left after retire (-want +got):\n%s", diff)
	}
	return nil
}

var addrs = gocmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// checkLedger compares the tables with the naive ledger.
func checkLedger(t *testing.T, s Store, want naive) {
	t.Helper()
	err := s.View(t.Context(), always(func(l *Ledger) {
		got, runs := content(l)
		byAge := func(a, b Quarantined) int {
			return cmp.Or(len(a.Pool)-len(b.Pool), cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Freed, b.Freed), a.Addr.Compare(b.Addr))
		}
		quarantined := slices.SortedFunc(slices.Values(want.quarantined), byAge)
		for _, c := range []struct {
			what      string
			want, got any
		}{{"held", want.held, got.held}, {"quarantined", quarantined, got.quarantined}, {"runs", want.runs(), runs}} {
			if diff := gocmp.Diff(c.want, c.got, addrs, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.what, diff)
			}
		}
		checkLast(t, l, want)
	}))
	if why := damage(t, s); err != nil || why != nil {
		t.Errorf("%v; it counts as damaged: %v", err, why)
	}
}

func checkLast(t *testing.T, l *Ledger, want naive) {
	t.Helper()
	for i := range 20 {
		for _, pool := range []string{"a", "b", "a\x00b", "c"} {
			var got []Spot
			for _, r := range l.Last(pool, owner(i).Identity()) {
				got = append(got, r.Spot)
			}
			sorted := cmpopts.SortSlices(func(a, b Spot) bool { return a.Addr.Less(b.Addr) })
			if diff := gocmp.Diff(want.last(pool, owner(i)), got, addrs, sorted, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("last of %v in %q (-want +got):\n%s", owner(i), pool, diff)
			}
		}
	}
}

func TestStepsRefuseWhatTheLawsForbid(t *testing.T) {
	t.Parallel()
	s, c := store(t)
	spot := Spot{"a", addr(1)}
	give(t, s, 1)
	gone := Quarantined{Spot: spot, State: Released, Freed: c.now, Owner: owner(1)}
	for name, step := range map[string]func(*Ledger){
		"give what is leased":          func(l *Ledger) { l.Give(owner(2), spot) },
		"wake what is leased":          func(l *Ledger) { l.Wake(owner(2), gone, false) },
		"free what is leased":          func(l *Ledger) { l.Free(gone) },
		"retire what is in quarantine": retireTwice,
		"free what is in no run": func(l *Ledger) {
			l.Retire(l.Holding(owner(1).Key()), func(Place) State { return Released })
			l.takeFromRun(spot)
			l.Free(gone)
		},
		"give beside a run that ends before it begins": func(l *Ledger) {
			l.run.put(runKey("a", addr(5)), appendAddr(nil, addr(9)))
			l.Give(owner(2), Spot{"a", addr(4)})
		},
	} {
		if err := s.Update(t.Context(), always(step)); !errors.Is(err, errDamaged) {
			t.Errorf("%s: got %v, want ErrDamaged", name, err)
		}
	}
	checkLedger(t, s, naive{held: map[Key]Holding{
		owner(1).Key(): {owner(1), []Place{{spot, c.now, false}}},
	}})
}

func retireTwice(l *Ledger) {
	h := l.Holding(owner(1).Key())
	all := func(Place) State { return Released }
	l.Retire(h, all)
	l.Retire(h, all)
}

func TestTheHolderOfAnAddressIsFoundAndNamed(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	for n := range 9 {
		give(t, s, n)
	}
	must(t, s.Update(t.Context(), end(8)))
	must(t, s.View(t.Context(), always(func(l *Ledger) {
		for n := range 8 {
			h := l.Holder(Spot{"a", addr(n)})
			want := conf.Attachment{ContainerID: conf.ContainerID(fmt.Sprint("c", n)), IfName: "net1"}
			if h.Owner != owner(n) || h.Owner.Attachment() != want {
				t.Errorf("holder of %v: got %+v", addr(n), h)
			}
		}
		for _, spot := range []Spot{{"a", addr(8)}, {"b", addr(1)}} {
			if h := l.Holder(spot); len(h.Places) > 0 {
				t.Errorf("holder of %v: got %+v, want none", spot, h)
			}
		}
	})))
}

// A call that looks at a few neighbours of each position sees all holdings over
// time.
func TestNeighboursAreAllHoldingsFromAnyPlace(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	const n = 50
	err := s.Update(t.Context(), always(func(l *Ledger) {
		for i := range n {
			l.Give(owner(i), Spot{"a", addr(i)})
		}
	}))
	must(t, err)
	next := map[netns.Ref]bool{}
	for from := range 400 {
		err := s.View(t.Context(), always(func(l *Ledger) {
			seen := map[netns.Ref]bool{}
			for nb := range l.Neighbours(owner(from).Key()) {
				if len(seen) == 0 {
					next[nb.Netns] = true
				}
				if own := owner(from).Netns; nb.Netns == own && len(seen) != n-1 {
					t.Errorf("%s is its own neighbour %d, want the last one", own.Path, len(seen))
				}
				seen[nb.Netns] = true
				if h := nb.Holding(); h.Owner.Netns != nb.Netns {
					t.Error(h)
				}
			}
			if len(seen) != n {
				t.Errorf("from %d: %d neighbours, want %d", from, len(seen), n)
			}
		}))
		must(t, err)
	}
	if len(next) < n*9/10 {
		t.Errorf("%d of %d were the next neighbour of one of 400 attachments", len(next), n)
	}
}

// must is for what a test needs and does not test.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
