// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
)

var ctx = context.Background()

// Two boot ids.
const (
	boot1 = "5f0c2d1e-8a3b-4c6d-9e7f-000000000001"
	boot2 = "5f0c2d1e-8a3b-4c6d-9e7f-000000000002"
)

// node is a node with a lease database and a clock and namespaces of its own.
type node struct {
	t    *testing.T
	dir  string
	boot string
	now  time.Duration
	dead map[string]bool // namespace paths
	log  bytes.Buffer

	reaped []string // the containers that were told
}

func newNode(t *testing.T) *node {
	t.Helper()
	return &node{t: t, dir: filepath.Join(t.TempDir(), "state"), boot: boot1, now: time.Hour, dead: map[string]bool{}}
}

func (n *node) book() *ipam.Book {
	return ipam.New(ipam.Config{
		Dir: n.dir, BootID: n.boot,
		Now: func() time.Duration { return n.now },
		Observe: func() func(netns.Ref) (bool, error) {
			return func(ns netns.Ref) (bool, error) { return !n.dead[ns.Path], nil }
		},
		Reaped: func(_ context.Context, o ipam.Owner) { n.reaped = append(n.reaped, o.ContainerID) },
		Log:    slog.New(slog.NewTextHandler(&n.log, nil)),
	})
}

// subnet reads "prefix [gateway]".
func subnet(text string, ranges ...string) ipam.Subnet {
	prefix, gateway, _ := strings.Cut(text, " ")
	s := ipam.Subnet{Prefix: netip.MustParsePrefix(prefix)}
	if gateway != "" {
		s.Gateway = netip.MustParseAddr(gateway)
	}
	for _, r := range ranges {
		parsed, err := netrange.Parse(r)
		if err != nil {
			panic(err)
		}
		s.Ranges = append(s.Ranges, parsed)
	}
	return s
}

// ask is what pod asks for, in a container of its own.
func ask(pod string, subnets ...ipam.Subnet) ipam.Ask {
	return ipam.Ask{
		Pool: "rail", Subnets: subnets, Quarantine: 2 * time.Minute,
		Owner: ipam.Owner{
			ContainerID: "id-" + pod, IfName: "net1", Network: "net", PodNamespace: "ns", PodName: pod, PodUID: "uid-" + pod,
			Netns: netns.Ref{Path: "/run/netns/" + pod, ID: netns.ID{Dev: 4, Ino: 100}},
		},
	}
}

// lease leases and returns the addresses.
func (n *node) lease(a ipam.Ask) ([]string, error) {
	n.t.Helper()
	leases, err := n.book().Acquire(ctx, a)
	out := make([]string, 0, len(leases))
	for _, l := range leases {
		text := l.Prefix.String()
		if l.Early {
			text += " early"
		}
		out = append(out, text)
	}
	return out, err
}

func (n *node) mustLease(a ipam.Ask) []string {
	n.t.Helper()
	out, err := n.lease(a)
	must(n.t, err)
	return out
}

func (n *node) release(pod string) {
	n.t.Helper()
	must(n.t, n.book().Release(ctx, ipam.Key{ContainerID: "id-" + pod, IfName: "net1", Network: "net"}, netns.Ref{}))
}

func wantCode(t *testing.T, err error, code cnierr.Code, texts ...string) {
	t.Helper()
	if err == nil || cnierr.CodeOf(err) != code {
		t.Errorf("got %v, want code %d", err, code)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say %q", err, text)
		}
	}
}

func TestSmallSubnetsGiveExactlyTheirAddresses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		subnet ipam.Subnet
		host   string // an address of the host
		want   []string
	}{
		{subnet("10.0.0.0/29 10.0.0.6"), "10.0.0.1", []string{"10.0.0.2/29", "10.0.0.3/29", "10.0.0.4/29", "10.0.0.5/29"}},
		{subnet("10.0.0.0/30 10.0.0.1"), "", []string{"10.0.0.2/30"}},
		{subnet("10.0.0.0/31 10.0.0.1"), "", []string{"10.0.0.0/31"}},
		{subnet("10.0.0.7/32"), "", []string{"10.0.0.7/32"}},
		{subnet("fd00::/126 fd00::3"), "", []string{"fd00::1/126", "fd00::2/126"}},
		{subnet("fd00::/127"), "", []string{"fd00::1/127", "fd00::/127"}},
		{subnet("10.0.0.0/24 10.0.0.5", "10.0.0.4-10.0.0.6", "10.0.0.250-10.0.0.255"), "10.0.0.251", []string{
			"10.0.0.250/24", "10.0.0.252/24", "10.0.0.253/24", "10.0.0.254/24", "10.0.0.4/24", "10.0.0.6/24",
		}},
	} {
		t.Run(tc.subnet.Prefix.String(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			var got []string
			next := func(i int) ([]string, error) {
				a := ask(fmt.Sprint("pod", i), tc.subnet)
				if tc.host != "" {
					a.Reserved = []netip.Addr{netip.MustParseAddr(tc.host)}
				}
				return n.lease(a)
			}
			for i := range tc.want {
				l, err := next(i)
				must(t, err)
				got = append(got, l...)
			}
			slices.Sort(got)
			slices.Sort(tc.want)
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			_, err := next(len(tc.want))
			wantCode(t, err, cnierr.PoolExhausted, `"rail"`, fmt.Sprintf("%d leased, 0 in quarantine", len(tc.want)))
		})
	}
}

