// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

const rails = 8

// attached is one interface of a pod with eight.
type attached struct {
	attachment
	rail   int
	mac    string
	addrs  []netip.Addr // IPv4, IPv6
	subnet int          // the number in its subnet's prefix
	tap    *tap         // on the leaf's end of the rail
}

func (a attached) gateway(i int) string {
	return []string{fmt.Sprintf("172.16.%d.254", a.subnet), fmt.Sprintf("fd00:%d::fe", a.subnet)}[i]
}

// eight attaches a pod to all rails, both families: by one network for rails with one subnet
// each (share is 1), by eight for rails that all have one (share is 0).
func eight(t *testing.T, w *world, p *pod, share int) []attached {
	t.Helper()
	var out []attached
	if share == 1 {
		a := w.attach(w.listed(cnitest.Subnet4, cnitest.Subnet6), p, "net1")
		out = each(t, a, a.mustAdd(t), 2)
	}
	for i := range rails {
		if share == 0 {
			c := w.rail(i).With("ipam.pool", "pool").With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)})
			a := attached{attachment: w.attach(c, p, fmt.Sprintf("net%d", i+1)), rail: i, subnet: 10}
			res := a.mustAdd(t)
			a.mac, a.addrs = res.Interfaces[0].Mac, addrs(res)
			out = append(out, a)
		}
		out[i].tap = w.leaf.listen(t, fmt.Sprintf("leaf%d", i), nil)
	}
	return out
}

func TestEightRailsAreEachAnsweredOnTheirOwnLink(t *testing.T) {
	t.Parallel()
	t.Run("a subnet for each rail", func(t *testing.T) {
		t.Parallel()
		testEightRails(t, newWorld(t, rails), 1)
	})
	t.Run("one subnet for all rails", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 0)
		w.bridge(t, rails)
		testEightRails(t, w, 0)
	})
}

// bridge makes rails without node addresses. Their leaf links are ports of one
// bridge: the subnets of rail 0.
func (w *world) bridge(t testing.TB, n int) {
	t.Helper()
	w.leaf.IP(t, `
		link add br0 type bridge mcast_snooping 0
		link set dev br0 addrgenmode none
		addr add 172.16.10.254/24 dev br0
		addr add fd00:10::fe/64 dev br0 nodad
		addr add fe80::fe/64 dev br0 nodad
		link set dev br0 up`)
	for i := range n {
		w.wire(t, i)
		w.leaf.IP(t, fmt.Sprintf("link set dev leaf%d master br0", i))
	}
}

func testEightRails(t *testing.T, w *world, share int) {
	t.Helper()
	w.leaf.IP(t, `
		addr add 198.51.100.1/32 dev lo
		addr add 2001:db8::1/128 dev lo nodad
		link set dev lo up`)
	p := w.pod(t)
	before, main := p.snapshot(t), p.routes(t, "main")
	eth0 := w.listen(t, "pod1", nil)
	all := eight(t, w, p, share)

	checkRules(t, p, all)
	for _, a := range all {
		checkTable(t, p, a)
	}
	checkMain(t, p, main, all)
	// Forget the announcements, so that each address is resolved again.
	w.leaf.MustRun(t, "ip", "neigh", "flush", "all")
	for _, a := range all {
		for i, addr := range a.addrs {
			// From the rail's own subnet and from beyond the gateway.
			for _, from := range []string{a.gateway(i), []string{"198.51.100.1", "2001:db8::1"}[i]} {
				w.leaf.MustRun(t, "ping", "-n", "-q", "-c", "1", "-W", "3", "-I", from, addr.String())
			}
		}
	}
	for _, a := range all {
		checkAnswers(t, a, all)
	}
	for _, f := range eth0.heard(func(f frame) bool { return f.kind == echoReply }) {
		t.Errorf("eth0 sent %v", f)
	}
	for _, a := range all {
		a.mustDel(t)
	}
	p.unchanged(t, before)
	w.noRecords(t)
}

func checkRules(t *testing.T, p *pod, all []attached) {
	t.Helper()
	var want []string
	for family := range 2 {
		for _, a := range all {
			want = append(want, fmt.Sprintf("32000: from %s lookup %d proto 82", a.addrs[family], 100+a.rail))
		}
		for _, a := range all {
			want = append(want, fmt.Sprintf("32001: from %s unreachable proto 82", a.addrs[family]))
		}
	}
	if diff := cmp.Diff(want, p.rules(t)); diff != "" {
		t.Errorf("rules (-want +got)\n%s", diff)
	}
}

