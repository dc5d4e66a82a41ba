// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
)

// TestRailsStayTogether does random operations with random groups of rails, on
// which other pods have addresses of one rail, and checks after each what must
// hold of it, by looking at every slot.
func TestRailsStayTogether(t *testing.T) {
	t.Parallel()
	seeds := uint64(12)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 11))
			w := world{newNode(t), rnd, randomRails(rnd), map[string][]string{}}
			for range 120 {
				w.now += time.Duration(rnd.IntN(40)) * time.Second
				w.step()
				if t.Failed() {
					t.Logf("rails %v", w.rails)
					return
				}
			}
		})
	}
}

type world struct {
	*node
	rnd   *rand.Rand
	rails []ipam.Subnet
	has   map[string][]string // what pods have leased
}

// randomRails are 2 to 8 rails with up to 30 addresses.
func randomRails(rnd *rand.Rand) []ipam.Subnet {
	out := make([]ipam.Subnet, 2+rnd.IntN(7))
	format, bits := "10.%d.0.64/%d", 27
	if rnd.IntN(3) == 0 {
		format, bits = "fd00:0:0:%d::40/%d", 123
	}
	bits += rnd.IntN(2)
	for i := range out {
		s := subnet(fmt.Sprintf(format, i, bits+rnd.IntN(2)))
		at := func() netip.Addr { return add(s.Prefix.Addr(), uint64(rnd.IntN(16))) }
		for range rnd.IntN(4) {
			a := at()
			s.Exclude = append(s.Exclude, netrange.Range{First: a, Last: a})
		}
		if rnd.IntN(2) == 0 {
			s.Ranges = []netrange.Range{{First: s.Prefix.Addr(), Last: add(s.Prefix.Addr(), 8)}, {First: add(s.Prefix.Addr(), 10), Last: add(s.Prefix.Addr(), 31)}}
		}
		if rnd.IntN(2) == 0 {
			s.Gateway = at()
		}
		out[i] = s
	}
	return group(out...)
}

func (w world) step() {
	w.t.Helper()
	pod := fmt.Sprint("pod", w.rnd.IntN(9))
	a := ask(pod, w.rails...)
	switch w.rnd.IntN(8) {
	case 0, 1:
		w.other()
	case 2, 3:
		w.release(pod)
		delete(w.has, pod)
	case 4:
		w.comeBack(a)
	case 5:
		w.reject(a)
	default:
		w.acquire(a)
	}
}

// other leases or releases an address of one rail.
func (w world) other() {
	i := w.rnd.IntN(len(w.rails))
	one := w.rails[i]
	one.Group = 0
	pod := fmt.Sprint("other", i, "-", w.rnd.IntN(6))
	if w.rnd.IntN(3) == 0 {
		w.release(pod)
		delete(w.has, pod)
	} else if l, err := w.lease(ask(pod, one)); err == nil {
		w.has[pod] = l
	}
	w.nothingTwice()
}

// acquire checks an Acquire against what was free before it.
func (w world) acquire(a ipam.Ask) (leases []string) {
	w.t.Helper()
	pod, open := a.Owner.PodName, w.open(a)
	w.log.Reset()
	said, failed := w.book().Preview(ctx, a)
	leases, err := w.lease(a)
	switch had := w.has[pod]; {
	case (failed == nil) != (err == nil) || err == nil && len(said) != len(leases):
		w.t.Errorf("announced %v, %v; got %v, %v", said, failed, leases, err)
	case err != nil:
		if len(open) > 0 || len(had) > 0 {
			w.t.Errorf("got %v though %v are open", err, open)
		}
		return nil
	case len(had) > 0 && !slices.Equal(had, leases):
		w.t.Errorf("had %v, got %v", had, leases)
	case len(had) == 0 && len(open) > 0 && !slices.Contains(open, w.slot(leases)):
		w.t.Errorf("got %v though %v are open", leases, open)
	}
	for i, l := range said {
		if !strings.HasPrefix(leases[i], l.Prefix.String()) {
			w.t.Errorf("announced %v, got %v", said, leases)
		}
	}
	if warned := w.log.Len() > 0 && strings.Contains(w.log.String(), "different host indexes"); warned != (len(w.has[pod]) == 0 && w.slot(leases) < 0) {
		w.t.Errorf("got %v, log %s", leases, w.log.String())
	}
	w.has[pod] = leases
	w.nothingTwice()
	return leases
}

