// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
)

func TestOnlyWhatIsSurelyDeadIsReaped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		netns  netns.Ref // of the lease
		unsure bool      // whether the call cannot tell
		want   bool      // whether the lease stays
	}{
		{"in the same folder", netns.Ref{Path: "/run/netns/a", ID: netns.ID{Dev: 4, Ino: 1}}, false, false},
		{"in another folder", netns.Ref{Path: "/proc/1/ns/net", ID: netns.ID{Dev: 4, Ino: 1}}, false, true},
		{"of unknown path", netns.Ref{}, false, true},
		{"that cannot be looked at", netns.Ref{Path: "/run/netns/a", ID: netns.ID{Dev: 4, Ino: 1}}, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			book := ipam.New(ipam.Config{
				Dir: n.dir, BootID: n.boot, Now: func() time.Duration { return n.now },
				Observe: func() func(netns.Ref) (bool, error) {
					return func(ns netns.Ref) (bool, error) {
						if c.unsure && ns == c.netns {
							return false, errors.New("no answer")
						}
						return ns != c.netns, nil
					}
				},
			})
			a := ask("a", subnet("10.0.0.1/32"))
			a.Owner.Netns = c.netns
			if _, err := book.Acquire(ctx, a); err != nil {
				t.Fatal(err)
			}
			if _, err := book.Acquire(ctx, ask("b", subnet("10.0.0.2/32"))); err != nil {
				t.Fatal(err)
			}
			if got := slices.Contains(n.holders(), "a"); got != c.want {
				t.Errorf("the lease is there: %v, want %v", got, c.want)
			}
		})
	}
}

// TestReleaseOfNothingLooksAtNoNamespace is about cost: reaped attachments are released one by
// one, and their namespaces are gone, so that each look would read all processes.
func TestReleaseOfNothingLooksAtNoNamespace(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.mustLease(ask("a", subnet("10.0.0.0/24")))
	book := ipam.New(ipam.Config{
		Dir: n.dir, BootID: n.boot, Now: func() time.Duration { return n.now },
		Observe: func() func(netns.Ref) (bool, error) {
			return func(ns netns.Ref) (bool, error) {
				t.Errorf("it has looked at %s", ns.Path)
				return false, nil
			}
		},
	})
	b := ask("b").Owner
	must(t, book.Release(ctx, b.Key(), b.Netns))
}

func TestReleaseReapsWhereItsOwnNamespaceIsSeen(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := subnet("10.0.0.0/24")
	for _, pod := range []string{"a", "b", "c", "d"} {
		n.mustLease(ask(pod, s))
	}
	n.dead["/run/netns/a"], n.dead["/run/netns/b"] = true, true
	release := func(pod string) []string {
		t.Helper()
		o := ask(pod).Owner
		must(t, n.book().Release(ctx, o.Key(), o.Netns))
		return n.holders()
	}
	if got := release("b"); !slices.Equal(got, []string{"a", "c", "d"}) {
		t.Errorf("from a namespace that is gone: held by %v", got)
	}
	if got := release("c"); !slices.Equal(got, []string{"d"}) {
		t.Errorf("from one that is there: held by %v", got)
	}
}

// If most namespaces seem to be gone, the look at them is wrong, and not the leases.
func TestNoLeaseIsFreedIfMostNamespacesSeemToBeGone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ others, gone, left int }{{4, 4, 0}, {5, 5, 5}, {10, 5, 5}, {9, 5, 9}, {10, 6, 10}} {
		n := newNode(t)
		s := subnet("10.0.0.0/24")
		n.mustLease(ask("own", s))
		for i := range c.others {
			n.mustLease(ask(fmt.Sprint("pod", i), s))
		}
		for i := range c.gone {
			n.dead[fmt.Sprint("/run/netns/pod", i)] = true
		}
		o := ask("own").Owner
		must(t, n.book().Release(ctx, o.Key(), o.Netns))
		if got := n.holders(); len(got) != c.left || len(n.reaped) != c.others-c.left || c.left == c.others == strings.Contains(n.log.String(), "leases are freed") ||
			c.left == c.others != strings.Contains(n.log.String(), "no lease is freed") {
			t.Errorf("%d of %d are gone: held by %v, log %s", c.gone, c.others, got, n.log.String())
		}
	}
}

