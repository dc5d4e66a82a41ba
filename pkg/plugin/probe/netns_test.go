// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// space is a network namespace without a name: it ends, with its links, when
// the test does.
type space struct {
	t  testing.TB
	ns ns.NetNS
	nl *netlink.Handle
}

func newSpace(t testing.TB) *space {
	t.Helper()
	if testing.Short() {
		t.Skip("makes network namespaces, which -short excludes")
	}
	s := &space{t: t}
	if err := s.make(); err != nil {
		if os.Getenv("REQUIRE_NETNS") == "1" {
			t.Fatalf("REQUIRE_NETNS=1, and no namespace can be made: %v", err)
		}
		t.Skipf("needs network namespaces, so root: %v", err)
	}
	t.Cleanup(func() {
		s.nl.Close()
		s.must(s.ns.Close())
	})
	return s
}

func (s *space) make() (err error) {
	if s.ns, err = ns.TempNetNS(); err != nil {
		return err
	}
	return s.enter(func() (err error) {
		s.nl, err = netlink.NewHandle()
		return err
	})
}

// enter is what a Prober needs as Enter.
func (s *space) enter(fn func() error) error {
	return s.ns.Do(func(ns.NetNS) error { return fn() })
}

func (s *space) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *space) link(name string) netlink.Link {
	s.t.Helper()
	l, err := s.nl.LinkByName(name)
	s.must(err)
	return l
}

func (s *space) up(names ...string) {
	s.t.Helper()
	for _, n := range names {
		s.must(s.nl.LinkSetUp(s.link(n)))
	}
}

func (s *space) mac(name string) conf.MAC {
	s.t.Helper()
	return conf.MAC(s.link(name).Attrs().HardwareAddr)
}

// cable makes a veth pair, a here and b there.
func (s *space) cable(a string, there *space, b string) {
	s.t.Helper()
	s.must(s.nl.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: a}, PeerName: b, PeerNamespace: netlink.NsFd(there.ns.Fd()),
	}))
}

// macvlan makes a child of parent here and brings it up.
func (s *space) macvlan(name, parent string, mode netlink.MacvlanMode) {
	s.t.Helper()
	s.must(s.nl.LinkAdd(&netlink.Macvlan{
		LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: s.link(parent).Attrs().Index}, Mode: mode,
	}))
	s.up(name)
}

// child makes a macvlan of a parent here in a namespace of its own.
func (s *space) child(name, parent string) *space {
	s.t.Helper()
	pod := newSpace(s.t)
	s.macvlan(name, parent, netlink.MACVLAN_MODE_BRIDGE)
	s.must(s.nl.LinkSetNsFd(s.link(name), int(pod.ns.Fd())))
	pod.up(name)
	return pod
}

// address puts an address on a link, without duplicate address detection.
func (s *space) address(link string, a netip.Addr) {
	s.t.Helper()
	bits := a.BitLen() - 8
	s.must(s.nl.AddrAdd(s.link(link), &netlink.Addr{
		IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}, Flags: unix.IFA_F_NODAD,
	}))
}

func (s *space) prober() *Prober {
	p := &Prober{Enter: s.enter, Log: slog.New(slog.DiscardHandler), Rand: rand.Reader}
	s.t.Cleanup(p.Close)
	return p
}

// target is ours4 or ours6 on a link of this namespace.
func (s *space) target(link string, addr, gateway netip.Addr) plan.Target {
	s.t.Helper()
	return plan.Target{Link: conf.LinkName(link), MAC: s.mac(link), Addr: addr, Gateway: gateway}
}

// peer is a host that answers by script. The script gets the number of each
// question, from 1 for each family, and returns the frames to send.
type peer struct {
	mu    sync.Mutex
	heard map[bool]int // by family, true is IPv6
}

// questions returns how many of a family have come.
func (p *peer) questions(v6 bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard[v6]
}

// mustHear waits until so many questions of a family have come, and wants no more.
func (p *peer) mustHear(t *testing.T, v6 bool, want int) {
	t.Helper()
	await(t, fmt.Sprintf("the peer has heard %d questions (IPv6: %v)", want, v6), func() bool { return p.questions(v6) >= want })
	if n := p.questions(v6); n != want {
		t.Errorf("the peer has heard %d questions (IPv6: %v), want %d", n, v6, want)
	}
}

func (s *space) peer(link string, script func(n int, frame []byte) [][]byte) *peer {
	s.t.Helper()
	p := &peer{heard: map[bool]int{}}
	var done sync.WaitGroup
	four, six := s.listen(link, false), s.listen(link, true)
	done.Go(func() { p.serve(four, false, script) })
	done.Go(func() { p.serve(six, true, script) })
	s.t.Cleanup(func() {
		_, _ = four.Close(), six.Close()
		done.Wait()
	})
	return p
}

func (s *space) listen(link string, v6 bool) *packet.Conn {
	s.t.Helper()
	var conn *packet.Conn
	index := s.link(link).Attrs().Index
	s.must(s.enter(func() (err error) {
		conn, err = packet.Listen(&net.Interface{Index: index}, packet.Raw, etherType(v6), nil)
		return err
	}))
	return conn
}

func (p *peer) serve(conn *packet.Conn, v6 bool, script func(int, []byte) [][]byte) {
	b := make([]byte, frameMax)
	for {
		n, _, err := conn.ReadFrom(b)
		if err != nil {
			return
		}
		if !question(b[:n]) {
			continue
		}
		p.mu.Lock()
		p.heard[v6]++
		number := p.heard[v6]
		p.mu.Unlock()
		for _, f := range script(number, b[:n]) {
			_, _ = conn.WriteTo(f, &packet.Addr{HardwareAddr: f[:6]}) // the test sees what is missing
		}
	}
}

// question says whether a frame asks something for the addresses of the tests.
// The kernel has duplicate address detection of its own going on, and answers
// for the addresses that it has.
func question(frame []byte) bool {
	c, ok := claimOf(frame)
	answer := c.what == "ARP reply" || c.what == "neighbour advertisement"
	return ok && !answer && (c.addr == ours4 || c.addr == ours6)
}
