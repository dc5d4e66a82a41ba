// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/mdlayher/ndp"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

var (
	ourMAC   = conf.MAC{0x02, 0, 0, 0, 0, 0x01}
	otherMAC = conf.MAC{0x02, 0, 0, 0, 0, 0x02}
	thirdMAC = conf.MAC{0x02, 0, 0, 0, 0, 0x03}
	ours4    = netip.MustParseAddr("172.16.11.5")
	gateway4 = netip.MustParseAddr("172.16.11.254")
	ours6    = netip.MustParseAddr("fd00:11::a:5")
	gateway6 = netip.MustParseAddr("fd00:11::fe")
	unset4   = netip.IPv4Unspecified()
	unset6   = netip.IPv6Unspecified()
)

// unhex reads hexadecimal digits with any space between them.
func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFramesAreByteForByteWhatTheRFCsSay(t *testing.T) {
	t.Parallel()
	mark := []byte{0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6}
	target4 := plan.Target{Link: "net1", MAC: ourMAC, Addr: ours4, Gateway: gateway4}
	target6 := plan.Target{Link: "net1", MAC: ourMAC, Addr: ours6, Gateway: gateway6}
	conflict := func(t plan.Target) (*ask, error) { return conflictAsk(t, mark) }
	for name, c := range map[string]struct {
		make   func(plan.Target) (*ask, error)
		target plan.Target
		want   string
	}{
		"ARP probe with the mark in the fill": {conflict, target4, `
			ffffffffffff 020000000001 0806  0001 0800 06 04 0001
			020000000001 00000000 000000000000 ac100b05
			a1a2a3a4a5a6 000000000000000000000000`},
		"ARP request for the gateway": {gatewayAsk, target4, `
			ffffffffffff 020000000001 0806  0001 0800 06 04 0001
			020000000001 ac100b05 000000000000 ac100bfe
			000000000000000000000000000000000000`},
		"gratuitous ARP request": {announcement, target4, `
			ffffffffffff 020000000001 0806  0001 0800 06 04 0001
			020000000001 ac100b05 000000000000 ac100b05
			000000000000000000000000000000000000`},
		"solicitation from :: with a nonce and no link-layer address": {conflict, target6, `
			3333ff0a0005 020000000001 86dd  60000000 0020 3a ff
			00000000000000000000000000000000 ff0200000000000000000001ff0a0005
			87 00 8481 00000000 fd0000110000000000000000000a0005
			0e 01 a1a2a3a4a5a6`},
		"solicitation of the gateway with our link-layer address": {gatewayAsk, target6, `
			3333ff0000fe 020000000001 86dd  60000000 0020 3a ff
			fd0000110000000000000000000a0005 ff0200000000000000000001ff0000fe
			87 00 7b6f 00000000 fd0000110000000000000000000000fe
			01 01 020000000001`},
		"unsolicited advertisement with override": {announcement, target6, `
			333300000001 020000000001 86dd  60000000 0020 3a ff
			fd0000110000000000000000000a0005 ff020000000000000000000000000001
			88 00 5a5d 20000000 fd0000110000000000000000000a0005
			02 01 020000000001`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, err := c.make(c.target)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(hex.EncodeToString(unhex(t, c.want)), hex.EncodeToString(a.frame)); diff != "" {
				t.Errorf("frame (-want +got):\n%s", diff)
			}
			want := ask{target: c.target, about: c.target.Addr, claims: strings.Contains(c.want, "a1a2a3a4a5a6")}
			if strings.Contains(name, "for the gateway") || strings.Contains(name, "of the gateway") {
				want.about = c.target.Gateway
			}
			if want.claims && want.about.Is6() { // the owner answers to all, and a rival asks the group of the address
				want.groups = []netip.Addr{netip.MustParseAddr("ff02::1:ff0a:5"), netip.MustParseAddr("ff02::1")}
			}
			if a.frame = nil; !reflect.DeepEqual(*a, want) {
				t.Errorf("got %+v, want %+v", *a, want)
			}
		})
	}
}

