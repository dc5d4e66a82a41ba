// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

func TestCrossTestsFollowThePlan(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.serve()
	const all = `reach rail 0 of a to b: 172.16.10.2 answers
mtu rail 0 of a to b: packets of 9000 bytes pass
reach rail 1 of a to b: 172.16.11.2 answers
mtu rail 1 of a to b: packets of 9000 bytes pass
reach rail 0 of a to rail 1 of b: 172.16.11.2 answers
mtu rail 0 of a to rail 1 of b: packets of 9000 bytes pass
reach rail 1 of a to rail 0 of b: 172.16.10.2 answers
mtu rail 1 of a to rail 0 of b: packets of 9000 bytes pass
`
	found := func(answers []report.Answer) string {
		var out strings.Builder
		for _, a := range answers {
			fmt.Fprintf(&out, "%s %s: %s\n", a.Check, a.Of, a.Found)
		}
		return out.String()
	}
	if diff := cmp.Diff(all, found(w.test(true))); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	w.wire.Exec("sysctl", "-qw", "net.ipv4.ip_forward=0")
	const routers = "; they are in different subnets (rocectl verify  # in both pods: does the gateway of the rail answer?; # then the routes of the gateways between the two subnets)"
	const apart = "problem reach: rail 0 of a to rail 1 of b: no packet from 172.16.10.1 arrives at 172.16.11.2" + routers + "\n" +
		"problem reach: rail 1 of a to rail 0 of b: no packet from 172.16.11.1 arrives at 172.16.10.2" + routers
	if diff := cmp.Diff(apart, problems(w.test(true))); diff != "" {
		t.Errorf("the gateway forwards nothing (-want +got)\n%s", diff)
	}
	ctx, cancel := context.WithCancel(t.Context())
	late, calls := *w.pods[0], atomic.Int32{}
	late.Control = late.Enter
	late.Pod.Enter = func(fn func() error) error { // the time is over during the tests of equal rails
		if calls.Add(1) == 2 {
			defer cancel()
		}
		return late.Control(fn)
	}
	answers, err := late.Test(ctx, w.pods[1].address, testKey, Tests{Cross: true})
	const over = "cannot tell reach: all rails of a to b: 1 of 2 couples of each rail were tested in 15m0s"
	if got := problems(answers); err != nil || !strings.HasSuffix(got, over) {
		t.Errorf("without time: %v, got %q, want %q", err, got, over)
	}
	for _, p := range w.pods {
		p.ns.IP("route del default table 100")
		p.ns.IP("route del default table 101")
	}
	equal, _, _ := strings.Cut(all, "reach rail 0 of a to rail 1")
	if diff := cmp.Diff(equal, found(w.test(true))); diff != "" {
		t.Errorf("without gateways (-want +got)\n%s", diff)
	}
	w.pods[1].ns.IP("link del net2")
	const fewer = " (rocectl show  # on the node with fewer: what was left out, and why)"
	if got := problems(w.test(false)); got != "problem reach: rail 1 of a to b: a has 2 rails and b has 1"+fewer {
		t.Errorf("a rail less: got %q", got)
	}
	answers, err = w.pods[1].Test(t.Context(), w.pods[0].address, testKey, Tests{})
	if got := problems(answers); err != nil || got != "problem reach: rail 1 of b to a: b has 1 rails and a has 2"+fewer {
		t.Errorf("a rail more: got %q, %v", got, err)
	}
}