func TestOneAddressOfEachSubnetOrNone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	four, six, tiny := subnet("10.0.0.0/24"), subnet("fd00::/64"), subnet("10.9.0.0/32")
	if l := n.mustLease(ask("a", four, six, tiny)); len(l) != 3 || l[2] != "10.9.0.0/32" {
		t.Errorf("got %v", l)
	}
	_, err := n.lease(ask("b", four, six, tiny))
	wantCode(t, err, cnierr.PoolExhausted, "no address of 10.9.0.0/32 is left: 1 leased, 0 in quarantine, 0 excluded or reserved, 1 in all")
	entries, err := n.book().List(ctx, "rail")
	if err != nil || len(entries) != 3 {
		t.Errorf("a lease that failed left something: %v, %v", entries, err)
	}
}

func TestSameAttachmentGetsTheSameAddresses(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := ask("a", subnet("10.0.0.0/16"), subnet("fd00::/64"))
	first := n.mustLease(a)
	if again := n.mustLease(a); !slices.Equal(first, again) {
		t.Errorf("got %v, then %v", first, again)
	}
	// The configuration has changed: what does not fit is replaced.
	a.Subnets = []ipam.Subnet{subnet("10.7.0.0/24"), subnet("fd00::/64")}
	changed := n.mustLease(a)
	if changed[1] != first[1] || !strings.HasPrefix(changed[0], "10.7.0.") {
		t.Errorf("got %v, then %v", first, changed)
	}
	n.release("a")
	n.release("a")
	if u, err := n.book().Usage(ctx, a); err != nil || u[0].Leased+u[1].Leased != 0 {
		t.Errorf("after release: %v, %v", u, err)
	}
}

func TestAddressIsInQuarantineBeforeAnotherPodGetsIt(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := subnet("10.0.0.0/30 10.0.0.2") // one address
	first := n.mustLease(ask("a", s))
	n.release("a")
	if back := n.mustLease(ask("a", s)); !slices.Equal(first, back) {
		t.Errorf("the pod itself got %v after %v", back, first)
	}
	n.release("a")
	n.now += time.Minute
	if l := n.mustLease(ask("b", s)); l[0] != first[0]+" early" || !strings.Contains(n.log.String(), "all free addresses are in quarantine") {
		t.Errorf("got %v, log %q", l, n.log.String())
	}
	if list, err := n.book().List(ctx, "rail"); err != nil || len(list) != 1 || !list[0].Early {
		t.Errorf("listed as %+v, %v, want it to be early", list, err)
	}
	n.release("b")
	n.now += 2 * time.Minute
	if l := n.mustLease(ask("c", s)); l[0] != first[0] {
		t.Errorf("after its quarantine it is %v", l)
	}
}

func TestOnlyQuarantineLeftGivesTheOldestAddress(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := subnet("10.0.0.0/29")
	var order []string
	for i := range 6 {
		order = append(order, n.mustLease(ask(fmt.Sprint("pod", i), s))...)
	}
	for _, i := range []int{3, 0, 5, 1, 4, 2} {
		n.release(fmt.Sprint("pod", i))
		n.now += time.Second
	}
	for _, i := range []int{3, 0, 5, 1, 4, 2} {
		if l := n.mustLease(ask(fmt.Sprint("other", i), s)); l[0] != order[i]+" early" {
			t.Errorf("got %v, want %s early", l, order[i])
		}
	}
}

// What a subnet needs may be behind addresses of others, in quarantine and among those that the pod had.
func TestAddressesInQuarantineAreFoundBehindThoseOfOtherSubnets(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	four, six := subnet("10.0.0.1/32"), subnet("fd00::1/128")
	n.mustLease(ask("a", four, six))
	n.release("a")
	if d := cmp.Diff([]string{"fd00::1/128 early", "10.0.0.1/32 early"}, n.mustLease(ask("b", six, four))); d != "" {
		t.Errorf("of another pod (-want +got):\n%s", d)
	}
	four, six = subnet("10.1.0.0/24"), subnet("fd01::/64")
	had := n.mustLease(ask("c", four, six))
	n.release("c")
	slices.Reverse(had)
	if d := cmp.Diff(had, n.mustLease(ask("c", six, four))); d != "" {
		t.Errorf("of the pod that had them (-want +got):\n%s", d)
	}
}

func TestRejectedAddressIsNotGivenAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := ask("a", subnet("10.0.0.0/24"), subnet("fd00::/64"))
	first := n.mustLease(a)
	must(t, n.book().Reject(ctx, a, []netip.Addr{netip.MustParsePrefix(first[0]).Addr()}))
	second := n.mustLease(a)
	if second[0] == first[0] || second[1] != first[1] {
		t.Errorf("got %v, then %v", first, second)
	}
}