func TestARPOfAnotherKindIsNotRead(t *testing.T) {
	t.Parallel()
	good := arp{op: arpReply, senderMAC: otherMAC, sender: ours4, targetMAC: ourMAC, target: unset4}
	for name, c := range map[string]struct {
		damage func([]byte) []byte
		ok     bool
	}{
		"whole":            {func(b []byte) []byte { return b }, true},
		"with fill":        {func(b []byte) []byte { return append(b, make([]byte, 18)...) }, true},
		"empty":            {func([]byte) []byte { return nil }, false},
		"one byte short":   {func(b []byte) []byte { return b[:27] }, false},
		"token ring":       {func(b []byte) []byte { b[1] = 6; return b }, false},
		"not for IPv4":     {func(b []byte) []byte { b[2], b[3] = 0x86, 0xdd; return b }, false},
		"long MAC":         {func(b []byte) []byte { b[4] = 8; return b }, false},
		"long address":     {func(b []byte) []byte { b[5] = 16; return b }, false},
		"operation 0":      {func(b []byte) []byte { b[7] = 0; return b }, false},
		"inverse request":  {func(b []byte) []byte { b[7] = 8; return b }, false},
		"operation 0x0102": {func(b []byte) []byte { b[6] = 1; return b }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := parseARP(c.damage(good.marshal()))
			if ok != c.ok {
				t.Fatalf("read: %v, want %v", ok, c.ok)
			}
			if ok && got != good {
				t.Errorf("got %+v, want %+v", got, good)
			}
		})
	}
}

