// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

const (
	// carrierWait is how long a link may take to get its carrier after it was
	// brought up. A virtual function needs some milliseconds, and linkwatch
	// takes the lock that every pod on the node takes.
	carrierWait = 2 * time.Second
	carrierPoll = 2 * time.Millisecond
)

// wire has the sockets of one attachment, one for each port. They belong to the
// namespace in which they were opened, whatever thread uses them.
type wire struct {
	log     *slog.Logger
	conns   map[port]net.PacketConn
	links   map[conf.LinkName]int // interface indices
	control int                   // any socket, for ioctls; -1: none yet
	others  []int                 // further sockets, which are only for ioctls and memberships
}

func newWire(log *slog.Logger) *wire {
	return &wire{log: log, conns: map[port]net.PacketConn{}, links: map[conf.LinkName]int{}, control: -1}
}

// close closes all sockets. Their group memberships end with them.
func (w *wire) close() {
	leave(slices.Collect(maps.Values(w.conns)))
	for _, fd := range w.others {
		_ = unix.Close(fd) // nothing is buffered, so nothing is lost
	}
}

// serves says whether all sockets that the asks need are open.
func (w *wire) serves(asks []*ask) bool {
	for _, a := range asks {
		if _, ok := w.conns[a.port()]; !ok || len(a.groups) > 0 {
			return false
		}
	}
	return true
}

// open opens a socket for each port of the asks that has none yet, and joins
// the groups of the asks. It must run in their namespace.
func (w *wire) open(asks []*ask) error {
	if w.control < 0 {
		fd, err := w.socket(unix.AF_INET)
		if err != nil {
			return err
		}
		w.control = fd
	}
	for _, a := range asks {
		if err := w.openPort(a.port()); err != nil {
			return err
		}
	}
	return w.join(asks)
}

func (w *wire) openPort(p port) error {
	if _, ok := w.conns[p]; ok {
		return nil
	}
	index, err := w.index(p.link)
	if err != nil {
		return linkError(p.link, err)
	}
	filter, err := bpf.Assemble(portFilter(p.v6))
	if err != nil {
		return cnierr.New(cnierr.Bug, "assemble packet filter", "", "", "%w", err)
	}
	ifi := &net.Interface{Index: index, Name: string(p.link)}
	conn, err := packet.Listen(ifi, packet.Raw, etherType(p.v6), &packet.Config{Filter: filter})
	if err != nil {
		return linkError(p.link, err)
	}
	w.conns[p] = conn
	return nil
}

// index asks for one interface. net.InterfaceByName would dump all of them, and
// a pod's namespace can be the host's, with thousands of interfaces.
func (w *wire) index(link conf.LinkName) (int, error) {
	if i, ok := w.links[link]; ok {
		return i, nil
	}
	r, err := w.ioctl(link, unix.SIOCGIFINDEX)
	if err != nil {
		return 0, err
	}
	w.links[link] = int(r.Uint32())
	return w.links[link], nil
}

func (w *wire) ioctl(link conf.LinkName, request uint) (*unix.Ifreq, error) {
	r, err := unix.NewIfreq(string(link))
	if err != nil {
		return nil, err
	}
	return r, unix.IoctlIfreq(w.control, request, r)
}

func (w *wire) socket(family int) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	w.others = append(w.others, fd)
	return fd, nil
}

// portFilter passes the frames that the kernel's own ARP and neighbour
// discovery would look at. It drops frames to another host. It also drops
// frames of a VLAN that the link does not know, because their addresses belong
// to another network. The kernel strips the tag of such a frame and marks it
// like a frame to another host (__netif_receive_skb_core).
func portFilter(v6 bool) []bpf.Instruction {
	const (
		nextHeader = etherHeader + 6
		icmpType   = etherHeader + ipv6Header
		wholeFrame = 1 << 18
	)
	accept, drop := bpf.RetConstant{Val: wholeFrame}, bpf.RetConstant{Val: 0}
	local := []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.PACKET_OTHERHOST, SkipTrue: 1},
		drop,
	}
	if !v6 {
		return append(local, accept)
	}
	return append(local,
		bpf.LoadAbsolute{Off: nextHeader, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_ICMPV6, SkipTrue: 4},
		bpf.LoadAbsolute{Off: icmpType, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: typeSolicitation, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: typeAdvertisement, SkipTrue: 1},
		accept,
		drop,
	)
}

