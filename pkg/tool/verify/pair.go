// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/probe"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Test tests each rail with the same rail of the pod at an address, and with Tests.Cross
// also with its other rails, where the rail has a route to them. No rail of either pod is
// in two tests at the same time. Errors: those of Rails and of Dial.
func (p Pod) Test(ctx context.Context, address string, key Key, tests Tests) ([]report.Answer, error) {
	rails, err := p.Rails(ctx)
	if err != nil {
		return nil, err
	}
	peer, err := p.Dial(ctx, address, key, tests.Peer)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	defer peer.Close()
	ctx, cancel := context.WithTimeout(ctx, testTime)
	defer cancel()
	n := max(len(rails), len(peer.Rails))
	shifts := 1
	if tests.Cross {
		shifts = n
	}
	var out []report.Answer
	for shift := range shifts {
		if ctx.Err() != nil {
			return append(out, cannotTell(Reach, fmt.Sprintf("all rails of %s to %s", p.Name, peer.Name),
				fmt.Sprintf("%d of %d couples of each rail were tested in %s", shift, shifts, testTime), "time: the rails that fail take most of it")), nil
		}
		answers := make([][]report.Answer, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { answers[i] = p.test(ctx, rails, peer, i, (i+shift)%n, tests.RDMA) })
		}
		wg.Wait()
		out = slices.Concat(out, slices.Concat(answers...))
	}
	return out, nil
}

type couple struct {
	Pod
	r    Rail
	peer *Peer
	to   Rail
	conn *net.UDPConn
}

// of names the couple: "rail 3 of gpu-07 to gpu-01".
func (c couple) of() string {
	if c.r.Number != c.to.Number {
		return fmt.Sprintf("rail %d of %s to rail %d of %s", c.r.Number, c.Name, c.to.Number, c.peer.Name)
	}
	return fmt.Sprintf("rail %d of %s to %s", c.r.Number, c.Name, c.peer.Name)
}

// test tests rail i with rail j of the peer.
func (p Pod) test(ctx context.Context, rails []Rail, peer *Peer, i, j int, rdma bool) []report.Answer {
	if i >= len(rails) || j >= len(peer.Rails) {
		if i != j {
			return nil
		}
		return []report.Answer{problem(Reach, fmt.Sprintf("rail %d of %s to %s", i, p.Name, peer.Name),
			fmt.Sprintf("%s has %d rails and %s has %d", p.Name, len(rails), peer.Name, len(peer.Rails)), "rocectl show  # on the node with fewer: what was left out, and why",
			"collectives use as few rails as the pod that has fewest")}
	}
	c := couple{Pod: p, r: rails[i], peer: peer, to: peer.Rails[j]}
	if c.r.Addr.Is4() != c.to.Addr.Is4() || !c.r.reach(c.to.Addr) {
		if i != j {
			return nil // the plan does not connect them
		}
		return []report.Answer{cannotTell(Reach, c.of(), fmt.Sprintf("%s has no route to %s", c.r.Addr, c.to.Addr), "a gateway for the rail, if both must be connected")}
	}
	var err error
	if c.conn, err = p.socket(ctx, c.r); err != nil {
		return []report.Answer{untold(Reach, c.of(), err)}
	}
	defer c.conn.Close() //nolint:errcheck // nothing more is sent
	if !echoed(c.conn, peer.nonce, c.target(), smallest, attempts) {
		if c.r.MTU != c.to.MTU {
			return []report.Answer{c.mtu()} // a cause in a pod comes before switches and cables
		}
		return []report.Answer{c.lost(ctx)}
	}
	reach := good(Reach, c.of(), fmt.Sprintf("%s answers", c.to.Addr))
	out := []report.Answer{reach, c.mtu()}
	if !rdma {
		return out
	}
	for _, of := range programs() {
		out = append(out, c.transfer(ctx, of))
	}
	return out
}

func (c couple) target() netip.AddrPort { return netip.AddrPortFrom(c.to.Addr, c.to.UDP) }

const whyReach = "connections over this rail fail, and a collective over all rails hangs"

// lost finds out why nothing comes back.
func (c couple) lost(ctx context.Context) report.Answer {
	if c.arrived(smallest) {
		return c.oneWay(c.peer.Name, c.Name)
	}
	if !c.r.Subnet.Contains(c.to.Addr) {
		return problem(Reach, c.of(), fmt.Sprintf("no packet from %s arrives at %s; they are in different subnets", c.r.Addr, c.to.Addr),
			"rocectl verify  # in both pods: does the gateway of the rail answer?\n# then the routes of the gateways between the two subnets", whyReach)
	}
	switch err := c.answers(ctx, c.r, plan.Target{Gateway: c.to.Addr}); {
	case err == nil:
		return problem(Reach, c.of(), fmt.Sprintf("%s answers ARP, and no UDP packet arrives", c.to.Addr),
			"nft list ruleset  # on both nodes and in both pods: a rule drops UDP", whyReach)
	case cnierr.CodeOf(err) != cnierr.GatewaySilent:
		return untold(Reach, c.of(), err)
	}
	if other, found := c.swapped(ctx); found {
		return problem(Reach, c.of(), fmt.Sprintf("rail %d of %s is in the network of rail %d of %s", c.r.Number, c.Name, other.Number, c.peer.Name),
			"rocectl rails  # on both nodes: are the NICs in the same order?\n# then cables and VLANs of the switch ports", whyReach)
	}
	return c.silent()
}