func TestRequestedAddresses(t *testing.T) {
	t.Parallel()
	s := subnet("10.0.0.0/24 10.0.0.254", "10.0.0.1-10.0.0.99")
	s.Exclude = []netrange.Range{{First: netip.MustParseAddr("10.0.0.7"), Last: netip.MustParseAddr("10.0.0.7")}}
	want := func(pod string, addrs ...string) ipam.Ask {
		a := ask(pod, s)
		a.Reserved = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
		for _, addr := range addrs {
			a.Requested = append(a.Requested, netip.MustParseAddr(addr))
		}
		return a
	}
	n := newNode(t)
	if l := n.mustLease(want("a", "10.0.0.200")); l[0] != "10.0.0.200/24" {
		t.Errorf("outside of the ranges: %v", l)
	}
	for _, addr := range []string{"10.0.0.0", "10.0.0.255", "10.0.0.254", "10.0.0.7", "10.0.0.1", "10.1.0.9"} {
		_, err := n.lease(want("b", addr))
		wantCode(t, err, cnierr.BadConfig, addr)
	}
	_, err := n.lease(want("b", "10.0.0.200"))
	wantCode(t, err, cnierr.TryAgain, "10.0.0.200", "ns/a")
	n.release("a")
	if l := n.mustLease(want("b", "10.0.0.200")); l[0] != "10.0.0.200/24 early" {
		t.Errorf("of the address in quarantine: %v", l)
	}
}

func TestLeasesOfDeadNamespacesAreReaped(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := subnet("10.0.0.0/24")
	n.mustLease(ask("a", s))
	n.mustLease(ask("b", s))
	n.dead["/run/netns/a"] = true
	n.dead["/run/netns/c"] = true
	n.mustLease(ask("c", s)) // it cannot see its own namespace, so it judges no other
	if got := n.holders(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("held by %v", got)
	}
	delete(n.dead, "/run/netns/c")
	// Each call looks at a few namespaces: every one has its turn.
	for i := range 10 {
		n.mustLease(ask(fmt.Sprint("pod", i), s))
	}
	if got := n.holders(); slices.Contains(got, "a") || len(got) != 12 || !slices.Equal(n.reaped, []string{"id-a"}) {
		t.Errorf("held by %v, and told %v, want a alone", got, n.reaped)
	}
}

func TestNothingIsReapedWhenMostSeemDead(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := subnet("10.0.0.0/24")
	for i := range 8 {
		n.mustLease(ask(fmt.Sprint("pod", i), s))
	}
	for i := range 7 {
		n.dead[fmt.Sprint("/run/netns/pod", i)] = true
	}
	n.mustLease(ask("x", s))
	if got := n.holders(); len(got) != 9 || !strings.Contains(n.log.String(), "no lease is freed") {
		t.Errorf("held by %v, log %s", got, n.log.String())
	}
}

// holders returns the pods that hold leases, sorted.
func (n *node) holders() []string {
	n.t.Helper()
	entries, err := n.book().List(ctx, "")
	must(n.t, err)
	var out []string
	for _, e := range entries {
		if e.State.String() == "leased" {
			out = append(out, e.Owner.PodName)
		}
	}
	slices.Sort(out)
	return out
}

func TestRebootForgetsAllLeases(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := subnet("10.0.0.0/32")
	n.mustLease(ask("a", s))
	n.boot = boot2
	n.now = time.Second
	if l := n.mustLease(ask("b", s)); l[0] != "10.0.0.0/32" {
		t.Errorf("got %v", l)
	}
}

func TestPreviewAndListMakeNoFile(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	p, err := n.book().Preview(ctx, ask("a", subnet("10.0.0.0/16")))
	if err != nil || len(p) != 1 {
		t.Fatalf("got %v, %v", p, err)
	}
	if e, err := n.book().List(ctx, ""); err != nil || len(e) != 0 {
		t.Errorf("got %v, %v", e, err)
	}
	n.release("a")
	if _, err := os.Stat(n.dir); err == nil {
		t.Error("the state folder was made")
	}
	leases, err := n.book().Acquire(ctx, ask("a", subnet("10.0.0.0/16")))
	if d := cmp.Diff(p, leases, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); err != nil || d != "" {
		t.Errorf("%v; what was leased is not what was announced:\n%s", err, d)
	}
	for path, mode := range map[string]os.FileMode{n.dir: 0o700, filepath.Join(n.dir, "leases.db"): 0o600, filepath.Join(n.dir, "leases.lock"): 0o600} {
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want mode %v", path, fi.Mode(), err, mode)
		}
	}
}

func TestUnusableStateFolderIsAnIOError(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	must(t, os.WriteFile(n.dir, nil, 0o600))
	_, err := n.lease(ask("a", subnet("10.0.0.0/24")))
	wantCode(t, err, cnierr.IO, n.dir)
}
