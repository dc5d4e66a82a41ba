// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
)

// group makes subnets one group.
func group(subnets ...ipam.Subnet) []ipam.Subnet {
	for i := range subnets {
		subnets[i].Group = 1
	}
	return subnets
}

// three is three rails of 13 addresses.
func three() []ipam.Subnet {
	return group(subnet("172.16.11.0/28 172.16.11.14"), subnet("172.16.12.0/28 172.16.12.14"), subnet("172.16.13.0/28 172.16.13.14"))
}

// slots returns the last bytes of addresses.
func slots(leases []string) []string {
	var out []string
	for _, l := range leases {
		a, _, _ := strings.Cut(l, "/")
		out = append(out, a[strings.LastIndexAny(a, ".:")+1:])
	}
	return slices.Compact(out)
}

func requesting(a ipam.Ask, addrs ...string) ipam.Ask {
	for _, addr := range addrs {
		a.Requested = append(a.Requested, netip.MustParseAddr(addr))
	}
	return a
}

// occupy leases addresses to others.
func (n *node) occupy(s []ipam.Subnet, addrs ...string) {
	n.t.Helper()
	for _, addr := range addrs {
		for _, one := range s {
			if one.Group = 0; one.Prefix.Contains(netip.MustParseAddr(addr)) {
				n.mustLease(requesting(ask("other-"+addr, one), addr))
			}
		}
	}
}

func (n *node) wantWarning(text string) {
	n.t.Helper()
	const prefix = "the rails have different host indexes: "
	if got := strings.Count(n.log.String(), prefix); text == "" && got > 0 || text != "" && (got != 1 || !strings.Contains(n.log.String(), prefix+text)) {
		n.t.Errorf("%d warnings, want one that says %q; log %s", got, text, n.log.String())
	}
}

