// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

const stranger = "02:aa:aa:aa:aa:aa"

// families are the subnets and addresses of rail 0 in each family.
var families = []struct {
	name   string
	subnet func(int) map[string]any
	bits   int
	flags  string // of an address of its own that a leaf uses at once
}{
	{"IPv4", cnitest.Subnet4, 24, ""},
	{"IPv6", cnitest.Subnet6, 64, " nodad"},
}

func TestAddressThatAnotherHostHasIsPassedOver(t *testing.T) {
	t.Parallel()
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			c := w.rail(0).With("ipam.subnets", []any{f.subnet(0)})
			a := w.attach(c, w.podNamed(t, "trainer"), "net1")
			home := addrOfResult(t, a.mustAdd(t))
			a.mustDel(t)

			// The pod would get its address back, but for a machine that took it.
			w.leaf.IP(t, fmt.Sprintf("addr add %s/%d dev leaf0%s", home, f.bits, f.flags))
			w.leaf.snapshot(t) // waits until the kernel answers for an IPv6 address
			again := w.attach(c.With("probe.conflict.wait", "300ms"), w.podNamed(t, "trainer"), "net1")
			next := addrOfResult(t, again.mustAdd(t))
			if next == home {
				t.Fatalf("got %s, which %s has", next, w.leaf.mac(t, "leaf0"))
			}
			if got, want := w.leases(t, "conflict"), []string{"rail0 " + home.String()}; !slices.Equal(got, want) {
				t.Errorf("in quarantine for a conflict: %q, want %q", got, want)
			}
			if got, want := w.leases(t, "leased"), []string{"rail0 " + next.String()}; !slices.Equal(got, want) {
				t.Errorf("leased: %q, want %q", got, want)
			}
			again.mustDel(t)

			// It is set aside, also when the machine is silent now.
			w.leaf.IP(t, fmt.Sprintf("addr del %s/%d dev leaf0", home, f.bits))
			if got := addrOfResult(t, w.attach(c, w.podNamed(t, "trainer"), "net1").mustAdd(t)); got == home {
				t.Errorf("got %s at once after the conflict", got)
			}
		})
	}
}

// The plugin's last act is the announcement: when that was heard, everything
// before it was.
func TestTheWireHearsProbesAndAnnouncements(t *testing.T) {
	t.Parallel()
	for mode, probes := range map[string]int{"require": 3, "off": 0} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			tap := w.leaf.listen(t, "leaf0", nil)
			c := w.rail(0).With("probe.conflict", mode).With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)})
			res := w.attach(c, w.pod(t), "net1").mustAdd(t)
			for i, addr := range addrs(res) {
				for _, f := range tap.await(t, 1, "an announcement of "+addr.String(), func(f frame) bool { return f.gratuitous(addr) }) {
					if f.src != res.Interfaces[0].Mac || f.mac != f.src {
						t.Errorf("%s was announced by %v, want %s", addr, f, res.Interfaces[0].Mac)
					}
				}
				if got := tap.heard(func(f frame) bool { return f.probe(addr) }); len(got) != probes {
					t.Errorf("%d probes for %s, want %d: %v", len(got), addr, probes, got)
				}
				gateway := netip.MustParseAddr([]string{"172.16.10.254", "fd00:10::fe"}[i])
				asked := tap.heard(func(f frame) bool { return (f.kind == arpRequest || f.kind == solicit) && f.to == gateway })
				if len(asked) == 0 || asked[0].from != addr {
					t.Errorf("the gateway %s was asked by %v, want it to be asked by %s", gateway, asked, addr)
				}
			}
			if got := tap.heard(func(f frame) bool { return !f.out && f.kind == echoRequest }); len(got) > 0 {
				t.Errorf("the wire was asked by ICMP echo: %v", got)
			}
		})
	}
}

// Two nodes with the same pool by mistake give one address at the same moment.
func TestTwoNodesNeverBothGetOneAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.bridge(t, 1)
	other := newNode(t, w.Name+"-b")
	other.host = "node-b"
	w.wireTo(t, other, 0, "leaf1")
	w.leaf.IP(t, "link set dev leaf1 master br0")
	// The window is long enough for a process to be kept waiting by the others of a busy machine.
	contested := func(n *node, p *pod, addr string) attachment {
		return n.attach(n.rail(0).With("probe.conflict.wait", "300ms"), p, "net1").capable("ips", []string{addr})
	}
	p, q := w.pod(t), w.pod(t)
	for i := range 10 {
		addr := fmt.Sprintf("172.16.10.%d", 64+i)
		both := []attachment{contested(w.node, p, addr), contested(other, q, addr)}
		var all sync.WaitGroup
		won := make([]bool, len(both))
		for i, a := range both {
			all.Go(func() {
				_, err := a.add(t)
				won[i] = err == nil
				if err != nil && err.Code != 100 {
					t.Errorf("node %d: got %v, want error 100 or none", i, err)
				}
			})
		}
		all.Wait()
		if won[0] && won[1] {
			t.Errorf("both nodes gave %s", addr)
		}
		for i, a := range both {
			if won[i] {
				a.mustDel(t)
			}
		}
	}
	w.noRecords(t)
	other.noRecords(t)
}