// withMessage returns b with another ICMPv6 message and a right length and
// checksum, so that nothing but the message can be the reason to discard it.
func withMessage(b, msg []byte) []byte {
	b = append(append([]byte{}, b[:ipv6Header]...), msg...)
	binary.BigEndian.PutUint16(b[4:], uint16(len(msg)))
	checksum := b[ipv6Header+2 : ipv6Header+4]
	clear(checksum)
	sum := uint32(unix.IPPROTO_ICMPV6 + len(msg))
	for i, v := range b[8:] {
		sum += uint32(v) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(checksum, ^uint16(sum))
	return b
}

func TestNeighbourMessagesThatRFC4861DiscardsAreDiscarded(t *testing.T) {
	t.Parallel()
	advert := neighbour{src: ours6, dst: netip.IPv6LinkLocalAllNodes(), msg: &ndp.NeighborAdvertisement{Override: true, TargetAddress: ours6}}
	probe := neighbour{src: unset6, dst: solicitedNode(ours6), msg: &ndp.NeighborSolicitation{TargetAddress: ours6}}
	group := netip.MustParseAddr("ff02::5")
	option := func(bytes ...byte) func([]byte) []byte {
		return func(b []byte) []byte { return withMessage(b, append(b[ipv6Header:], bytes...)) }
	}
	change := func(i int, v byte) func([]byte) []byte {
		return func(b []byte) []byte { b[i] = v; return b }
	}
	keep := func(b []byte) []byte { return b }
	for name, c := range map[string]struct {
		n      neighbour
		damage func([]byte) []byte
		ok     bool
	}{
		"advertisement":             {advert, keep, true},
		"probe":                     {probe, keep, true},
		"fill after the packet":     {advert, func(b []byte) []byte { return append(b, 1, 2, 3) }, true},
		"unknown option":            {advert, option(200, 1, 1, 2, 3, 4, 5, 6), true},
		"two options":               {advert, option(2, 1, 2, 0, 0, 0, 0, 2, 14, 1, 1, 2, 3, 4, 5, 6), true},
		"long link-layer option":    {advert, option(append([]byte{2, 2}, make([]byte, 14)...)...), true},
		"probe with nonce":          {probe, option(14, 1, 1, 2, 3, 4, 5, 6), true},
		"empty":                     {advert, func([]byte) []byte { return nil }, false},
		"cut in the header":         {advert, func(b []byte) []byte { return b[:39] }, false},
		"cut in the message":        {advert, func(b []byte) []byte { return b[:ipv6Header+23] }, false},
		"short message":             {advert, func(b []byte) []byte { return withMessage(b, b[ipv6Header:ipv6Header+23]) }, false},
		"IPv4":                      {advert, change(0, 0x45), false},
		"extension header":          {advert, change(6, 0), false},
		"forwarded by a router":     {advert, change(7, 254), false},
		"code 1":                    {advert, func(b []byte) []byte { b[ipv6Header+1] = 1; return withMessage(b, b[ipv6Header:]) }, false},
		"another type":              {advert, func(b []byte) []byte { b[ipv6Header] = 134; return withMessage(b, b[ipv6Header:]) }, false},
		"damaged target":            {advert, change(ipv6Header+20, 0x77), false},
		"option of length 0":        {advert, option(2, 0, 2, 0, 0, 0, 0, 2), false},
		"option cut short":          {advert, option(2, 2, 2, 0, 0, 0, 0, 2), false},
		"half an option header":     {advert, option(2), false},
		"solicited to a group":      {neighbour{advert.src, advert.dst, &ndp.NeighborAdvertisement{Solicited: true, TargetAddress: ours6}}, keep, false},
		"solicited to one":          {neighbour{advert.src, gateway6, &ndp.NeighborAdvertisement{Solicited: true, TargetAddress: ours6}}, keep, true},
		"advertised group":          {neighbour{advert.src, advert.dst, &ndp.NeighborAdvertisement{TargetAddress: group}}, keep, false},
		"solicited group":           {neighbour{ours6, solicitedNode(group), &ndp.NeighborSolicitation{TargetAddress: group}}, keep, false},
		"probe to all nodes":        {neighbour{unset6, netip.IPv6LinkLocalAllNodes(), probe.msg}, keep, false},
		"probe with source address": {probe, option(1, 1, 2, 0, 0, 0, 0, 2), false},
		"request with source":       {neighbour{ours6, solicitedNode(gateway6), &ndp.NeighborSolicitation{TargetAddress: gateway6}}, option(1, 1, 2, 0, 0, 0, 0, 2), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := parseNeighbour(c.damage(frameOf(t, c.n)[etherHeader:]))
			if ok != c.ok {
				t.Fatalf("read: %v, want %v", ok, c.ok)
			}
			if !ok {
				return
			}
			equal := cmp.Options{cmp.AllowUnexported(neighbour{}), cmpopts.EquateComparable(netip.Addr{})}
			if diff := cmp.Diff(c.n, got, equal); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFramesSayWhoHasAnAddressAndWhoWantsIt(t *testing.T) {
	t.Parallel()
	na := &ndp.NeighborAdvertisement{TargetAddress: ours6}
	ns := &ndp.NeighborSolicitation{TargetAddress: ours6}
	for name, c := range map[string]struct {
		frame []byte
		want  claim
	}{
		"ARP reply":    {arp{op: arpReply, senderMAC: otherMAC, sender: ours4, targetMAC: ourMAC, target: unset4}.frame(nil), claim{ours4, otherMAC, "ARP reply", unset4, false}},
		"ARP request":  {arp{op: arpRequest, senderMAC: otherMAC, sender: ours4, target: gateway4}.frame(nil), claim{addr: ours4, by: otherMAC, what: "ARP request"}},
		"ARP probe":    {arp{op: arpRequest, senderMAC: otherMAC, sender: unset4, target: ours4}.frame(nil), claim{addr: ours4, by: otherMAC, what: "ARP probe"}},
		"reply of 0":   {arp{op: arpReply, senderMAC: otherMAC, sender: unset4, target: ours4}.frame(nil), claim{}},
		"relayed":      {ether{dst: ourMAC, src: thirdMAC, proto: unix.ETH_P_ARP, payload: arp{op: arpReply, senderMAC: otherMAC, sender: ours4, target: unset4}.marshal()}.marshal(), claim{ours4, otherMAC, "ARP reply", unset4, true}},
		"NA":           {frameOf(t, neighbour{gateway6, netip.IPv6LinkLocalAllNodes(), na}), claim{ours6, otherMAC, "neighbour advertisement", netip.IPv6LinkLocalAllNodes(), false}},
		"NS":           {frameOf(t, neighbour{gateway6, solicitedNode(ours6), ns}), claim{addr: gateway6, by: otherMAC, what: "neighbour solicitation"}},
		"DAD":          {frameOf(t, neighbour{unset6, solicitedNode(ours6), ns}), claim{addr: ours6, by: otherMAC, what: "duplicate address detection"}},
		"LLDP":         {ether{src: otherMAC, proto: 0x88cc, payload: make([]byte, 50)}.marshal(), claim{}},
		"empty":        {nil, claim{}},
		"runt":         {make([]byte, 13), claim{}},
		"no ARP in it": {ether{proto: unix.ETH_P_ARP}.marshal()[:14], claim{}},
		"no IP in it":  {ether{proto: unix.ETH_P_IPV6}.marshal()[:14], claim{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := claimOf(c.frame)
			if got != c.want || ok != (c.want != claim{}) {
				t.Errorf("got %+v (%v), want %+v", got, ok, c.want)
			}
		})
	}
}

func frameOf(t testing.TB, n neighbour) []byte {
	t.Helper()
	b, err := n.frame(otherMAC)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFilterPassesNeighbourMessagesToUs(t *testing.T) {
	t.Parallel()
	advert := frameOf(t, neighbour{ours6, netip.IPv6LinkLocalAllNodes(), &ndp.NeighborAdvertisement{TargetAddress: ours6}})
	solicit := frameOf(t, neighbour{unset6, solicitedNode(ours6), &ndp.NeighborSolicitation{TargetAddress: ours6}})
	ping, tcp := append([]byte{}, advert...), append([]byte{}, advert...)
	ping[etherHeader+ipv6Header], tcp[etherHeader+6] = 128, unix.IPPROTO_TCP
	// The VM of x/net/bpf knows no packet type; without its three instructions
	// the rest can run. The real-kernel tests try these three.
	vm, err := bpf.NewVM(portFilter(true)[3:])
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		frame []byte
		pass  bool
	}{
		"advertisement": {advert, true}, "solicitation": {solicit, true},
		"echo request": {ping, false}, "TCP": {tcp, false}, "short": {advert[:etherHeader+ipv6Header], false},
	} {
		if n, err := vm.Run(c.frame); err != nil || (n >= len(c.frame)) != c.pass {
			t.Errorf("%s: passes %d bytes (error %v), want it to pass: %v", name, n, err, c.pass)
		}
	}
}

// FuzzARP: what is read is written again as it was, and nothing panics.
func FuzzARP(f *testing.F) {
	f.Add(arp{op: arpRequest, senderMAC: ourMAC, sender: unset4, target: ours4}.marshal())
	f.Add(arp{op: arpReply, senderMAC: otherMAC, sender: ours4, targetMAC: ourMAC, target: gateway4}.marshal())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, ok := parseARP(b)
		if !ok {
			return
		}
		if got := a.marshal(); !cmp.Equal(got, b[:arpLen]) {
			t.Errorf("read %x, wrote %x", b[:arpLen], got)
		}
	})
}

// FuzzNeighbour: behind a right checksum too, nothing panics, and what is read
// is about the target in its place.
func FuzzNeighbour(f *testing.F) {
	advert := neighbour{ours6, netip.IPv6LinkLocalAllNodes(), &ndp.NeighborAdvertisement{TargetAddress: ours6}}
	probe := neighbour{unset6, solicitedNode(ours6), &ndp.NeighborSolicitation{TargetAddress: ours6}}
	for _, n := range []neighbour{advert, probe} {
		b := frameOf(f, n)[etherHeader:]
		f.Add(b[:ipv6Header], b[ipv6Header:])
		f.Add(b[:ipv6Header], append(b[ipv6Header:], 14, 1, 1, 2, 3, 4, 5, 6))
	}
	f.Fuzz(func(t *testing.T, header, msg []byte) {
		if len(header) != ipv6Header || len(msg) < neighbourLen || len(msg) > 1500 {
			return
		}
		n, ok := parseNeighbour(withMessage(header, msg))
		if !ok {
			return
		}
		c := neighbourClaim(n, otherMAC)
		target := netip.AddrFrom16([16]byte(msg[8:24]))
		if c.addr != target && c.addr != n.src || target.IsMulticast() || msg[1] != 0 {
			t.Errorf("claim %+v from %x %x", c, header, msg)
		}
	})
}

// FuzzClaim: no frame panics, and a claim is about an address that a host can
// have, taken from the frame.
func FuzzClaim(f *testing.F) {
	advert := neighbour{ours6, netip.IPv6LinkLocalAllNodes(), &ndp.NeighborAdvertisement{TargetAddress: ours6}}
	probe := neighbour{unset6, solicitedNode(ours6), &ndp.NeighborSolicitation{TargetAddress: ours6}}
	for _, n := range []neighbour{advert, probe} {
		b := frameOf(f, n)
		f.Add(b)
		f.Add(b[:60])
	}
	f.Add(arp{op: arpRequest, senderMAC: ourMAC, sender: unset4, target: ours4}.frame([]byte("markup")))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, ok := claimOf(b)
		if !ok {
			return
		}
		if !strings.Contains(string(b[etherHeader:]), string(c.addr.AsSlice())) {
			t.Errorf("claim for %s, which is not in %x", c.addr, b)
		}
		if !strings.Contains(string(b), string(c.by[:])) {
			t.Errorf("claim by %s, which is not in %x", c.by, b)
		}
		if c.addr.Is6() && b[etherHeader+7] != neighbourHopLimit {
			t.Errorf("a router has forwarded %x", b)
		}
	})
}