func TestRailsGetTheSameSlotWheneverOneIsFreeOnAll(t *testing.T) {
	t.Parallel()
	n, s := newNode(t), three()
	// All but 5 and 9 are used on one rail or another.
	n.occupy(s, "172.16.11.1", "172.16.12.2", "172.16.13.3", "172.16.11.4", "172.16.12.6", "172.16.13.7", "172.16.12.8", "172.16.11.10",
		"172.16.12.10", "172.16.11.11", "172.16.12.12", "172.16.13.13")
	got := slices.Concat(slots(n.mustLease(ask("a", s...))), slots(n.mustLease(ask("b", s...))))
	slices.Sort(got)
	if d := cmp.Diff([]string{"5", "9"}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	n.wantWarning("")
	if l := n.mustLease(ask("c", s...)); len(slots(l)) == 1 {
		t.Errorf("got %v, and no slot is free", l)
	}
	n.wantWarning("no host index is free on all rails")
	for _, text := range []string{"pool=rail", "pod ns/c", "172.16.11."} {
		if !strings.Contains(n.log.String(), text) {
			t.Errorf("the warning does not say %q: %s", text, n.log.String())
		}
	}
}

func TestRailsOfDifferentSizesGetTheSameSlot(t *testing.T) {
	t.Parallel()
	for _, s := range [][]ipam.Subnet{
		group(subnet("10.0.0.0/8"), subnet("172.16.11.32/28"), subnet("192.168.0.0/16", "192.168.0.0-192.168.3.255")),
		group(subnet("fd00::/64"), subnet("fd00:0:0:1::f0/124")),
		group(subnet("10.0.0.0/31"), subnet("10.0.0.2/31 10.0.0.2")),
		group(subnet("10.0.0.1/32"), subnet("10.0.0.2/32")),
	} {
		n := newNode(t)
		l := n.mustLease(ask("a", s...))
		bytes := func(i int) byte {
			a := netip.MustParsePrefix(l[i])
			b := a.Addr().AsSlice()
			network := a.Masked().Addr().AsSlice()
			return b[len(b)-1] - network[len(b)-1]
		}
		for i := range l {
			if bytes(i) != bytes(0) {
				t.Errorf("got %v", l)
			}
		}
		n.wantWarning("")
	}
}

func TestRailsFollowARequestedAddress(t *testing.T) {
	t.Parallel()
	n, s := newNode(t), three()
	if l := n.mustLease(requesting(ask("a", s...), "172.16.12.7")); !slices.Equal(slots(l), []string{"7"}) {
		t.Errorf("got %v", l)
	}
	n.occupy(s, "172.16.13.9")
	l := n.mustLease(requesting(ask("b", s...), "172.16.12.9"))
	if got := slots(l); len(got) != 3 || got[0] != got[2] || got[1] != "9" {
		t.Errorf("got %v, want the others to agree", l)
	}
	n.wantWarning("the host index of an address that was requested")
	n.log.Reset()
	if l := n.mustLease(requesting(ask("c", s...), "172.16.11.1", "172.16.13.2")); !slices.Equal(slots(l), []string{"1", "1", "2"}[1:]) {
		t.Errorf("got %v, want the second to follow the first", l)
	}
	n.wantWarning("the addresses that were requested")
	n = newNode(t)
	wide, narrow := subnet("10.0.0.0/16"), subnet("172.16.11.0/24")
	l = n.mustLease(requesting(ask("a", group(wide, narrow)...), "10.0.11.10"))
	if !strings.HasPrefix(l[1], "172.16.11.") || slots(l)[0] != "10" {
		t.Errorf("got %v", l)
	}
	n.wantWarning("the host index of an address that was requested")
	n = newNode(t)
	n.mustLease(requesting(ask("a", s...), "172.16.11.3", "172.16.12.5", "172.16.13.6"))
	n.wantWarning("") // so it was asked
}

func TestANewRailFollowsThoseThatAreKept(t *testing.T) {
	t.Parallel()
	n, s := newNode(t), three()
	first := n.mustLease(ask("a", s[:2]...))
	if l := n.mustLease(ask("a", s...)); len(slots(l)) != 1 || !slices.Equal(first, l[:2]) {
		t.Errorf("got %v, then %v", first, l)
	}
	first = n.mustLease(ask("b", s[:2]...))
	n.occupy(s, "172.16.13."+slots(first)[0])
	if l := n.mustLease(ask("b", s...)); len(slots(l)) != 2 || !slices.Equal(first, l[:2]) {
		t.Errorf("got %v, then %v", first, l)
	}
	n.wantWarning("the host index of an address that was requested, or that the interface had")
	n.mustLease(requesting(ask("c", s[0]), "172.16.11.3"))
	l := n.mustLease(requesting(ask("c", s...), "172.16.12.11"))
	if d := cmp.Diff([]string{"172.16.11.3/28", "172.16.12.11/28", "172.16.13.11/28"}, l); d != "" {
		t.Errorf("what is requested comes before what is kept (-want +got):\n%s", d)
	}
}

// A pod may have had addresses by other networks, too: it comes back to the
// slot that it had on all rails.
func TestAPodComesBackToTheSlotThatItHadOnMostRails(t *testing.T) {
	t.Parallel()
	n, s := newNode(t), three()
	n.mustLease(requesting(ask("a", s[0]), "172.16.11.3"))
	n.release("a")
	n.mustLease(requesting(ask("a", s...), "172.16.11.5"))
	n.release("a")
	if l := n.mustLease(ask("a", s...)); !slices.Equal(slots(l), []string{"5"}) {
		t.Errorf("got %v", l)
	}
}

// What the pod had may be in another namespace since the database was rebuilt.
func TestASlotIsNotGivenBackThatANamespaceHasAnAddressOf(t *testing.T) {
	t.Parallel()
	n, s := newNode(t), three()
	a := ask("a", s...)
	had := n.mustLease(a)
	n.setAside(addrOf(had[1]), inNamespace("x"))
	n.release("a")
	if l := n.mustLease(a); len(slots(l)) != 1 || addrOf(l[1]) == addrOf(had[1]) {
		t.Errorf("had %v, got %v", had, l)
	}
}

// Used addresses of neighbouring subnets are one run.
func TestARunThatGoesOnInTheNextSubnetEndsWithTheSubnet(t *testing.T) {
	t.Parallel()
	n, s := newNode(t), group(subnet("10.0.0.0/31"), subnet("10.0.0.4/31"))
	n.occupy(append(s, subnet("10.0.0.2/31")), "10.0.0.0", "10.0.0.1", "10.0.0.2")
	for i := range 8 { // their searches start anywhere
		_, err := n.lease(ask(fmt.Sprint("pod", i), s...))
		wantCode(t, err, cnierr.PoolExhausted, "10.0.0.0/31")
	}
}

// Eight addresses come to rest with each pod, and so many must become free.
func TestAddressesOfManyRailsDoNotPileUp(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for i := range 30 {
		n.mustLease(ask(fmt.Sprint("pod", i), eight()...))
		n.release(fmt.Sprint("pod", i))
		n.now += time.Minute
	}
	if got := len(n.entries()); got > 80 {
		t.Errorf("%d addresses rest, want those of a few pods", got)
	}
}

func TestRoomIsMadeForACommonSlot(t *testing.T) {
	t.Parallel()
	n, s := newNode(t), group(subnet("10.0.0.0/29", "10.0.0.2-10.0.0.4"), subnet("10.1.0.0/29", "10.1.0.2-10.1.0.4"))
	n.occupy(s, "10.0.0.2", "10.1.0.3", "10.1.0.4")
	n.release("other-10.1.0.4")
	n.now += 2 * time.Minute // one address is past its quarantine, too few for a batch
	if l := n.mustLease(ask("a", s...)); !slices.Equal(slots(l), []string{"4"}) {
		t.Errorf("got %v", l)
	}
	n.dead["/run/netns/a"] = true // and this one is gone
	b := ask("b", s...)
	b.Quarantine = 0
	if l := n.mustLease(b); !slices.Equal(slots(l), []string{"4"}) {
		t.Errorf("got %v", l)
	}
	n.wantWarning("")
}

func TestRoomIsMadeForTheSlotOfARequestedAddress(t *testing.T) {
	t.Parallel()
	n, s := newNode(t), three()
	n.occupy(s, "172.16.12.7")
	n.release("other-172.16.12.7")
	n.now += 2 * time.Minute
	if l := n.mustLease(requesting(ask("a", s...), "172.16.11.7")); !slices.Equal(slots(l), []string{"7"}) {
		t.Errorf("got %v", l)
	}
}

func TestRejectedAddressTakesItsSlotFromTheWholeGroup(t *testing.T) {
	t.Parallel()
	n, s := newNode(t), three()
	six := subnet("fd00::/64")
	a := ask("a", append(s, six)...)
	first := n.mustLease(a)
	must(t, n.book().Reject(ctx, a, []netip.Addr{netip.MustParsePrefix(first[1]).Addr()}))
	second := n.mustLease(a)
	if len(slots(second[:3])) != 1 || second[0] == first[0] || second[3] != first[3] {
		t.Errorf("got %v, then %v", first, second)
	}
	n.wantWarning("")
	n.release("a")
	if back := n.mustLease(a); !slices.Equal(back, second) {
		t.Errorf("got %v after %v", back, second)
	}
}

// The first group has subnets that overlap, so it has no common slot. Another has the slot of the
// next one by chance, and keeps it.
func TestGroupsOfRailsHaveNothingToDoWithEachOther(t *testing.T) {
	t.Parallel()
	for i := range 4 {
		n, pod := newNode(t), fmt.Sprint("pod", i)
		all := []ipam.Subnet{
			subnet("10.5.0.0/29"), subnet("10.5.0.0/28"), subnet("10.1.0.0/29"), subnet("10.2.0.0/29"),
			subnet("10.3.0.0/29", "10.3.0.2-10.3.0.3"), subnet("10.4.0.0/29", "10.4.0.1-10.4.0.2"),
		}
		for i := range all {
			all[i].Group = 1 + i/2
		}
		a := requesting(ask(pod, all...), "10.1.0.2")
		if d := cmp.Diff([]string{"10.1.0.2/29", "10.2.0.2/29", "10.3.0.2/29", "10.4.0.2/29"}, n.mustLease(a)[2:]); d != "" {
			t.Errorf("%s (-want +got):\n%s", pod, d)
		}
		must(t, n.book().Reject(ctx, a, a.Requested))
		want := []string{"rail 10.1.0.2 conflict", "rail 10.2.0.2 quarantined", "rail 10.3.0.2 leased", "rail 10.4.0.2 leased"}
		for i, e := range n.entries()[:4] {
			if !strings.HasPrefix(e, want[i]+" ") {
				t.Errorf("after the conflict: %s, want %s", e, want[i])
			}
		}
	}
}

func TestRejectedAddressOfNoGroupGoesAlone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := requesting(ask("a", subnet("10.0.0.0/24"), subnet("10.1.0.0/24")), "10.0.0.7", "10.1.0.7")
	n.mustLease(a)
	must(t, n.book().Reject(ctx, a, a.Requested[:1]))
	n.wantEntries("rail 10.0.0.7 conflict a 0s", "rail 10.1.0.7 leased a 0s")
	if u := n.usage(a); u[0].Leased+u[1].Quarantined != 0 || u[0].Quarantined+u[1].Leased != 2 || u[0].Refused != 1 {
		t.Errorf("used are %+v", u)
	}
}