// join lets the links receive the groups of the asks.
func (w *wire) join(asks []*ask) error {
	reports := -1
	for _, a := range asks {
		for _, g := range a.groups {
			if err := w.joinMAC(a.port(), groupMAC(g)); err != nil {
				return linkError(a.target.Link, err)
			}
		}
		if len(a.groups) == 0 {
			continue
		}
		if reports < 0 {
			fd, err := w.socket(unix.AF_INET6)
			if err != nil {
				w.log.Debug("no IPv6 in this namespace, so multicast groups are not reported to switches", "error", err)
				return nil
			}
			reports = fd
		}
		w.report(reports, a)
	}
	return nil
}

// joinMAC opens the link's filter of Ethernet addresses for a group.
func (w *wire) joinMAC(p port, mac conf.MAC) error {
	m := &unix.PacketMreq{Ifindex: int32(w.links[p.link]), Type: unix.PACKET_MR_MULTICAST, Alen: uint16(len(mac))}
	copy(m.Address[:], mac[:])
	return withFD(w.conns[p], func(fd int) error {
		return unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, m)
	})
}

// withFD calls fn with the file descriptor of a socket, which stays open meanwhile.
func withFD(conn net.PacketConn, fn func(fd int) error) error {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return errors.ErrUnsupported
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = rc.Control(func(fd uintptr) { failed = fn(int(fd)) })
	return errors.Join(err, failed)
}

// report joins the ask's groups as an IPv6 host does. That sends MLD reports;
// without them, a snooping switch may keep the answers from us. A link without
// IPv6 has no MLD, but the probe is still worth sending.
func (w *wire) report(fd int, a *ask) {
	for _, g := range a.groups {
		m := &unix.IPv6Mreq{Multiaddr: g.As16(), Interface: uint32(w.links[a.target.Link])}
		err := unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, m)
		if err != nil && !errors.Is(err, unix.EADDRINUSE) { // several addresses can share a group
			w.log.Debug("group not joined", "link", a.target.Link, "group", g, "error", err)
		}
	}
}

// awaitCarrier waits until the links really send. Before that, frames vanish
// without an error (noop_enqueue), and we would take the silence for an answer.
func (w *wire) awaitCarrier(ctx context.Context) error {
	deadline := time.NewTimer(carrierWait)
	defer deadline.Stop()
	tick := time.NewTicker(carrierPoll)
	defer tick.Stop()
	for {
		waiting, err := w.withoutCarrier()
		if err != nil || waiting == "" {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return canceled(ctx)
		case <-deadline.C:
			return cnierr.New(cnierr.BadParent, "send probes on", string(waiting),
				"check the master with ip -d link, its cable and its switch port",
				"the interface got no carrier within %s", carrierWait)
		}
	}
}

// withoutCarrier returns a link that is up but not running, or "".
func (w *wire) withoutCarrier() (conf.LinkName, error) {
	for link := range w.links {
		r, err := w.ioctl(link, unix.SIOCGIFFLAGS)
		if err != nil {
			return "", linkError(link, err)
		}
		flags := r.Uint16()
		if flags&unix.IFF_UP == 0 {
			return "", linkError(link, unix.ENETDOWN)
		}
		if flags&unix.IFF_RUNNING == 0 {
			return link, nil
		}
	}
	return "", nil
}

// write sends an ask's frame.
func (w *wire) write(a *ask) error {
	_, err := w.conns[a.port()].WriteTo(a.frame, &packet.Addr{HardwareAddr: net.HardwareAddr(a.frame[:6])})
	return err
}

