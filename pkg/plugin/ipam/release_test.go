// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam_test

import (
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
)

// entries lists the book as "pool address state owner age" lines.
func (n *node) entries() []string {
	n.t.Helper()
	list, err := n.book().List(ctx, "")
	must(n.t, err)
	var out []string
	for _, e := range list {
		out = append(out, fmt.Sprintf("%s %v %v %s %v", e.Pool, e.Addr, e.State, e.Owner.PodName, e.Age))
	}
	return out
}

func (n *node) wantEntries(want ...string) {
	n.t.Helper()
	if d := cmp.Diff(want, n.entries()); d != "" {
		n.t.Errorf("entries (-want +got):\n%s", d)
	}
}

func in(pool string, a ipam.Ask) ipam.Ask {
	a.Pool = pool
	return a
}

func TestReleaseFindsWhatIsHeldInAllPools(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.mustLease(in("rail2", ask("a", subnet("10.2.0.10/32"))))
	n.mustLease(in("rail10", ask("a", subnet("10.10.0.1/32"), subnet("fd00::1/128"))))
	n.mustLease(in("rail2", ask("b", subnet("10.2.0.2/32"))))
	n.now += time.Second
	n.release("a")
	n.now += 2 * time.Second
	n.wantEntries(
		"rail10 10.10.0.1 quarantined a 2s",
		"rail10 fd00::1 quarantined a 2s",
		"rail2 10.2.0.2 leased b 3s",
		"rail2 10.2.0.10 quarantined a 2s",
	)
	if list, err := n.book().List(ctx, "rail2"); err != nil || len(list) != 2 {
		t.Errorf("of one pool: %v, %v", list, err)
	}
}

// An attachment has a lease of each plugin of its list. None of them touches that of
// another, whether it asks again, is refused, rejects or releases.
func TestEachPluginHasItsOwnLease(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := subnet("10.0.0.0/24")
	of := func(program, network string) ipam.Ask {
		a := ask("a", s)
		a.Owner.Program, a.Owner.Network = program, network
		return a
	}
	asks := []ipam.Ask{of("macvlan", "net"), of("roce", "net"), of("macvlan", "another")}
	var had []string
	for _, a := range asks {
		had = append(had, n.mustLease(a)[0])
	}
	if had[0] == had[1] || had[1] == had[2] || had[0] == had[2] {
		t.Fatalf("leased %q", had)
	}
	for i, a := range asks {
		if again := n.mustLease(a)[0]; again != had[i] {
			t.Errorf("%s of %s: got %s, had %s", a.Owner.Program, a.Owner.Network, again, had[i])
		}
		must(t, n.book().Reject(ctx, a, []netip.Addr{netip.MustParsePrefix(had[(i+1)%3]).Addr()}))
	}
	other := asks[1]
	other.Subnets = []ipam.Subnet{subnet("10.1.0.0/24")}
	n.mustLease(other)
	must(t, n.book().Release(ctx, other.Owner.Key(), other.Owner.Netns))
	for _, i := range []int{0, 2} {
		if again := n.mustLease(asks[i])[0]; again != had[i] {
			t.Errorf("%s of %s: got %s, had %s", asks[i].Owner.Program, asks[i].Owner.Network, again, had[i])
		}
	}
}

// The second plugin of one type in a list is refused, and changes nothing.
func TestALeaseOfThePluginBeforeIsNotTakenOver(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	first := ask("a", subnet("10.0.0.0/24"))
	first.Owner.Program = "ptp"
	had := n.mustLease(first)[0]
	for _, s := range []ipam.Subnet{subnet("10.0.0.0/24"), subnet("10.1.0.0/24")} {
		second := ask("a", s)
		second.Owner.Program = "ptp"
		second.Earlier = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParsePrefix(had).Addr()}
		for _, pool := range []string{second.Pool, "another"} {
			second.Pool = pool
			_, err := n.lease(second)
			wantCode(t, err, cnierr.BadConfig, "ptp")
		}
	}
	n.wantEntries("rail " + strings.TrimSuffix(had, "/24") + " leased a 0s")
}