func TestRejectWithoutAnotherSlotGivesWhatThereIs(t *testing.T) {
	t.Parallel()
	n, s := newNode(t), group(subnet("10.0.0.0/29", "10.0.0.2-10.0.0.3"), subnet("10.1.0.0/29", "10.1.0.2-10.1.0.3"))
	n.occupy(s, "10.0.0.3")
	a := ask("a", s...)
	if l := n.mustLease(a); !slices.Equal(slots(l), []string{"2"}) {
		t.Errorf("got %v", l)
	}
	must(t, n.book().Reject(ctx, a, []netip.Addr{netip.MustParseAddr("10.1.0.2")}))
	if d := cmp.Diff([]string{"10.0.0.2/29", "10.1.0.3/29"}, n.mustLease(a)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	n.wantWarning("no host index is free on all rails")
}

func TestRailsInOneSubnetGetAnAddressEach(t *testing.T) {
	t.Parallel()
	n, s := newNode(t), subnet("10.0.0.0/28 10.0.0.14")
	s.Group = 1
	a := requesting(ask("a", s, s, s, s), "10.0.0.9", "10.0.0.3")
	first := n.mustLease(a)
	distinct := slices.Compact(slices.Sorted(slices.Values(first)))
	if len(distinct) != 4 || first[0] != "10.0.0.9/28" || first[1] != "10.0.0.3/28" {
		t.Errorf("got %v", first)
	}
	if again := n.mustLease(a); !slices.Equal(first, again) {
		t.Errorf("got %v, then %v", first, again)
	}
	n.wantWarning("")
	for _, usage := range [][]ipam.Usage{n.usage(a), n.usage(ask("a", s))} {
		if len(usage) != 1 || usage[0].Leased != 4 || usage[0].Free.Int64() != 9 || usage[0].Total.Int64() != 16 {
			t.Errorf("got %v", usage)
		}
	}
	low, high := subnet("10.0.0.0/28", "10.0.0.1-10.0.0.4"), subnet("10.0.0.0/28", "10.0.0.3-10.0.0.9")
	if u := n.usage(ask("a", low, high)); len(u) != 1 || u[0].Leased+u[0].Quarantined+int(u[0].Free.Int64()) != 9 {
		t.Errorf("got %v", u)
	}
	for _, addrs := range [][]string{{"10.0.0.1", "10.0.0.1"}, {"10.0.0.1", "10.0.0.2", "10.0.0.4", "10.0.0.5", "10.0.0.6"}} {
		_, err := n.lease(requesting(ask("b", s, s, s, s), addrs...))
		wantCode(t, err, cnierr.BadConfig, "is requested too")
	}
	n.mustLease(ask("c", s, s, s, s, s, s, s))
	_, err := n.lease(ask("d", s, s, s))
	wantCode(t, err, cnierr.PoolExhausted, "13 leased")
	if l := n.mustLease(ask("d", s, s)); len(l) != 2 {
		t.Errorf("got %v", l)
	}
}

func (n *node) usage(a ipam.Ask) []ipam.Usage {
	n.t.Helper()
	u, err := n.book().Usage(ctx, a)
	must(n.t, err)
	return u
}
