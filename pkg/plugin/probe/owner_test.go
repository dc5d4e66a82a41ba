// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// wired returns two namespaces with pb0 in the first and pb1 in the second.
func wired(t testing.TB) (pod, far *space) {
	t.Helper()
	pod, far = newSpace(t), newSpace(t)
	pod.cable("pb0", far, "pb1")
	pod.up("pb0")
	far.up("pb1")
	return pod, far
}

// wantTaken fails unless err says that exactly these are taken.
func wantTaken(t *testing.T, err error, want ...Taken) {
	t.Helper()
	var got *TakenError
	if len(want) == 0 {
		if err != nil {
			t.Errorf("got %v, want no conflict", err)
		}
		return
	}
	if !errors.As(err, &got) || cnierr.CodeOf(err) != cnierr.AddressTaken {
		t.Fatalf("got %v, want a conflict", err)
	}
	if fmt.Sprint(got.Taken) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got.Taken, want)
	}
}

// wantCode fails unless err has the code and names all the words.
func wantCode(t *testing.T, err error, code cnierr.Code, words ...string) {
	t.Helper()
	if err == nil || cnierr.CodeOf(err) != code {
		t.Fatalf("got %v, want code %d", err, code)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("got %v, want it to name %q", err, w)
		}
	}
}

// answered is a question that is answered: its window ends with the answer, and
// a busy machine may be late.
func answered(targets ...plan.Target) plan.Conflict {
	op := conflictOp(targets...)
	op.Wait = 10 * time.Second
	return op
}

// settle returns when frames go through, and an owner has begun to answer for
// its addresses: the kernel joins the groups of IPv6 addresses in a work queue.
func settle(t *testing.T, pod *space, link string, addrs ...netip.Addr) {
	t.Helper()
	op := plan.Gateway{Mode: conf.Require, Attempts: 500, Timeout: 20 * ms}
	for _, a := range addrs {
		from := netip.MustParseAddr("172.16.11.99")
		if a.Is6() {
			from = netip.MustParseAddr("fd00:11::99")
		}
		op.Targets = append(op.Targets, pod.target(link, from, a))
	}
	p := pod.prober()
	if err := p.Do(t.Context(), plan.Op{Kind: op}); err != nil {
		t.Fatal(err)
	}
	p.Close()
}

// await returns when something is so: the kernel closes what we leave in its
// own time.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(ms)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// TestKernelOwnerIsFound lets the kernel of another host answer, over each kind
// of connection.
func TestKernelOwnerIsFound(t *testing.T) {
	t.Parallel()
	type scene struct {
		pod, owner  *space
		link, other string
	}
	for name, build := range map[string]func(*testing.T) scene{
		"veth": func(t *testing.T) scene {
			pod, far := wired(t)
			return scene{pod, far, "pb0", "pb1"}
		},
		"macvlan to a host on the wire": func(t *testing.T) scene {
			pod, far := wired(t)
			pod.macvlan("pbc", "pb0", netlink.MACVLAN_MODE_BRIDGE)
			return scene{pod, far, "pbc", "pb1"}
		},
		"macvlan with no IPv6 at all to a host on the wire": func(t *testing.T) scene {
			pod, far := wired(t)
			pod.macvlan("pbc", "pb0", netlink.MACVLAN_MODE_BRIDGE)
			pod.must(pod.nl.LinkSetMTU(pod.link("pbc"), 1000)) // below 1280, IPv6 leaves a link (addrconf_notify)
			return scene{pod, far, "pbc", "pb1"}
		},
		"macvlan to its sibling": func(t *testing.T) scene {
			host, _ := wired(t)
			return scene{host.child("pbc1", "pb0"), host.child("pbc2", "pb0"), "pbc1", "pbc2"}
		},
		"bridge in the middle": func(t *testing.T) scene {
			pod, bridge := wired(t)
			far := newSpace(t)
			bridge.cable("pb2", far, "pb3")
			bridge.must(bridge.nl.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "pbbr"}}))
			bridge.must(bridge.nl.LinkSetMaster(bridge.link("pb1"), bridge.link("pbbr")))
			bridge.must(bridge.nl.LinkSetMaster(bridge.link("pb2"), bridge.link("pbbr")))
			bridge.up("pbbr", "pb2")
			far.up("pb3")
			return scene{pod, far, "pb0", "pb3"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := build(t)
			four, six := s.pod.target(s.link, ours4, gateway4), s.pod.target(s.link, ours6, gateway6)
			op := plan.Conflict{Mode: conf.Require, Probes: 3, Interval: 20 * ms, Wait: 40 * ms, Targets: []plan.Target{four, six}}
			s.owner.address(s.other, gateway4)
			settle(t, s.pod, s.link, gateway4)
			if err := s.pod.prober().Do(t.Context(), plan.Op{Kind: op}); err != nil {
				t.Fatalf("no host has the addresses yet, got %v", err)
			}
			s.owner.address(s.other, ours4)
			s.owner.address(s.other, ours6)
			settle(t, s.pod, s.link, ours4, ours6)
			mac := s.owner.mac(s.other)
			wantTaken(t, s.pod.prober().Do(t.Context(), plan.Op{Kind: answered(four, six)}),
				Taken{four, mac, "ARP reply"}, Taken{six, mac, "neighbour advertisement"})
		})
	}
}

