// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package lldp listens for the LLDP frames of switches (IEEE 802.1AB), and says which
// switch and which port of it a NIC is connected to.
//
// It never sends a frame. Nothing in a frame is proven: any machine on the link can
// send one. So each text is short and has only characters that a terminal can print.
// Everything is in this file: first how a frame is parsed, then the sockets.
package lldp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// Neighbour is what a switch says of itself. Each text has at most TextLimit characters, and
// all of them can be printed.
type Neighbour struct {
	// Switch is the name of the switch, or the ID of its chassis if it has no name.
	Switch string `json:"switch"`
	// Port is the name of the port: its ID, or its description where the ID is a number
	// or a MAC address.
	Port    string `json:"port"`
	Chassis string `json:"chassis"`
	PortID  string `json:"portID"`
	// PortDescription may be what an operator wrote.
	PortDescription string `json:"portDescription,omitempty"`
	// Software is the system description of the switch, such as its model and version.
	Software string `json:"software,omitempty"`
	// VLAN is the ID of the VLAN of frames without a tag, 0 if the switch does not say it.
	VLAN int `json:"vlan,omitempty"`
	// MaxFrame is the length of the longest frame that the port takes, with Ethernet
	// header and checksum; 0 if the switch does not say it.
	MaxFrame int `json:"maxFrame,omitempty"`
}

// TextLimit is the most characters of a text. The standard allows 255 bytes.
const TextLimit = 64

const (
	etherHeader = 14
	etherType   = 0x88cc
)

// The types of TLVs that we read (IEEE 802.1AB, 8.5).
const (
	endTLV = iota
	chassisTLV
	portTLV
	lifeTLV
	portDescriptionTLV
	systemNameTLV
	systemDescriptionTLV
	organizationTLV = 127
)

// The subtypes of port IDs and chassis IDs that are no text. Both have the same meaning,
// and different numbers.
const (
	chassisMAC, chassisAddress = 4, 5
	portMAC, portAddress       = 3, 4
	portLocal                  = 7
)

// The TLVs of organizations: their OUI and subtype.
const (
	portVLAN = 0x0080c2_01 // IEEE 802.1
	maxFrame = 0x00120f_04 // IEEE 802.3
)

// parse reads an Ethernet frame without its checksum. It is false for a frame that is not of LLDP,
// and for one in which the switch says, by a time to live of 0, that its other frames no longer count.
func parse(frame []byte) (n Neighbour, ok bool) {
	if len(frame) < etherHeader || binary.BigEndian.Uint16(frame[12:]) != etherType {
		return Neighbour{}, false
	}
	var portSubtype byte
	rest := frame[etherHeader:]
	for i := 0; i < 3 || len(rest) > 0; i++ { // the end may be left out
		var kind int
		var value []byte
		kind, value, rest, ok = next(rest)
		// The first three TLVs have their fixed order, and none of them comes again.
		if !ok || (i < 3 || kind == chassisTLV || kind == portTLV || kind == lifeTLV) && kind != i+1 {
			return Neighbour{}, false
		}
		switch kind {
		case endTLV:
			return n.named(portSubtype), true
		case chassisTLV:
			n.Chassis, ok = id(value, chassisMAC, chassisAddress)
		case portTLV:
			if n.PortID, ok = id(value, portMAC, portAddress); ok {
				portSubtype = value[0]
			}
		case lifeTLV:
			ok = len(value) >= 2 && binary.BigEndian.Uint16(value) > 0
		default:
			n.optional(kind, value)
		}
		if !ok {
			return Neighbour{}, false
		}
	}
	return n.named(portSubtype), true
}

// next cuts off a TLV: seven bits of type, nine of length, and the value.
func next(b []byte) (kind int, value, rest []byte, whole bool) {
	if len(b) < 2 {
		return 0, nil, nil, false
	}
	head := binary.BigEndian.Uint16(b)
	length := int(head & 0x1ff)
	if b = b[2:]; len(b) < length {
		return 0, nil, nil, false
	}
	return int(head >> 9), b[:length], b[length:], true
}

// id reads the ID of a chassis or a port: a subtype and 1 to 255 bytes.
func id(value []byte, mac, address byte) (out string, ok bool) {
	if len(value) < 2 || len(value) > 256 {
		return "", false
	}
	subtype, b := value[0], value[1:]
	switch subtype {
	case mac:
		return net.HardwareAddr(b).String(), len(b) == 6
	case address: // the family of the address comes first: 1 is IPv4, 2 is IPv6
		if a, ok := netip.AddrFromSlice(b[1:]); ok && b[0] == map[bool]byte{true: 1, false: 2}[a.Is4()] {
			return a.String(), true
		}
		return fmt.Sprintf("%.*x", TextLimit/2, b), true
	}
	return text(b), true
}

// optional reads a TLV that a frame may have. One with a fault is left out: that is
// no reason to know less of the switch.
func (n *Neighbour) optional(kind int, value []byte) {
	switch kind {
	case portDescriptionTLV:
		n.PortDescription = text(value)
	case systemNameTLV:
		n.Switch = text(value)
	case systemDescriptionTLV:
		n.Software = text(value)
	case organizationTLV:
		if len(value) != 6 {
			return
		}
		switch number := int(binary.BigEndian.Uint16(value[4:])); binary.BigEndian.Uint32(value) {
		case portVLAN:
			n.VLAN = number & 0xfff
		case maxFrame:
			n.MaxFrame = number
		}
	}
}

