// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
)

// A caller that cannot ask the network gets no address before its quarantine is over.
func TestAnAddressInQuarantineIsNotLeasedWithoutAConflictProbe(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := subnet("10.0.0.0/24", "10.0.0.9")
	n.mustLease(ask("a", s))
	n.release("a")
	n.now += 30 * time.Second

	b := ask("b", s)
	b.RefuseQuarantined = true
	_, err := n.lease(b)
	wantCode(t, err, cnierr.PoolExhausted, "10.0.0.0/24", "1m30s", "cannot probe for conflicts")
	b.Requested = []netip.Addr{netip.MustParseAddr("10.0.0.9")}
	_, err = n.lease(b)
	wantCode(t, err, cnierr.TryAgain, "10.0.0.9", "1m30s", "cannot probe for conflicts")
	n.wantEntries("rail 10.0.0.9 quarantined a 30s")

	a := ask("a", s)
	a.RefuseQuarantined = true
	if got := n.mustLease(a); got[0] != "10.0.0.9/24" {
		t.Errorf("the pod that had it got %v", got)
	}
	n.release("a")
	n.now += 2 * time.Minute
	if got := n.mustLease(b); got[0] != "10.0.0.9/24" {
		t.Errorf("after the quarantine: %v", got)
	}
}

// STATUS of a program that cannot ask the network counts these addresses as used.
func TestAQuarantineEndsAtItsTime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state           ipam.State
		age, quarantine time.Duration
		want            bool
	}{
		{ledger.Released, 119 * time.Second, 2 * time.Minute, true},
		{ledger.Released, 2 * time.Minute, 2 * time.Minute, false},
		{ledger.Released, 0, 0, false},
		{ledger.Conflicted, 59 * time.Second, 0, true}, // a minute at least
		{ledger.Conflicted, time.Minute, 0, false},
		{ledger.Conflicted, time.Minute, 2 * time.Minute, true},
		{ledger.Leased, 0, time.Hour, false},
		{ledger.SetAside, 0, time.Hour, false},
	} {
		if got := (ipam.Entry{State: c.state, Age: c.age}).InQuarantine(c.quarantine); got != c.want {
			t.Errorf("%v for %s of %s: in quarantine: %t", c.state, c.age, c.quarantine, got)
		}
	}
}

func TestUsageTellsAddressesInQuarantineFromThoseAfterIt(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := ask("a", subnet("10.0.0.0/24", "10.0.0.9"))
	n.mustLease(a)
	n.release("a")
	for _, want := range []int{1, 0} {
		n.now += 70 * time.Second // of 120
		got, err := n.book().Usage(ctx, a)
		if err != nil || got[0].Quarantined != 1 || got[0].Refused != want {
			t.Errorf("%+v, error %v, want %d in quarantine", got, err, want)
		}
	}
}

func TestARequestedAddressInQuarantineIsThatOneOfSeveral(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	want := func(pod, addr string) ipam.Ask {
		a := ask(pod, subnet("10.0.0.0/24"))
		a.Requested = []netip.Addr{netip.MustParseAddr(addr)}
		return a
	}
	for i, addr := range []string{"10.0.0.8", "10.0.0.9", "10.0.0.10"} {
		pod := fmt.Sprint("pod", i)
		n.mustLease(want(pod, addr))
		n.release(pod)
	}
	if l := n.mustLease(want("other", "10.0.0.9")); len(l) != 1 || l[0] != "10.0.0.9/24 early" {
		t.Errorf("got %v", l)
	}
}