// comeBack checks that a pod that comes back gets what it had.
func (w world) comeBack(a ipam.Ask) {
	pod := a.Owner.PodName
	had := w.acquire(a)
	if had == nil {
		return
	}
	w.release(pod)
	delete(w.has, pod)
	w.now += time.Second
	for i := range had {
		had[i] = strings.TrimSuffix(had[i], " early")
	}
	a.Owner.ContainerID += "-new"
	back := w.acquire(a)
	if w.slot(had) >= 0 && !slices.Equal(had, back) {
		w.t.Errorf("had %v, comes back to %v", had, back)
	}
	if err := w.book().Release(ctx, a.Owner.Key(), netns.Ref{}); err != nil {
		w.t.Error(err)
	}
	delete(w.has, pod)
}

// reject checks that a slot that is taken on one rail is given up on all.
func (w world) reject(a ipam.Ask) {
	had := w.acquire(a)
	if had == nil {
		return
	}
	bad := w.rnd.IntN(len(had))
	if err := w.book().Reject(ctx, a, []netip.Addr{addrOf(had[bad])}); err != nil {
		w.t.Error(err)
	}
	delete(w.has, a.Owner.PodName)
	if w.slot(had) < 0 {
		w.release(a.Owner.PodName) // others may have stayed
	} else if slices.Contains(w.open(a), w.slot(had)) {
		w.t.Errorf("%v is open still", had)
	}
	w.acquire(a)
}

func addrOf(lease string) netip.Addr {
	text, _, _ := strings.Cut(lease, " ")
	return netip.MustParsePrefix(text).Addr()
}

// slot returns the slot that leases have in common, or -1.
func (w world) slot(leases []string) int {
	slot := -1
	for i, l := range leases {
		this := distance(w.rails[i].Prefix.Addr(), addrOf(l))
		if i > 0 && this != slot {
			return -1
		}
		slot = this
	}
	return slot
}

func distance(from, to netip.Addr) int {
	n := 0
	for ; from != to; from = from.Next() {
		n++
	}
	return n
}

// open returns the slots that are usable on all rails and free, have rested
// long enough, or are the pod's own and rest.
func (w world) open(a ipam.Ask) []int {
	used := map[netip.Addr]bool{}
	entries, err := w.book().List(ctx, "rail")
	must(w.t, err)
	for _, e := range entries {
		own := e.State.String() == "quarantined" && e.Owner.PodName == a.Owner.PodName
		rested := e.State.String() != "leased" && e.Age >= a.Quarantine
		used[e.Addr] = !own && !rested
	}
	var out []int
	for slot := range 32 {
		open := true
		for _, s := range w.rails {
			addr := add(s.Prefix.Addr(), uint64(slot))
			open = open && usable(s, addr) && !used[addr]
		}
		if open {
			out = append(out, slot)
		}
	}
	return out
}

func usable(s ipam.Subnet, a netip.Addr) bool {
	has := func(r netrange.Range) bool { return r.Contains(a) }
	_, never := netrange.Unusable(s.Prefix)[a]
	return s.Prefix.Contains(a) && !never && a != s.Gateway && !slices.ContainsFunc(s.Exclude, has) &&
		(len(s.Ranges) == 0 || slices.ContainsFunc(s.Ranges, has))
}

// nothingTwice checks that nothing is leased but what pods have, and to them.
func (w world) nothingTwice() {
	w.t.Helper()
	want := map[netip.Addr]string{}
	for pod, leases := range w.has {
		for _, l := range leases {
			if other, ok := want[addrOf(l)]; ok {
				w.t.Errorf("%v is leased to %s and %s", l, pod, other)
			}
			want[addrOf(l)] = pod
		}
	}
	got := map[netip.Addr]string{}
	entries, err := w.book().List(ctx, "rail")
	must(w.t, err)
	for _, e := range entries {
		if e.State.String() == "leased" {
			got[e.Addr] = e.Owner.PodName
		}
	}
	if d := cmp.Diff(fmt.Sprint(want), fmt.Sprint(got)); d != "" {
		w.t.Errorf("leased (-want +got):\n%s", d)
	}
}