func checkTable(t *testing.T, p *pod, a attached) {
	t.Helper()
	want := []string{
		fmt.Sprintf("172.16.%d.0/24 dev %s proto 82 scope link src %s", a.subnet, a.ifName, a.addrs[0]),
		fmt.Sprintf("default via %s dev %s proto 82 src %s", a.gateway(0), a.ifName, a.addrs[0]),
		fmt.Sprintf("default via %s dev %s proto 82 src %s metric 1024 pref medium", a.gateway(1), a.ifName, a.addrs[1]),
		fmt.Sprintf("fd00:%d::/64 dev %s proto 82 src %s metric 1024 pref medium", a.subnet, a.ifName, a.addrs[1]),
	}
	got := p.routes(t, fmt.Sprint(100+a.rail))
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("table %d (-want +got)\n%s", 100+a.rail, diff)
	}
}

// checkMain checks that the main table got what the kernel makes of addresses
// and nothing else.
func checkMain(t *testing.T, p *pod, before []string, all []attached) {
	t.Helper()
	want := slices.Clone(before)
	for _, a := range all {
		want = append(want,
			fmt.Sprintf("172.16.%d.0/24 dev %s proto kernel scope link src %s", a.subnet, a.ifName, a.addrs[0]),
			fmt.Sprintf("fd00:%d::/64 dev %s proto kernel metric 256 pref medium", a.subnet, a.ifName),
			fmt.Sprintf("fe80::/64 dev %s proto kernel metric 256 pref medium", a.ifName))
	}
	got := p.routes(t, "main")
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("main table (-want +got)\n%s", diff)
	}
}

// checkAnswers checks that both pings to each address of a were answered on a's own
// rail by a's own MAC, and that no other host answered for the addresses.
func checkAnswers(t *testing.T, a attached, all []attached) {
	t.Helper()
	for _, addr := range a.addrs {
		a.tap.await(t, 2, fmt.Sprintf("an answer from %s by %s on rail %d", addr, a.mac, a.rail), func(f frame) bool {
			return !f.out && f.kind == echoReply && f.from == addr && f.src == a.mac
		})
		for _, other := range all {
			wrong := other.tap.heard(func(f frame) bool {
				switch {
				case f.out || (other.rail == a.rail && f.src == a.mac):
					return false
				case f.kind == echoReply || f.kind == arpReply:
					return f.from == addr
				}
				return f.kind == advertise && f.to == addr
			})
			if len(wrong) > 0 {
				t.Errorf("rail %d spoke for %s of rail %d: %v", other.rail, addr, a.rail, wrong)
			}
		}
	}
}

func TestLostTableFailsLoudlyInsteadOfLeakingIntoMain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	eth0 := w.listen(t, "pod1", nil)
	a := w.attach(w.rail(0).With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)}), p, "net1")
	res := a.mustAdd(t)
	rules := p.rules(t)
	whole := p.snapshot(t)

	p.IP(t, "link set dev net1 down\nlink set dev net1 up")
	if diff := cmp.Diff(rules, p.rules(t)); diff != "" {
		t.Errorf("rules after the link went down and up (-want +got)\n%s", diff)
	}
	if got := p.routes(t, "100"); len(got) > 0 {
		t.Fatalf("the kernel kept %q: this test has nothing to show", got)
	}
	for i, addr := range addrs(res) {
		to := netip.MustParseAddr([]string{"198.51.100.9", "2001:db8::9"}[i])
		if err := p.connect(addr, to); !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EHOSTUNREACH) {
			t.Errorf("from %s to %s: got %v, want unreachable", addr, to, err)
		}
		for _, f := range eth0.heard(func(f frame) bool { return f.from == addr }) {
			t.Errorf("eth0 sent %v", f)
		}
	}
	err := a.check(t)
	if err == nil || !strings.Contains(err.Details, "table 100") {
		t.Errorf("CHECK: got %v, want an error with the command that restores the table", err)
	}

	// A runtime that tries again gets all of it back.
	if diff := cmp.Diff(res, a.mustAdd(t)); diff != "" {
		t.Errorf("result of the second ADD (-first +second)\n%s", diff)
	}
	a.mustCheck(t)
	if diff := cmp.Diff(portable(whole), portable(p.snapshot(t))); diff != "" {
		t.Errorf("after the second ADD (-first +second)\n%s", diff)
	}
}

// connect connects a UDP socket, which sends nothing but looks up the route,
// and sends a byte if there is one.
func (ns *namespace) connect(from, to netip.Addr) error {
	return ns.Enter(func() error {
		family := unix.AF_INET
		if from.Is6() {
			family = unix.AF_INET6
		}
		fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, sockaddr(from, 0)); err != nil {
			return err
		}
		if err := unix.Connect(fd, sockaddr(to, 9)); err != nil {
			return err
		}
		_, err = unix.Write(fd, []byte{1})
		return err
	})
}

func sockaddr(a netip.Addr, port int) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4(), Port: port}
	}
	return &unix.SockaddrInet6{Addr: a.As16(), Port: port}
}
