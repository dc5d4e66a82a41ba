// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/ndp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// advert is a neighbour advertisement as an owner sends it to all nodes.
func advert(t *testing.T, mac conf.MAC, a netip.Addr) []byte {
	t.Helper()
	f, err := neighbour{a, netip.IPv6LinkLocalAllNodes(), &ndp.NeighborAdvertisement{Override: true, TargetAddress: a}}.frame(mac)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func dad(t *testing.T, mac conf.MAC, a netip.Addr) []byte {
	t.Helper()
	f, err := neighbour{unset6, solicitedNode(a), &ndp.NeighborSolicitation{TargetAddress: a}}.frame(mac)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func arpFrom(mac conf.MAC, a netip.Addr) []byte {
	return arp{op: arpReply, senderMAC: mac, sender: a, target: unset4}.frame(nil)
}

func arpProbe(mac conf.MAC) []byte {
	return arp{op: arpRequest, senderMAC: mac, sender: unset4, target: ours4}.frame(nil)
}

func TestConflictWithAScriptedPeer(t *testing.T) {
	t.Parallel()
	type taken struct {
		by   conf.MAC
		what string
	}
	both := func(four, six func(conf.MAC) []byte) func(conf.MAC, int, []byte) [][]byte {
		return func(ours conf.MAC, _ int, _ []byte) [][]byte { return [][]byte{four(ours), six(ours)} }
	}
	from := func(f func(conf.MAC) []byte) func(conf.MAC) []byte {
		return func(conf.MAC) []byte { return f(otherMAC) }
	}
	adv := func(mac conf.MAC) []byte { return advert(t, mac, ours6) }
	rival := func(mac conf.MAC) []byte { return dad(t, mac, ours6) }
	reply := func(mac conf.MAC) []byte { return arpFrom(mac, ours4) }
	for name, c := range map[string]struct {
		script    func(ours conf.MAC, n int, frame []byte) [][]byte
		four, six taken
	}{
		"silent":         {script: func(conf.MAC, int, []byte) [][]byte { return nil }},
		"answers":        {both(from(reply), from(adv)), taken{otherMAC, "ARP reply"}, taken{otherMAC, "neighbour advertisement"}},
		"probes as well": {both(from(arpProbe), from(rival)), taken{otherMAC, "ARP probe"}, taken{otherMAC, "duplicate address detection"}},
		"has our MAC":    {both(reply, adv), taken{conf.MAC{}, "ARP reply"}, taken{conf.MAC{}, "neighbour advertisement"}},
		"has our MAC and probes": {
			both(arpProbe, rival), taken{conf.MAC{}, "ARP probe"}, taken{conf.MAC{}, "duplicate address detection"},
		},
		"first two probes are lost": {
			script: func(_ conf.MAC, n int, _ []byte) [][]byte {
				if n < 3 {
					return nil
				}
				return [][]byte{arpFrom(otherMAC, ours4), advert(t, otherMAC, ours6)}
			},
			four: taken{otherMAC, "ARP reply"}, six: taken{otherMAC, "neighbour advertisement"},
		},
		"another MAC in the packet than on the frame": {
			script: func(ours conf.MAC, _ int, _ []byte) [][]byte {
				a := arp{op: arpReply, senderMAC: otherMAC, sender: ours4, target: unset4}
				return [][]byte{ether{dst: ours, src: thirdMAC, proto: unix.ETH_P_ARP, payload: a.marshal()}.marshal()}
			},
			four: taken{otherMAC, "ARP reply"},
		},
		"answers another host": {
			script: func(conf.MAC, int, []byte) [][]byte {
				a := arp{op: arpReply, senderMAC: otherMAC, sender: ours4, target: unset4}
				return [][]byte{ether{dst: thirdMAC, src: otherMAC, proto: unix.ETH_P_ARP, payload: a.marshal()}.marshal()}
			},
		},
		"answers on a VLAN that is not ours": {
			script: func(conf.MAC, int, []byte) [][]byte {
				return [][]byte{tagged(arpFrom(otherMAC, ours4)), tagged(advert(t, otherMAC, ours6))}
			},
		},
		"returns our own frames": {
			script: func(_ conf.MAC, _ int, f []byte) [][]byte { return [][]byte{f} },
		},
		"talks of other addresses": {
			script: func(conf.MAC, int, []byte) [][]byte {
				return [][]byte{arpFrom(otherMAC, gateway4), advert(t, otherMAC, gateway6)}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod, far := wired(t)
			ours := pod.mac("pb0")
			p := far.peer("pb1", func(n int, f []byte) [][]byte { return c.script(ours, n, f) })
			four, six := pod.target("pb0", ours4, gateway4), pod.target("pb0", ours6, gateway6)
			op := plan.Conflict{Mode: conf.Require, Probes: 3, Interval: 30 * ms, Wait: 60 * ms, Targets: []plan.Target{four, six}}
			if c.four.what != "" { // it is answered, by a peer that may be late
				op.Wait = 2 * time.Second
			}
			err := pod.prober().Do(t.Context(), plan.Op{Kind: op})
			var want []Taken
			for _, w := range []struct {
				taken
				target plan.Target
			}{{c.four, four}, {c.six, six}} {
				if w.what == "" {
					continue
				}
				if w.by.IsZero() {
					w.by = ours
				}
				want = append(want, Taken{w.target, w.by, w.what})
			}
			wantTaken(t, err, want...)
			if want == nil {
				p.mustHear(t, false, 3)
				p.mustHear(t, true, 3)
			}
			if e := (*cnierr.Error)(nil); c.four.what != "" && c.four.by.IsZero() && errors.As(err, &e) && !strings.Contains(e.Hint, "equal MACs") {
				t.Errorf("hint %q, want it to say that the MACs are equal", e.Hint)
			}
		})
	}
}

// tagged puts a frame into VLAN 20.
func tagged(f []byte) []byte {
	return append(append(bytes.Clone(f[:12]), 0x81, 0, 0, 20), f[12:]...)
}

// TestHairpinBringsOurFramesBackAndTheyAreNoConflict: a switch port reflects our
// frames. macvlan does not drop them in private and passthru mode.
func TestHairpinBringsOurFramesBackAndTheyAreNoConflict(t *testing.T) {
	t.Parallel()
	for mode, back := range map[netlink.MacvlanMode]bool{
		netlink.MACVLAN_MODE_BRIDGE: false, netlink.MACVLAN_MODE_VEPA: false,
		netlink.MACVLAN_MODE_PRIVATE: true, netlink.MACVLAN_MODE_PASSTHRU: true,
	} {
		t.Run(fmt.Sprint("mode ", mode), func(t *testing.T) {
			t.Parallel()
			pod, bridge := wired(t)
			bridge.must(bridge.nl.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "pbbr"}}))
			bridge.must(bridge.nl.LinkSetMaster(bridge.link("pb1"), bridge.link("pbbr")))
			bridge.up("pbbr")
			bridge.must(bridge.nl.LinkSetHairpin(bridge.link("pb1"), true))
			pod.macvlan("pbc", "pb0", mode)
			bridge.address("pbbr", gateway4)
			settle(t, pod, "pbc", gateway4)
			observer := pod.listen("pbc", false)
			defer observer.Close()

			four, six := pod.target("pbc", ours4, gateway4), pod.target("pbc", ours6, gateway6)
			wantTaken(t, pod.prober().Do(t.Context(), plan.Op{Kind: conflictOp(four, six)}))

			patience := 100 * ms
			if back {
				patience = time.Minute
			}
			if err := observer.SetReadDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, frameMax)
			n, _, err := observer.ReadFrom(b)
			for err == nil && !question(b[:n]) {
				n, _, err = observer.ReadFrom(b)
			}
			if (err == nil) != back {
				t.Errorf("our frame came back: %v, want %v", err == nil, back)
			}
		})
	}
}
