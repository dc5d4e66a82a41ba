// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// fabric makes the rails of two nodes: a bridge for each rail, which is its
// segment and gateway, and routes between them. A gateway needs a link-local
// address: with that it asks for the neighbours of packets that it forwards, and
// whether one that it knows is still there (ndisc_solicit). Without it, rails
// reach each other for as long as their announcements are fresh, half a minute.
func (w *world) fabric(t *testing.T, other *node) {
	t.Helper()
	w.leaf.Set(t, "net/ipv4/ip_forward", "1")
	w.leaf.Set(t, "net/ipv6/conf/all/forwarding", "1")
	for i := range rails {
		w.leaf.IP(t, fmt.Sprintf(`
			link add br%[1]d type bridge mcast_snooping 0
			link set dev br%[1]d mtu 9000 addrgenmode none
			addr add 172.16.%[2]d.254/24 dev br%[1]d
			addr add fd00:%[2]d::fe/64 dev br%[1]d nodad
			addr add fe80::fe/64 dev br%[1]d nodad
			link set dev br%[1]d up`, i, 10+i))
		w.wire(t, i)
		w.wireTo(t, other, i, fmt.Sprintf("leaf%d", rails+i))
		w.leaf.IP(t, fmt.Sprintf("link set dev leaf%d master br%d\nlink set dev leaf%d master br%d", i, i, rails+i, i))
	}
}

// railsOf attaches a pod to all rails of a node, with a host part. The ports of
// the rails at the leaf have numbers from first on.
func (w *world) railsOf(t *testing.T, n *node, p *pod, first, host int) []attached {
	t.Helper()
	only := func(subnet func(int) map[string]any, format string) func(int) map[string]any {
		return func(i int) map[string]any {
			s := subnet(i)
			s["ranges"] = []any{fmt.Sprintf(format, 10+i, host)}
			return s
		}
	}
	var taps []*tap
	for i := range rails {
		taps = append(taps, w.leaf.listen(t, fmt.Sprintf("leaf%d", first+i), nil))
	}
	a := n.attach(n.listed(only(cnitest.Subnet4, "172.16.%d.%d"), only(cnitest.Subnet6, "fd00:%d::%d")), p, "net1")
	out := each(t, a, a.mustAdd(t), 2)
	for i := range out {
		out[i].tap = taps[i]
	}
	return out
}

// Every rail of a pod on one node asks every rail of a pod on another node. The
// question leaves by the rail that it is from, the answer by the one that was
// asked, in each of the 64 pairs and both families.
func TestRepliesLeaveByTheRailTheyWereAskedOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	other := newNode(t, w.Name+"-b")
	other.host = "node-b"
	w.fabric(t, other)
	p, q := w.pod(t), w.pod(t)
	eths := []*tap{w.listen(t, "pod1", nil), w.listen(t, "pod2", nil)}
	here, there := w.railsOf(t, w.node, p, 0, 64), w.railsOf(t, other, q, rails, 65)
	for _, a := range here {
		for _, b := range there {
			for family := range 2 {
				if out, err := p.Run("ping", "-n", "-q", "-c", "1", "-W", "3", "-I", a.addrs[family].String(), b.addrs[family].String()); err != nil {
					t.Errorf("rail %d does not reach rail %d: %v\n%s", a.rail, b.rail, err, out)
				}
			}
		}
	}
	for _, a := range here {
		for _, b := range there {
			for family := range 2 {
				checkLeft(t, a, b.addrs[family], here, echoRequest, a.addrs[family])
				checkLeft(t, b, a.addrs[family], there, echoReply, b.addrs[family])
			}
		}
	}
	for i, eth := range eths {
		for _, f := range eth.heard(func(f frame) bool { return f.kind == echoRequest || f.kind == echoReply }) {
			t.Errorf("eth0 of pod %d: %v", i, f)
		}
	}
}

// checkLeft wants that a pod, of which all are the rails, sent one echo message
// between two addresses, by the rail that a is on.
func checkLeft(t *testing.T, a attached, to netip.Addr, all []attached, kind kind, from netip.Addr) {
	t.Helper()
	left := func(f frame) bool { return !f.out && f.kind == kind && f.from == from && f.to == to }
	a.tap.await(t, 1, fmt.Sprintf("an %s from %s to %s", kind, from, to), left)
	for _, one := range all {
		got := one.tap.heard(left)
		switch {
		case one.rail == a.rail && (len(got) != 1 || got[0].src != a.mac):
			t.Errorf("rail %d of %s sent %v, want one %s from %s to %s", a.rail, a.id, got, kind, from, to)
		case one.rail != a.rail && len(got) > 0:
			t.Errorf("rail %d of %s sent what rail %d has to: %v", one.rail, a.id, a.rail, got)
		}
	}
}

// What one pod gets by rails on the same master is siblings of macvlan: they
// are in step, too, and reach each other on every rail.
func TestTwoPodsOfOneNodeReachEachOtherOnEveryRail(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rails)
	p, q := w.pod(t), w.pod(t)
	a, b := w.attach(w.listed(cnitest.Subnet4, cnitest.Subnet6), p, "net1"), w.attach(w.listed(cnitest.Subnet4, cnitest.Subnet6), q, "net1")
	here, there := each(t, a, a.mustAdd(t), 2), each(t, b, b.mustAdd(t), 2)
	for i := range rails {
		for family := range 2 {
			p.MustRun(t, "ping", "-n", "-q", "-c", "1", "-W", "3", "-I", here[i].addrs[family].String(), there[i].addrs[family].String())
		}
	}
}