// TestOwnerWithOurMAC: on an ordinary link the owner is found. Between two
// macvlans in bridge mode it is not found, because each drops a group frame
// with a source that it takes for its own child (macvlan_process_broadcast). So
// two nodes must not have the same MAC.
func TestOwnerWithOurMAC(t *testing.T) {
	t.Parallel()
	for name, macvlans := range map[string]bool{"ordinary links": false, "macvlans": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod, far := wired(t)
			near, there := "pb0", "pb1"
			if macvlans {
				near, there = "pbc", "pbd"
				pod.macvlan(near, "pb0", netlink.MACVLAN_MODE_BRIDGE)
				far = far.child(there, "pb1")
			}
			far.address(there, gateway4)
			far.address(there, ours4)
			far.address(there, ours6)
			settle(t, pod, near, gateway4, ours4, ours6)
			ours := pod.mac(near)
			far.must(far.nl.LinkSetHardwareAddr(far.link(there), ours[:]))
			four, six := pod.target(near, ours4, gateway4), pod.target(near, ours6, gateway6)
			op, want := answered(four, six), []Taken{{four, ours, "ARP reply"}, {six, ours, "neighbour advertisement"}}
			if macvlans {
				op, want = conflictOp(four, six), nil
			}
			wantTaken(t, pod.prober().Do(t.Context(), plan.Op{Kind: op}), want...)
		})
	}
}

// TestAnswerInAWindowOfNoLengthIsHeard: the kernel of the other end of a veth
// answers before the send returns, so the answer is queued when the time is
// up. The same happens to a process that is not scheduled for a while.
func TestAnswerInAWindowOfNoLengthIsHeard(t *testing.T) {
	t.Parallel()
	pod, far := wired(t)
	far.address("pb1", ours4)
	far.address("pb1", ours6)
	settle(t, pod, "pb0", ours4, ours6)
	four, six := pod.target("pb0", ours4, gateway4), pod.target("pb0", ours6, gateway6)
	err := pod.prober().Do(t.Context(), plan.Op{Kind: plan.Conflict{Mode: conf.Require, Probes: 1, Targets: []plan.Target{four, six}}})
	mac := far.mac("pb1")
	wantTaken(t, err, Taken{four, mac, "ARP reply"}, Taken{six, mac, "neighbour advertisement"})
}

// TestGroupsAreJoinedForTheWindow: in the network card, for a link without
// IPv6, and in IPv6, which reports it to the switches.
func TestGroupsAreJoinedForTheWindow(t *testing.T) {
	t.Parallel()
	pod, far := wired(t)
	group := solicitedNode(ours6)
	members := func() (users string) {
		pod.must(pod.enter(func() error {
			list, err := os.ReadFile("/proc/thread-self/net/dev_mcast")
			for line := range strings.Lines(string(list)) {
				if f := strings.Fields(line); f[1] == "pb0" && f[4] == "3333ff0a0005" {
					users = f[2]
				}
			}
			return err
		}))
		return users
	}
	during := make(chan string, 1)
	far.peer("pb1", func(n int, _ []byte) [][]byte {
		if n == 1 {
			during <- members()
		}
		return [][]byte{advert(t, ours6)} // ends the window
	})
	observer := far.listen("pb1", true)
	defer observer.Close()
	p := pod.prober()
	six := pod.target("pb0", ours6, gateway6)
	wantTaken(t, p.Do(t.Context(), plan.Op{Kind: answered(six)}), Taken{six, otherMAC, "neighbour advertisement"})
	p.Close()
	if in := <-during; in != "2" {
		t.Errorf("members of the group: %q in the window, want 2", in)
	}
	await(t, "the group has no member", func() bool { return members() == "" })
	if err := observer.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	const optionHeader, reportV2 = 8, 143 // RFC 3810 section 5.2
	b := make([]byte, frameMax)
	for {
		n, _, err := observer.ReadFrom(b)
		if err != nil {
			t.Fatalf("no MLD report for %s: %v", group, err)
		}
		const typeAt = etherHeader + ipv6Header + optionHeader
		if n > typeAt && b[typeAt] == reportV2 && bytes.Contains(b[typeAt:n], group.AsSlice()) {
			return
		}
	}
}