// silent tells loss in one direction from loss in both: it sends frames that need no
// answer to ARP. For IPv6 it does not tell them apart.
func (c couple) silent() report.Answer {
	lost := func(found, hint string) report.Answer { return problem(Reach, c.of(), found, hint, whyReach) }
	const ports = "# the VLAN of both switch ports, and the connection between the switches"
	if !c.r.Addr.Is4() {
		return lost("neighbor discovery is not answered", ports)
	}
	back, err := c.thrown()
	if err != nil {
		return lost(fmt.Sprintf("ARP is not answered, and no frame could be sent that tells which direction fails: %v", err), ports)
	}
	switch forth := c.arrived(smallest); {
	case forth && back:
		return lost("ARP is not answered, although frames pass in both directions",
			"# broadcast on both switch ports: storm control, and ARP suppression of an EVPN fabric")
	case forth:
		return c.oneWay(c.peer.Name, c.Name)
	case back:
		return c.oneWay(c.Name, c.peer.Name)
	}
	return lost(fmt.Sprintf("no frame passes between %s and %s in either direction", c.r.Addr, c.to.Addr), ports)
}

// thrown sends frames with the MAC addresses of both ends to the peer, lets the peer do the same,
// and returns whether one came back. Whether one arrived is for the peer to say: see arrived.
func (c couple) thrown() (back bool, err error) {
	own := c.source()
	if err := c.throw(c.r, own.Port(), end{c.to.MAC[:], c.target()}, c.peer.nonce); err != nil {
		return false, err
	}
	if _, err := c.peer.ask(request{Throw: &throwing{c.to.Number, end{c.r.MAC[:], own}}}, moment); err != nil {
		return false, err
	}
	return hear(c.conn, make([]byte, largest), interval, func(got []byte) bool { return len(got) >= len(nonce{}) && nonce(got[:len(nonce{})]) == c.peer.nonce }), nil
}

func (c couple) oneWay(from, to string) report.Answer {
	return problem(Reach, c.of(), fmt.Sprintf("frames are lost in one direction: from %s to %s", from, to),
		"ethtool -S NIC  # drops and errors of the rail's NIC at the first of the two, and of its switch port", whyReach)
}

// swapped looks for the rail of the peer that answers on our rail. It asks as a host without
// an address does: a rail without a gateway, with rp_filter=2, answers no host of another subnet.
func (c couple) swapped(ctx context.Context) (Rail, bool) {
	for _, other := range c.peer.Rails {
		if other.Number == c.to.Number || other.Addr.Is4() != c.r.Addr.Is4() {
			continue
		}
		if taken, is := errors.AsType[*probe.TakenError](c.taken(ctx, c.r, other.Addr)); is && taken.Taken[0].By == other.MAC {
			return other, true
		}
	}
	return Rail{}, false
}

// source is where the packets of this couple come from.
func (c couple) source() netip.AddrPort { return netip.MustParseAddrPort(c.conn.LocalAddr().String()) }

// arrived says whether the peer got a packet of a size from us.
func (c couple) arrived(size int) bool {
	r, err := c.peer.ask(request{Received: true}, moment)
	if err != nil {
		return false
	}
	return slices.Contains(r.Received, arrival{c.source(), c.to.UDP, size})
}

// mtu finds the largest packet that comes back.
func (c couple) mtu() report.Answer {
	const why = "large messages hang or are slow, although small ones pass"
	if c.r.MTU != c.to.MTU {
		return problem(MTU, c.of(), fmt.Sprintf("MTU %d on %s and %d on %s", c.r.MTU, c.Name, c.to.MTU, c.peer.Name),
			fmt.Sprintf("ip link set NIC mtu %d  # of the NIC below the rail, and on the switch; mtu of the network; then restart the pod", max(c.r.MTU, c.to.MTU)), why)
	}
	if echoed(c.conn, c.peer.nonce, c.target(), c.r.MTU, attempts) {
		return good(MTU, c.of(), fmt.Sprintf("packets of %d bytes pass", c.r.MTU))
	}
	direction := fmt.Sprintf("from %s to %s", c.Name, c.peer.Name)
	if c.arrived(c.r.MTU) {
		direction = fmt.Sprintf("from %s to %s", c.peer.Name, c.Name)
	}
	low, high := smallest, c.r.MTU // low passes, high does not
	for high-low > 1 {
		if middle := (low + high) / 2; echoed(c.conn, c.peer.nonce, c.target(), middle, 2) {
			low = middle
		} else {
			high = middle
		}
	}
	return problem(MTU, c.of(), fmt.Sprintf("no packet with more than %d bytes passes %s, and the MTU is %d", low, direction, c.r.MTU),
		fmt.Sprintf("# the MTU of the switch ports and of the connections between the switches: at least %d and their headers", c.r.MTU), why)
}

