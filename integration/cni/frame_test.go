// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// frame is what a test wants to know of a frame.
type frame struct {
	out  bool // the link that was listened at sent it itself
	kind kind
	src  string // MACs of the Ethernet header
	dst  string
	from netip.Addr // the sender: of ARP its protocol address, else the IP source
	to   netip.Addr // the address that is asked for or answered for, else the IP destination
	mac  string     // the MAC that the message says from or to has, "" if none
}

// kind tells frames apart.
type kind string

const (
	arpRequest  kind = "ARP request"
	arpReply    kind = "ARP reply"
	solicit     kind = "neighbour solicitation"
	advertise   kind = "neighbour advertisement"
	echoRequest kind = "echo request"
	echoReply   kind = "echo reply"
	otherIP     kind = "IP"
	otherFrame  kind = "frame"
)

func (f frame) String() string {
	way := "in"
	if f.out {
		way = "out"
	}
	return fmt.Sprintf("%s %s %s>%s %s>%s (%s)", way, f.kind, f.src, f.dst, f.from, f.to, f.mac)
}

// gratuitous says whether the frame announces an address to all hosts.
func (f frame) gratuitous(addr netip.Addr) bool {
	switch f.kind {
	case arpRequest:
		return f.from == addr && f.to == addr
	case advertise:
		return f.to == addr && f.dst == "33:33:00:00:00:01"
	}
	return false
}

// probe says whether the frame asks who has an address, and names no sender address (RFC 5227).
func (f frame) probe(addr netip.Addr) bool {
	return (f.kind == arpRequest || f.kind == solicit) && f.to == addr && f.from.IsUnspecified()
}

const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
)

// parseFrame reads an Ethernet frame; what it does not know it leaves out.
func parseFrame(b []byte) frame {
	if len(b) < 14 {
		return frame{kind: otherFrame}
	}
	f := frame{kind: otherFrame, dst: macOf(b[:6]), src: macOf(b[6:12])}
	body := b[14:]
	switch binary.BigEndian.Uint16(b[12:]) {
	case etherARP:
		f.readARP(body)
	case etherIPv4:
		f.readIPv4(body)
	case etherIPv6:
		f.readIPv6(body)
	}
	return f
}

func (f *frame) readARP(b []byte) {
	if len(b) < 28 {
		return
	}
	f.kind = arpReply
	if b[7] == 1 {
		f.kind = arpRequest
	}
	f.mac, f.from, f.to = macOf(b[8:14]), addrOf(b[14:18]), addrOf(b[24:28])
}

func (f *frame) readIPv4(b []byte) {
	if len(b) < 28 {
		return
	}
	f.kind, f.from, f.to = otherIP, addrOf(b[12:16]), addrOf(b[16:20])
	if b[9] != 1 {
		return
	}
	switch b[20] {
	case 8:
		f.kind = echoRequest
	case 0:
		f.kind = echoReply
	}
}

func (f *frame) readIPv6(b []byte) {
	if len(b) < 48 {
		return
	}
	f.kind, f.from, f.to = otherIP, addrOf(b[8:24]), addrOf(b[24:40])
	if b[6] != 58 {
		return
	}
	switch msg := b[40:]; msg[0] {
	case 128:
		f.kind = echoRequest
	case 129:
		f.kind = echoReply
	case 135, 136:
		if len(msg) < 24 {
			return
		}
		f.kind, f.to = solicit, addrOf(msg[8:24])
		if msg[0] == 136 {
			f.kind = advertise
		}
		if len(msg) >= 32 && (msg[24] == 1 || msg[24] == 2) {
			f.mac = macOf(msg[26:32])
		}
	}
}

func macOf(b []byte) string { return net.HardwareAddr(b).String() }

func addrOf(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// reply returns the frame in which by says that it has the address that a probe asks for.
func reply(f frame, by string) []byte {
	dst, mac := parseMAC(f.src), parseMAC(by)
	return slices.Concat(dst, mac, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 2}, mac, f.to.AsSlice(), dst, f.from.AsSlice(), make([]byte, 18))
}

func parseMAC(s string) []byte {
	mac, err := net.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return mac
}