func TestReleaseOfOneAddressLeavesTheOthers(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.mustLease(ask("a", subnet("10.0.0.1/32"), subnet("fd00::1/128")))
	n.mustLease(in("rail3", ask("a", subnet("10.0.0.1/32")))) // of another network
	one := netip.MustParseAddr("10.0.0.1")
	for range 2 { // the second time it is already in quarantine
		must(t, n.book().ReleaseAddress(ctx, "rail", one))
	}
	n.wantEntries("rail 10.0.0.1 quarantined a 0s", "rail fd00::1 leased a 0s", "rail3 10.0.0.1 leased a 0s")
	for name, err := range map[string]error{
		"another address": n.book().ReleaseAddress(ctx, "rail", one.Next()),
		"another pool":    n.book().ReleaseAddress(ctx, "rail2", one),
		"no database":     newNode(t).book().ReleaseAddress(ctx, "rail", one),
		"no address":      n.book().ReleaseAddress(ctx, "rail", netip.Addr{}),
	} {
		if cnierr.CodeOf(err) != cnierr.BadConfig {
			t.Errorf("%s: got %v, want code %d", name, err, cnierr.BadConfig)
		}
	}
}

// Another host on the network uses the address. Also with a quarantine of zero,
// it must not be leased again at once, and its last owner must not get it back.
func TestARejectedAddressIsInQuarantineForAMinuteAtLeast(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := ask("a", subnet("10.0.0.0/30"))
	a.Quarantine = 0
	first := n.mustLease(a)
	reject := func(l string) {
		t.Helper()
		must(t, n.book().Reject(ctx, a, []netip.Addr{netip.MustParsePrefix(l).Addr()}))
	}
	reject(first[0])
	second := n.mustLease(a)
	if first[0] == second[0] {
		t.Fatalf("got %v again", first)
	}
	n.now += time.Second
	reject(second[0])
	if third := n.mustLease(a); third[0] != first[0]+" early" {
		t.Errorf("with nothing else left: got %v, want %v early", third, first)
	}
	if again := n.mustLease(a); again[0] != first[0]+" early" {
		t.Errorf("asked again: got %v, want it to be early still", again)
	}
	n.release("a")
	n.now += time.Minute
	b := ask("b", subnet("10.0.0.0/30"))
	b.Quarantine = 0
	if l := n.mustLease(b); strings.HasSuffix(l[0], "early") {
		t.Errorf("after a minute: got %v", l)
	}
}

func TestRejectLeavesAloneWhatTheAttachmentDoesNotHold(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.mustLease(ask("a", subnet("10.0.0.1/32")))
	for _, c := range []struct{ pool, addr, id string }{
		{"rail", "10.0.0.1", "id-b"}, {"rail2", "10.0.0.1", "id-a"}, {"rail", "10.0.0.2", "id-a"},
	} {
		a := in(c.pool, ask("a", subnet("10.0.0.1/32")))
		a.Owner.ContainerID = c.id
		if err := n.book().Reject(ctx, a, []netip.Addr{netip.MustParseAddr(c.addr)}); err != nil {
			t.Error(err)
		}
	}
	n.wantEntries("rail 10.0.0.1 leased a 0s")
	// In another pool it holds the address, and here the same slot.
	n.mustLease(in("rail2", ask("a", subnet("10.1.0.1/32"))))
	b := ask("a", group(subnet("10.0.0.1/32"), subnet("10.1.0.1/32"))...)
	if err := n.book().Reject(ctx, b, []netip.Addr{netip.MustParseAddr("10.1.0.1")}); err != nil {
		t.Error(err)
	}
	n.wantEntries("rail 10.0.0.1 leased a 0s", "rail2 10.1.0.1 leased a 0s")
}