// nonce begins each packet of a test, so that an echo answers only those who have
// asked for the test with the token.
type nonce [16]byte

// smallest is the size of the smallest test packet, with its headers.
const smallest = 100

// headers is the size of the IP and UDP headers before the payload.
func headers(a netip.Addr) int {
	if a.Is4() {
		return 20 + 8
	}
	return 40 + 8
}

// payload is nonce, sequence number, and zeros up to a size with headers.
func payload(n nonce, seq uint32, size int, a netip.Addr) []byte {
	b := make([]byte, size-headers(a))
	copy(b, n[:])
	binary.BigEndian.PutUint32(b[len(n):], seq)
	return b
}

// socket opens a UDP socket on a rail. It sends only through the rail's interface,
// and never fragments.
func (p Pod) socket(ctx context.Context, r Rail) (*net.UDPConn, error) {
	var out *net.UDPConn
	err := p.Enter(func() error {
		c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
			var failed error
			err := raw.Control(func(fd uintptr) { failed = prepare(int(fd), r) })
			return errors.Join(err, failed)
		}}
		conn, err := c.ListenPacket(ctx, "udp", netip.AddrPortFrom(r.Addr, 0).String())
		if err != nil {
			return err
		}
		out, _ = conn.(*net.UDPConn) // ListenPacket returns one for "udp"
		return nil
	})
	return out, err
}

func prepare(fd int, r Rail) error {
	if err := unix.BindToDevice(fd, string(r.Link)); err != nil {
		return err
	}
	if r.Addr.Is4() {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
}

const largest = 1 << 16

// echoed sends packets of a size until one comes back, and says whether one did.
func echoed(c *net.UDPConn, n nonce, to netip.AddrPort, size, tries int) bool {
	buf := make([]byte, largest)
	for seq := range tries {
		want := payload(n, uint32(seq), size, to.Addr())
		if _, err := c.WriteToUDPAddrPort(want, to); err != nil {
			continue // too long for the interface, or no route: as if it were lost
		}
		if hear(c, buf, interval, func(got []byte) bool {
			return len(got) == len(want) && bytes.Equal(got[:len(n)], n[:])
		}) {
			return true
		}
	}
	return false
}

// hear reads packets for some time, until one is wanted.
func hear(c *net.UDPConn, buf []byte, d time.Duration, wanted func([]byte) bool) bool {
	if c.SetReadDeadline(time.Now().Add(d)) != nil {
		return false
	}
	for {
		length, _, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return false
		}
		if wanted(buf[:length]) {
			return true
		}
	}
}

type end struct {
	MAC  net.HardwareAddr `json:"mac"`
	Addr netip.AddrPort   `json:"address"`
}

// throw sends frames to a known hardware address, without ARP: they can arrive even if
// nothing comes back. It is for IPv4.
func (p Pod) throw(r Rail, from uint16, to end, n nonce) error {
	var c *packet.Conn
	err := p.Enter(func() (err error) {
		ifi := &net.Interface{Index: int(r.index), Name: string(r.Link), HardwareAddr: r.MAC[:]}
		c, err = packet.Listen(ifi, packet.Raw, unix.ETH_P_IP, &packet.Config{})
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // the frames are sent
	f := frame(r.MAC[:], to, netip.AddrPortFrom(r.Addr, from), payload(n, 0, smallest, r.Addr))
	for range attempts {
		if _, err := c.WriteTo(f, &packet.Addr{HardwareAddr: to.MAC}); err != nil {
			return err
		}
	}
	return nil
}

// frame builds an Ethernet frame with a UDP packet. IPv4 allows a UDP packet without
// checksum.
func frame(mac net.HardwareAddr, to end, from netip.AddrPort, data []byte) []byte {
	b := append(append(append([]byte{}, to.MAC...), mac...), 0x08, 0x00)
	ip := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0}
	binary.BigEndian.PutUint16(ip[2:], uint16(headers(from.Addr())+len(data)))
	ip = append(append(ip, from.Addr().AsSlice()...), to.Addr.Addr().AsSlice()...)
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	b = append(b, ip...)
	b = binary.BigEndian.AppendUint16(b, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Addr.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(data)))
	return append(append(b, 0, 0), data...)
}

// checksum is that of an IP header (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