// TestAServerEndsWithItsContext, with its echoes and the connections of its callers. It does not
// begin in a pod without rails.
func TestAServerEndsWithItsContext(t *testing.T) {
	w := newWorld(t, "a", "b")
	b := w.pods[1]
	listen := func() net.Listener {
		var l net.Listener
		if err := b.Enter(func() (err error) { l, err = net.Listen("tcp", b.address); return err }); err != nil {
			t.Fatal(err)
		}
		return l
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	l := listen()
	go func() { done <- (&Server{Pod: b.Pod, Key: testKey}).Serve(ctx, l) }()
	peer, err := w.pods[0].Dial(t.Context(), b.address, testKey, "")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := peer.Local(); !errors.Is(err, ErrGone) {
		t.Errorf("got %v, want that it is gone", err)
	}
	echo := net.UDPAddrFromAddrPort(netip.AddrPortFrom(peer.Rails[0].Addr, peer.Rails[0].UDP))
	for free := false; !free; { // the test ends by its timeout
		if err := b.Enter(func() error {
			c, err := net.ListenUDP("udp", echo)
			if free = err == nil; free {
				return c.Close()
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	l = listen()
	go func() { done <- (&Server{Pod: b.Pod, Key: testKey}).Serve(t.Context(), l) }()
	_ = l.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("its listener has failed: got %v", err)
	}
	b.ns.IP("link del net1")
	b.ns.IP("link del net2")
	if err := (&Server{Pod: b.Pod, Key: testKey}).Serve(t.Context(), l); cnierr.CodeOf(err) != cnierr.BadConfig {
		t.Errorf("without rails: got %v, want code %d", err, cnierr.BadConfig)
	}
}

func TestAServerAnswersOnlyWhoKnowsTheToken(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.serve()
	if _, err := w.pods[0].Dial(t.Context(), w.pods[1].address, keyOf(t, "a guess of the token"), ""); err == nil || !strings.Contains(err.Error(), "the token is wrong") {
		t.Errorf("got %v, want that the token is wrong", err)
	}
	peer, err := w.pods[0].Dial(t.Context(), w.pods[1].address, testKey, "")
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	rails, err := w.pods[0].Rails(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := w.pods[0].socket(t.Context(), rails[0])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	to := netip.AddrPortFrom(peer.Rails[0].Addr, peer.Rails[0].UDP)
	if echoed(c, nonce{1}, to, smallest, 1) {
		t.Error("the echo answers a packet with a nonce that it has not given")
	}
	if !echoed(c, peer.nonce, to, smallest, attempts) {
		t.Error("the echo does not answer")
	}
	if echoed(c, peer.nonce, to, rails[0].MTU+1, 1) {
		t.Error("a packet that is too long is sent in pieces")
	}
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		if link, err := unix.GetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE); link != "net1" {
			t.Errorf("it sends through %q, %v", link, err)
		}
	})
	deaf := couple{Pod: w.pods[0].Pod, r: rails[0], peer: peer, to: peer.Rails[0], conn: c}
	deaf.to.UDP = 1
	want := "problem reach: rail 0 of a to b: 172.16.10.2 answers ARP, and no UDP packet arrives (nft list ruleset  # on both nodes and in both pods: a rule drops UDP)"
	if got := problems([]report.Answer{deaf.lost(t.Context())}); got != want {
		t.Errorf("nothing is at the port: got %q, want %q", got, want)
	}
	// A packet of this connection has arrived at the port of the echo.
	want = "problem reach: rail 0 of a to b: frames are lost in one direction: from b to a" + drops
	back := deaf
	back.to = peer.Rails[0]
	if got := problems([]report.Answer{back.lost(t.Context())}); got != want {
		t.Errorf("nothing comes back: got %q, want %q", got, want)
	}
	// The second of the other rails answers, by the MAC of its interface.
	third := Rail{Number: 2, Addr: peer.Rails[0].Addr, MAC: peer.Rails[0].MAC}
	back.peer = &Peer{Rails: []Rail{{}, {Number: 1, Addr: netip.MustParseAddr("172.16.10.77")}, third}}
	if other, found := back.swapped(t.Context()); !found || other.Number != 2 {
		t.Errorf("got rail %d, %t", other.Number, found)
	}
	back.peer.Rails[2].MAC = peer.Rails[1].MAC
	if other, found := back.swapped(t.Context()); found {
		t.Errorf("another host has the address, and rail %d is blamed", other.Number)
	}
	for _, q := range []throwing{{Rail: 9}, {Rail: -1}} {
		if _, err := peer.ask(request{Throw: &q}, moment); err == nil {
			t.Errorf("it throws frames to %+v", q)
		}
	}
	from := netip.AddrPortFrom(rails[0].Addr, 1)
	throw := request{Throw: &throwing{To: end{rails[0].MAC[:], from}}}
	if _, err := peer.ask(throw, moment); err != nil {
		t.Errorf("it throws no frames: %v", err)
	}
	w.pods[1].ns.IP("link set net1 down") // so no frame leaves
	if _, err := peer.ask(throw, moment); err == nil {
		t.Error("it says that it has thrown frames, and none has left")
	}
	if _, err := deaf.thrown(); err == nil {
		t.Error("the peer has thrown none, and that is no error")
	}
}

// TestAPeerTestsForOthers: one caller can let each pod test itself and all others.
func TestAPeerTestsForOthers(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	w.serve()
	peer, err := w.pods[0].Dial(t.Context(), w.pods[1].address, testKey, "the second")
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	answers, err := peer.Test(w.pods[2].address, Tests{})
	if err != nil || problems(answers) != "" || len(answers) != 4 || answers[0].Of != "rail 0 of the second to c" {
		t.Errorf("got %v, %+v", err, answers)
	}
	if answers, err = peer.Local(); err != nil || problems(answers) != "" || len(answers) != 6 {
		t.Errorf("got %v, %+v", err, answers)
	}
	if _, err := peer.Test("10.0.0.3:1", Tests{}); err == nil || !strings.Contains(err.Error(), "connect to 10.0.0.3:1: ") || errors.Is(err, ErrGone) {
		t.Errorf("got %v, want that there is no server", err)
	}
	if _, err := (Pod{Enter: w.wire.Do}).Rails(t.Context()); cnierr.CodeOf(err) != cnierr.BadConfig {
		t.Errorf("not in a pod: got %v, want code %d", err, cnierr.BadConfig)
	}
}
