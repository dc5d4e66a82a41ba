// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam_test

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
)

func TestOnlyWhatIsSurelyDeadIsReaped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		netns  ipam.Netns // of the lease
		unsure bool       // whether the call cannot tell
		want   bool       // whether the lease stays
	}{
		{"in the same folder", ipam.Netns{Path: "/run/netns/a", Dev: 4, Ino: 1}, false, false},
		{"in another folder", ipam.Netns{Path: "/proc/1/ns/net", Dev: 4, Ino: 1}, false, true},
		{"of unknown path", ipam.Netns{}, false, true},
		{"that cannot be looked at", ipam.Netns{Path: "/run/netns/a", Dev: 4, Ino: 1}, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			book := ipam.New(ipam.Config{
				Dir: n.dir, BootID: n.boot, Now: func() time.Duration { return n.now },
				Observe: func() func(ipam.Netns) (bool, error) {
					return func(ns ipam.Netns) (bool, error) {
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
		if err := n.book().Release(ctx, o.Key(), o.Netns); err != nil {
			t.Fatal(err)
		}
		return n.holders()
	}
	if got := release("b"); !slices.Equal(got, []string{"a", "c", "d"}) {
		t.Errorf("from a namespace that is gone: held by %v", got)
	}
	if got := release("c"); !slices.Equal(got, []string{"d"}) {
		t.Errorf("from one that is there: held by %v", got)
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

func TestNetnsIsIdentifiedByItsFile(t *testing.T) {
	t.Parallel()
	const self = "/proc/thread-self/ns/net"
	n, err := ipam.NetnsAt(self)
	if err != nil || n.Path != self || n.Ino == 0 {
		t.Fatalf("got %v, %v", n, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"nothing": file + "x", "a file": file, "below a file": file + "/x"} {
		if n, err := ipam.NetnsAt(path); n != (ipam.Netns{}) || err != nil {
			t.Errorf("%s: got %v, %v", name, n, err)
		}
	}
	for name, c := range map[string]struct {
		n    ipam.Netns
		want bool
	}{
		"itself":        {n, true},
		"another inode": {ipam.Netns{Path: self, Dev: n.Dev, Ino: n.Ino + 1}, false},
		"another file":  {ipam.Netns{Path: file, Dev: n.Dev, Ino: n.Ino}, false},
		"nothing":       {ipam.Netns{Path: file + "x", Dev: n.Dev, Ino: n.Ino}, false},
	} {
		if got, err := ipam.NetnsAlive(c.n); got != c.want || err != nil {
			t.Errorf("%s: got %v, %v; want %v", name, got, err, c.want)
		}
	}
}

// One ADD may find many dead leases, and a node has thousands of processes.
func TestAnObservationReadsTheProcessesOnce(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	process := filepath.Join(proc, "7")
	if err := cmp.Or(os.MkdirAll(filepath.Join(process, "ns"), 0o700), os.Symlink("/proc/self/ns/net", filepath.Join(process, "ns", "net")),
		os.Mkdir(filepath.Join(proc, "thread-self"), 0o700), os.WriteFile(filepath.Join(proc, "thread-self", "mountinfo"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	held, err := ipam.NetnsAt("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	alive := ipam.Observe()
	held.Path = filepath.Join(proc, "8", "ns", "net") // a process that has ended
	for _, when := range []string{"at first", "after the process has ended"} {
		if got, err := alive(held); !got || err != nil {
			t.Errorf("%s: %v, %v; want it alive", when, got, err)
		}
		if err := os.RemoveAll(process); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := ipam.NetnsAlive(held); got || err != nil {
		t.Errorf("a new observation: %v, %v; want it gone", got, err)
	}
}

// A process with more rights than ours hides its namespace. The loop of symbolic links
// stands for it: root may read any file.
func TestHiddenProcessesOfTheNodeKeepNoNamespaceAlive(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	write := func(path string) string {
		path = filepath.Join(proc, path)
		if err := cmp.Or(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := func(link func(from, to string) error, from, to string) {
		to = filepath.Join(proc, to)
		if err := cmp.Or(os.MkdirAll(filepath.Dir(to), 0o700), link(from, to)); err != nil {
			t.Fatal(err)
		}
	}
	write("thread-self/mountinfo")
	gone := ipam.Netns{Path: filepath.Join(proc, "9", "ns", "net"), Dev: 4, Ino: 99}
	link(os.Link, write("self/net/dev"), "2/net/dev")
	link(os.Symlink, "net", "2/ns/net")
	if alive, err := ipam.NetnsAlive(gone); alive || err != nil {
		t.Errorf("beside a hidden process of the node: %v, %v; want it gone", alive, err)
	}
	write("7/net/dev")
	link(os.Symlink, "net", "7/ns/net")
	if alive, err := ipam.NetnsAlive(gone); alive || err == nil {
		t.Errorf("beside a hidden process of a pod: %v, %v; want an error", alive, err)
	}
}

// The lease of a dead pod has the inode number that the kernel then gave to the namespace
// of the present call.
func TestAReusedInodeNumberKeepsNoLease(t *testing.T) {
	t.Parallel()
	present, err := ipam.NetnsAt(fmt.Sprintf("/proc/%d/ns/net", os.Getpid()))
	if err != nil || present.Ino == 0 {
		t.Fatalf("got %v, %v", present, err)
	}
	n := newNode(t)
	book := ipam.New(ipam.Config{Dir: n.dir, BootID: n.boot, Now: func() time.Duration { return n.now }, Observe: ipam.Observe})
	lease := func(pod, ifName string, netns ipam.Netns) error {
		a := ask(pod, subnet("10.0.0.0/24", "10.0.0.1-10.0.0.2"))
		a.Owner.IfName, a.Owner.Netns, a.Quarantine = ifName, netns, 0
		_, err := book.Acquire(ctx, a)
		return err
	}
	ended := present
	ended.Path = "/proc/4194304/ns/net" // above the largest number of a process (PID_MAX_LIMIT)
	for _, c := range []struct {
		pod, ifName string
		netns       ipam.Netns
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