func (n Neighbour) named(portSubtype byte) Neighbour {
	if n.Switch == "" {
		n.Switch = n.Chassis
	}
	n.Port = n.PortID
	// Junos sends the index of SNMP as a local ID, and some send the MAC address of the
	// port. A local ID that is no number is a name: SONiC has the name on the front there.
	number := portSubtype == portLocal && strings.Trim(n.PortID, "0123456789") == ""
	if n.PortDescription != "" && (number || portSubtype == portMAC || portSubtype == portAddress) {
		n.Port = n.PortDescription
	}
	return n
}

// text returns bytes of a frame as a text of one line: at most TextLimit characters, and "?"
// for each that cannot be printed.
func text(b []byte) string {
	var out strings.Builder
	s := strings.TrimRight(string(b), "\x00 \r\n\t")
	for count := 0; len(s) > 0; count++ {
		r, size := utf8.DecodeRuneInString(s)
		if s = s[size:]; count == TextLimit-1 && len(s) > 0 {
			out.WriteRune('…')
			break
		}
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			r = ' '
		case r == utf8.RuneError || !unicode.IsPrint(r):
			r = '?'
		}
		out.WriteRune(r)
	}
	return out.String()
}

// Interval is how often a switch sends a frame unless it is configured otherwise (IEEE
// 802.1AB, msgTxInterval).
const Interval = 30 * time.Second

const frameLimit = 9216

// nearest is the group address of LLDP that no switch forwards.
func nearest() [6]byte { return [6]byte{0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e} }

// Listen returns the neighbours of links in the network namespace of the calling thread,
// by the names of the links. It returns when it has one of each link, or when the context
// ends, which is no error. A link that is down, or on which no switch sends LLDP, has
// none. Each link has a packet socket until Listen returns. The errors are about single
// links, cnierr.IO: the socket needs CAP_NET_RAW.
func Listen(ctx context.Context, links []string) (map[string]Neighbour, error) {
	var all sync.WaitGroup
	var mu sync.Mutex
	heard, faults := map[string]Neighbour{}, []error{}
	for _, link := range links {
		conn, err := open(link)
		if err != nil {
			mu.Lock()
			faults = append(faults, failed(link, err))
			mu.Unlock()
			continue
		}
		all.Go(func() {
			defer conn.Close()
			n, err := first(ctx, conn)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				heard[link] = n
			case !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, unix.ENETDOWN):
				faults = append(faults, failed(link, err))
			}
		})
	}
	all.Wait()
	return heard, errors.Join(faults...)
}

// Behind returns the neighbour of all links of a NIC: the slaves of a bond can be on several
// switches, which are named together. It returns nil if none was heard.
func Behind(links []string, heard map[string]Neighbour) *Neighbour {
	var out *Neighbour
	for _, link := range links {
		n, ok := heard[link]
		switch {
		case !ok:
		case out == nil:
			out = &n
		default:
			if n.Switch != out.Switch {
				out.Switch += " + " + n.Switch
			}
			out.Port += " + " + n.Port
		}
	}
	return out
}

// open opens a socket that gets the LLDP frames of a link.
func open(link string) (*packet.Conn, error) {
	index, err := indexOf(link)
	if err != nil {
		return nil, err
	}
	filter, err := bpf.Assemble(lldpAlone())
	if err != nil {
		return nil, err
	}
	conn, err := packet.Listen(&net.Interface{Index: index, Name: link}, packet.Raw, etherType, &packet.Config{Filter: filter})
	if err != nil {
		return nil, err
	}
	if err := join(conn, index); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// indexOf asks for one interface. net.InterfaceByName would dump all of them.
func indexOf(link string) (int, error) {
	r, err := unix.NewIfreq(link)
	if err != nil {
		return 0, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, r); err != nil {
		return 0, err
	}
	return int(r.Uint32()), nil
}

// lldpAlone passes LLDP frames that came from the link. The socket sees no other EtherType, but
// frames to other groups, and what a program on this machine sends.
func lldpAlone() []bpf.Instruction {
	group := nearest()
	return []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OUTGOING, SkipTrue: 7},
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: etherType, SkipTrue: 5},
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0x0180c200, SkipTrue: 3},
		bpf.LoadAbsolute{Off: 4, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(group[4])<<8 | uint32(group[5]), SkipTrue: 1},
		bpf.RetConstant{Val: frameLimit},
		bpf.RetConstant{Val: 0},
	}
}

// join opens the NIC's filter of addresses for the group. The membership ends with the
// socket.
func join(conn *packet.Conn, index int) error {
	rc, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	group := nearest()
	m := &unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_MULTICAST, Alen: uint16(len(group))}
	copy(m.Address[:], group[:])
	joined := errors.New("not run")
	err = rc.Control(func(fd uintptr) {
		joined = unix.SetsockoptPacketMreq(int(fd), unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, m)
	})
	return errors.Join(err, joined)
}

// first returns the neighbour of the first frame that names one. The error is
// os.ErrDeadlineExceeded if the context ends before.
func first(ctx context.Context, conn *packet.Conn) (Neighbour, error) {
	stop := context.AfterFunc(ctx, func() {
		_ = conn.SetReadDeadline(time.Unix(1, 0)) // fails only on a closed socket
	})
	defer stop()
	frame := make([]byte, frameLimit)
	for {
		size, _, err := conn.ReadFrom(frame)
		if err != nil {
			return Neighbour{}, err
		}
		if n, ok := parse(frame[:size]); ok {
			return n, nil
		}
	}
}

func failed(link string, err error) error {
	hint := "check that the interface is there: ip link"
	if errors.Is(err, unix.EPERM) {
		hint = "run it as root, or give it CAP_NET_RAW"
	}
	return cnierr.New(cnierr.IO, "listen for LLDP on", link, hint, "%w", err)
}