func TestExpiredAddressesAreFreedAFewAtATime(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := subnet("10.0.0.0/16")
	for i := range 3 { // too few: their last owners can get them back
		n.mustLease(ask(fmt.Sprint("few", i), s))
		n.release(fmt.Sprint("few", i))
	}
	n.now += time.Hour
	if n.mustLease(ask("next", s)); len(n.entries()) != 4 {
		t.Errorf("in use are %v", n.entries())
	}
	for i := range 20 {
		n.mustLease(ask(fmt.Sprint("pod", i), s))
	}
	for i := range 20 {
		n.release(fmt.Sprint("pod", i))
	}
	n.now += time.Hour
	for i := range 6 {
		before := len(n.entries())
		n.mustLease(ask(fmt.Sprint("new", i), s))
		if freed := before + 1 - len(n.entries()); freed < 0 || freed > 4 {
			t.Errorf("one lease freed %d addresses", freed)
		}
	}
	if got := len(n.entries()); got > 11 {
		t.Errorf("%d addresses are used, want those of 7 pods and few more", got)
	}
}

// An address that another host has answered for is longer in quarantine than those behind it.
// Addresses of another pool have a quarantine of their own.
func TestAddressesBehindAConflictBecomeFree(t *testing.T) {
	t.Parallel()
	n, s := newNode(t), subnet("10.0.0.0/24")
	for i := range 6 {
		pod := fmt.Sprint("other", i)
		n.mustLease(in("other", ask(pod, s)))
		n.release(pod)
	}
	pass := func(pod string) ipam.Ask {
		a := ask(pod, s)
		a.Quarantine = 0
		return a
	}
	bad := pass("bad")
	must(t, n.book().Reject(ctx, bad, []netip.Addr{netip.MustParsePrefix(n.mustLease(bad)[0]).Addr()}))
	n.now += time.Second
	for i := range 12 {
		n.mustLease(pass(fmt.Sprint("pod", i)))
		n.release(fmt.Sprint("pod", i))
	}
	count := map[string]int{}
	for _, e := range n.entries() {
		pool, rest, _ := strings.Cut(e, " ")
		count[pool]++
		if strings.Contains(rest, "conflict") {
			count["conflict"]++
		}
	}
	if count["other"] != 6 || count["conflict"] != 1 || count["rail"] > 6 {
		t.Errorf("in use are %v", n.entries())
	}
}

func TestUsageAddsUp(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := subnet("10.0.0.0/24 10.0.0.1", "10.0.0.0-10.0.0.20")
	a := ask("a", s, subnet("fd00::/64"))
	a.Reserved = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	a.Requested = []netip.Addr{netip.MustParseAddr("10.0.0.77")} // outside of the ranges
	n.mustLease(a)
	for i := range 3 {
		b := ask(fmt.Sprint("b", i), s)
		b.Reserved = a.Reserved
		n.mustLease(b)
	}
	n.release("b1")
	got, err := n.book().Usage(ctx, ipam.Ask{Pool: "rail", Subnets: a.Subnets, Reserved: a.Reserved, Requested: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}) // of no subnet
	must(t, err)
	if u := got[0]; u.Leased != 2 || u.Quarantined != 1 || u.Free.Int64() != 15 || u.Unusable.Int64() != 238 || u.Total.Int64() != 256 {
		t.Errorf("got %v, %v free", u, u.Free)
	}
	all := new(big.Int).Lsh(big.NewInt(1), 64)
	if u := got[1]; u.Leased != 1 || u.Total.Cmp(all) != 0 || new(big.Int).Sub(all, u.Free).Int64() != 2 {
		t.Errorf("got %v, %v free", u, u.Free)
	}
	empty, err := newNode(t).book().Usage(ctx, ipam.Ask{Pool: "rail", Subnets: a.Subnets})
	if err != nil || empty[0].Free.Int64() != 19 {
		t.Errorf("without a database: %v, %v", empty, err)
	}
}

func TestARepeatedAskNotesTheNewNamespace(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := ask("a", subnet("10.0.0.1/32"))
	n.mustLease(a)
	a.Owner.Netns = netns.Ref{Path: "/run/netns/new", ID: netns.ID{Dev: 4, Ino: 7}}
	n.mustLease(a)
	list, err := n.book().List(ctx, "")
	if err != nil || !slices.ContainsFunc(list, func(e ipam.Entry) bool { return e.Owner == a.Owner }) {
		t.Errorf("got %v, %v", list, err)
	}
}
