// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// DHCP message types (RFC 2132 section 9.6).
const (
	dhcpDiscover byte = 1
	dhcpOffer    byte = 2
	dhcpRequest  byte = 3
	dhcpAck      byte = 5
	dhcpRelease  byte = 7
)

// The options that the server reads and writes (RFC 2132, RFC 3442).
const (
	optMask      byte = 1
	optRouter    byte = 3
	optLeaseTime byte = 51
	optType      byte = 53
	optServer    byte = 54
	optClient    byte = 61
	optEnd       byte = 255
)

// dhcpServer is a DHCP server on leaf 0 that gives its addresses out in order (RFC
// 2131). It is as large as the tests need it to be. It hears frames, because Linux
// takes a release from the sender 0.0.0.0 for a martian (ip_route_input_slow), and
// answers through a socket.
type dhcpServer struct {
	wire *os.File
	conn net.PacketConn

	mu     sync.Mutex
	free   []netip.Addr
	leased map[string]netip.Addr // by client identifier
	heard  []byte                // message types
}

// dhcp starts a server.
func (w *world) dhcp(t *testing.T, addrs ...string) *dhcpServer {
	t.Helper()
	s := &dhcpServer{leased: map[string]netip.Addr{}}
	for _, a := range addrs {
		s.free = append(s.free, netip.MustParseAddr(a))
	}
	err := w.leaf.Enter(func() (err error) {
		if s.wire, err = packetSocket("leaf0"); err != nil {
			return err
		}
		config := net.ListenConfig{Control: broadcastOn("leaf0")}
		s.conn, err = config.ListenPacket(context.Background(), "udp4", ":67")
		return err
	})
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.serve()
	}()
	t.Cleanup(func() {
		s.wire.Close()
		<-done
		s.conn.Close()
	})
	return s
}

func broadcastOn(link string) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		ctlErr := c.Control(func(fd uintptr) {
			if err = unix.BindToDevice(int(fd), link); err == nil {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
			}
		})
		if ctlErr != nil {
			return ctlErr
		}
		return err
	}
}

func (s *dhcpServer) serve() {
	buf := make([]byte, 1500)
	for {
		n, err := s.wire.Read(buf)
		if err != nil {
			return
		}
		if answer := s.answer(toServer(buf[:n])); answer != nil {
			_, _ = s.conn.WriteTo(answer, &net.UDPAddr{IP: net.IPv4bcast, Port: 68})
		}
	}
}

// toServer returns what a frame brings to UDP port 67, nil if it does not.
func toServer(b []byte) []byte {
	if len(b) < 14+20+8 || binary.BigEndian.Uint16(b[12:]) != etherIPv4 || b[14+9] != unix.IPPROTO_UDP {
		return nil
	}
	udp := b[14+4*int(b[14]&15):]
	if len(udp) < 8 || binary.BigEndian.Uint16(udp[2:]) != 67 {
		return nil
	}
	return udp[8:]
}

const (
	dhcpHeader = 236 // BOOTP, before the magic cookie
	dhcpCookie = 0x63825363
)

// answer returns what is sent for a message, nil for nothing.
func (s *dhcpServer) answer(b []byte) []byte {
	if len(b) < dhcpHeader+4 || b[0] != 1 || binary.BigEndian.Uint32(b[dhcpHeader:]) != dhcpCookie {
		return nil
	}
	asked := dhcpOptions(b[dhcpHeader+4:])
	if len(asked[optType]) != 1 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	typ, client := asked[optType][0], string(asked[optClient])
	s.heard = append(s.heard, typ)
	switch typ {
	case dhcpDiscover:
		return s.reply(b, dhcpOffer, s.free[0])
	case dhcpRequest:
		if _, ok := s.leased[client]; !ok {
			s.leased[client], s.free = s.free[0], s.free[1:]
		}
		return s.reply(b, dhcpAck, s.leased[client])
	case dhcpRelease:
		if a, ok := s.leased[client]; ok && a == addrOf(b[12:16]) { // ciaddr
			delete(s.leased, client)
			s.free = append(s.free, a)
		}
	}
	return nil
}

// reply returns the answer to a message: its first 28 octets hold what says to
// whom, but for the address that is given.
func (s *dhcpServer) reply(request []byte, typ byte, addr netip.Addr) []byte {
	out := slices.Clone(request[:dhcpHeader])
	out[0] = 2
	copy(out[16:20], addr.AsSlice()) // yiaddr
	out = binary.BigEndian.AppendUint32(out, dhcpCookie)
	return append(out, optType, 1, typ, optServer, 4, 172, 16, 10, 254, optRouter, 4, 172, 16, 10, 254,
		optMask, 4, 255, 255, 255, 0, optLeaseTime, 4, 0, 0, 14, 16, optEnd)
}

func dhcpOptions(b []byte) map[byte][]byte {
	out := map[byte][]byte{}
	for len(b) >= 2 && b[0] != optEnd {
		n := min(2+int(b[1]), len(b))
		out[b[0]], b = slices.Clone(b[2:n]), b[n:]
	}
	return out
}

// leases returns the addresses that clients have.
func (s *dhcpServer) leases() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []netip.Addr
	for _, a := range s.leased {
		out = append(out, a)
	}
	return out
}

// count returns how many messages of a type there were.
func (s *dhcpServer) count(typ byte) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, t := range s.heard {
		if t == typ {
			n++
		}
	}
	return n
}