// One leak among many is found at the moment at which it matters.
func TestAnExhaustedPoolIsSearchedForTheDead(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := subnet("10.0.0.0/24", "10.0.0.1-10.0.0.100")
	for i := range 100 {
		n.mustLease(ask(fmt.Sprint("pod", i), s))
	}
	_, err := n.lease(ask("new", s))
	wantCode(t, err, cnierr.PoolExhausted, "100 leased, 0 in quarantine, 156 excluded or reserved, 256 in all")
	for i := range 10 {
		gone, pod := fmt.Sprint("pod", 7*i), fmt.Sprint("new", i)
		n.dead["/run/netns/"+gone] = true
		n.mustLease(ask(pod, s))
		if got := n.holders(); len(got) != 100 || slices.Contains(got, gone) || !slices.Contains(got, pod) {
			t.Errorf("without %s, held by %v", gone, got)
		}
	}
}

func TestARequestedAddressIsTakenFromTheDead(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	want := func(pod, id string) ipam.Ask {
		a := ask(pod, subnet("10.0.0.0/24"))
		a.Owner.ContainerID = id
		a.Owner.Netns.Path = "/run/netns/" + id
		a.Requested = []netip.Addr{netip.MustParseAddr("10.0.0.9")}
		return a
	}
	n.mustLease(want("web-0", "old"))
	_, err := n.lease(want("web-0", "new"))
	wantCode(t, err, cnierr.TryAgain, "pod ns/web-0", "container old")
	n.dead["/run/netns/old"], n.dead["/run/netns/new"] = true, true
	_, err = n.lease(want("web-0", "new")) // which does not see its own namespace
	wantCode(t, err, cnierr.TryAgain)
	delete(n.dead, "/run/netns/new")
	if l := n.mustLease(want("web-0", "new")); l[0] != "10.0.0.9/24" {
		t.Errorf("the same pod: got %v", l)
	}
	n.dead["/run/netns/new"] = true
	if l := n.mustLease(want("web-1", "other")); l[0] != "10.0.0.9/24 early" {
		t.Errorf("another pod: got %v, want it early", l)
	}
}

// All other namespaces seem to be gone, so none of their leases is freed unasked. The holder of a
// requested address gives way all the same, with all that it has.
func TestTheHolderOfARequestedAddressGivesWayAlone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := subnet("10.0.0.0/24")
	for _, pod := range []string{"a", "b", "c", "d", "e"} {
		n.mustLease(ask(pod, s))
	}
	n.mustLease(requesting(ask("web", s, subnet("10.1.0.7/32")), "10.0.0.9"))
	for _, pod := range []string{"a", "b", "c", "d", "e", "web"} {
		n.dead["/run/netns/"+pod] = true
	}
	again := requesting(ask("web", s), "10.0.0.9")
	again.Owner.ContainerID, again.Owner.Netns.Path = "new", "/run/netns/new"
	if l := n.mustLease(again); l[0] != "10.0.0.9/24" { // not early: it is the same pod
		t.Errorf("got %v", l)
	}
	if got := n.holders(); !slices.Equal(got, []string{"a", "b", "c", "d", "e", "web"}) || !slices.Contains(n.entries(), "rail 10.1.0.7 quarantined web 0s") {
		t.Errorf("held by %v, in use are %v", got, n.entries())
	}
}

// The lease of a dead pod has the inode number that the kernel then gave to the namespace
// of the present call.
func TestAReusedInodeNumberKeepsNoLease(t *testing.T) {
	t.Parallel()
	present, err := netns.At(fmt.Sprintf("/proc/%d/ns/net", os.Getpid()))
	if err != nil || present.Ino == 0 {
		t.Fatalf("got %v, %v", present, err)
	}
	n := newNode(t)
	book := ipam.New(ipam.Config{Dir: n.dir, BootID: n.boot, Now: func() time.Duration { return n.now }, Observe: netns.Observe})
	lease := func(pod, ifName string, netns netns.Ref) error {
		a := ask(pod, subnet("10.0.0.0/24", "10.0.0.1-10.0.0.2"))
		a.Owner.IfName, a.Owner.Netns, a.Quarantine = ifName, netns, 0
		_, err := book.Acquire(ctx, a)
		return err
	}
	ended := present
	ended.Path = "/proc/4194304/ns/net" // above the largest number of a process (PID_MAX_LIMIT)
	for _, c := range []struct {
		pod, ifName string
		netns       netns.Ref
		want        []string
	}{
		{"old", "net1", ended, []string{"old"}},
		{"old", "net2", present, []string{"old", "old"}}, // the same pod by another process
		{"new", "net1", present, []string{"new", "old"}},
	} {
		if err := lease(c.pod, c.ifName, c.netns); err != nil {
			t.Errorf("%s %s: %v", c.pod, c.ifName, err)
		}
		got := n.holders()
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("after %s %s: held by %v, want %v", c.pod, c.ifName, got, c.want)
		}
	}
}