// linkError says what an errno of a packet socket means for the link.
func linkError(link conf.LinkName, err error) error {
	hint := shell.Command("run ip -d link show dev %s in the pod's namespace", link)
	switch {
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		err = fmt.Errorf("the interface is gone: %w", err)
	case errors.Is(err, unix.ENETDOWN):
		err = fmt.Errorf("the interface is down: %w", err)
	case errors.Is(err, unix.ENOBUFS):
		err = fmt.Errorf("no frame was sent: %w", err)
	case errors.Is(err, unix.EPERM):
		hint = "run the plugin as root, or give it CAP_NET_RAW"
	case errors.Is(err, unix.EAFNOSUPPORT):
		hint = "load the kernel module af_packet, or set probe.conflict and probe.gateway to \"off\""
	}
	return &cnierr.Error{Code: cnierr.IO, Op: "send probes on", Subject: string(link), Hint: hint, Err: err}
}

const (
	arpLen     = 28
	arpRequest = 1
	arpReply   = 2
	// arpHeader is hardware type Ethernet, protocol IPv4 and their address
	// lengths. Ethernet has no other kind of ARP packet (RFC 826).
	arpHeader = "\x00\x01\x08\x00\x06\x04"
)

// arp is an ARP request or reply for IPv4 over Ethernet.
type arp struct {
	op                   uint16
	senderMAC, targetMAC conf.MAC
	sender, target       netip.Addr
}

// marshal returns the 28 bytes of the packet. sender and target must be IPv4.
func (a arp) marshal() []byte {
	sender, target := a.sender.As4(), a.target.As4()
	b := make([]byte, 0, arpLen)
	b = append(b, arpHeader...)
	b = binary.BigEndian.AppendUint16(b, a.op)
	b = append(b, a.senderMAC[:]...)
	b = append(b, sender[:]...)
	b = append(b, a.targetMAC[:]...)
	return append(b, target[:]...)
}

// frame returns the packet as an Ethernet frame from its sender to all hosts.
// The mark is in the padding that such a short frame needs anyway, so it
// disturbs no receiver.
func (a arp) frame(mark []byte) []byte {
	all := conf.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	return ether{dst: all, src: a.senderMAC, proto: unix.ETH_P_ARP, payload: append(a.marshal(), mark...)}.marshal()
}

// parseARP reads a packet. It ignores what follows its 28 bytes. It returns
// false for everything but a request or reply for IPv4 over Ethernet.
func parseARP(b []byte) (arp, bool) {
	if len(b) < arpLen || string(b[:len(arpHeader)]) != arpHeader {
		return arp{}, false
	}
	a := arp{
		op:        binary.BigEndian.Uint16(b[6:8]),
		senderMAC: conf.MAC(b[8:14]), sender: netip.AddrFrom4([4]byte(b[14:18])),
		targetMAC: conf.MAC(b[18:24]), target: netip.AddrFrom4([4]byte(b[24:28])),
	}
	return a, a.op == arpRequest || a.op == arpReply
}

const (
	etherHeader = 14
	// etherMin is the least length of a frame without checksum (IEEE 802.3
	// section 3.2.8); network cards fill up shorter ones.
	etherMin = 60
)

// ether is an untagged Ethernet frame. The kernel takes VLAN tags off before a
// packet socket sees them.
type ether struct {
	dst, src conf.MAC
	proto    uint16
	payload  []byte
}

// marshal returns the frame, filled up with zeros to etherMin.
func (e ether) marshal() []byte {
	b := make([]byte, 0, max(etherMin, etherHeader+len(e.payload)))
	b = append(b, e.dst[:]...)
	b = append(b, e.src[:]...)
	b = binary.BigEndian.AppendUint16(b, e.proto)
	b = append(b, e.payload...)
	return b[:max(etherMin, len(b))]
}

// parseEther shares its payload with b.
func parseEther(b []byte) (ether, bool) {
	if len(b) < etherHeader {
		return ether{}, false
	}
	return ether{
		dst: conf.MAC(b[0:6]), src: conf.MAC(b[6:12]),
		proto:   binary.BigEndian.Uint16(b[12:14]),
		payload: b[etherHeader:],
	}, true
}

// etherType is the protocol that carries the family's neighbour messages.
func etherType(v6 bool) int {
	if v6 {
		return unix.ETH_P_IPV6
	}
	return unix.ETH_P_ARP
}
