// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

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

// largest is the size of a buffer for any packet.
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
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EMSGSIZE) {
			continue
		}
		if err != nil {
			return false
		}
		if wanted(buf[:length]) {
			return true
		}
	}
}

// end is one end of a test.
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
