// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/mdlayher/ndp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// advert is a neighbour advertisement as an owner sends it to all nodes.
func advert(t *testing.T, a netip.Addr) []byte {
	t.Helper()
	return frameOf(t, neighbour{a, netip.IPv6LinkLocalAllNodes(), &ndp.NeighborAdvertisement{Override: true, TargetAddress: a}})
}

func arpFrom(mac conf.MAC, a netip.Addr) []byte {
	return arp{op: arpReply, senderMAC: mac, sender: a, target: unset4}.frame(nil)
}

// TestFramesThatAreNoConflict in a kernel: its filter and its switch are between the peer
// and us. What is a conflict is tested in fake time, and with the kernel of an owner.
func TestFramesThatAreNoConflict(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]func(n int, frame []byte) [][]byte{
		"silence": func(int, []byte) [][]byte { return nil },
		"an answer to another host": func(int, []byte) [][]byte {
			a := arp{op: arpReply, senderMAC: otherMAC, sender: ours4, target: unset4}
			return [][]byte{ether{dst: thirdMAC, src: otherMAC, proto: unix.ETH_P_ARP, payload: a.marshal()}.marshal()}
		},
		"answers on a VLAN that is not ours": func(int, []byte) [][]byte {
			return [][]byte{tagged(arpFrom(otherMAC, ours4)), tagged(advert(t, ours6))}
		},
		"our own frames": func(_ int, f []byte) [][]byte { return [][]byte{f} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod, far := wired(t)
			p := far.peer("pb1", script)
			four, six := pod.target("pb0", ours4, gateway4), pod.target("pb0", ours6, gateway6)
			op := plan.Conflict{Mode: conf.Require, Probes: 3, Interval: 30 * ms, Wait: 60 * ms, Targets: []plan.Target{four, six}}
			wantTaken(t, pod.prober().Do(t.Context(), plan.Op{Kind: op}))
			p.mustHear(t, false, 3)
			p.mustHear(t, true, 3)
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
