// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package lldp listens for the LLDP frames of switches (IEEE 802.1AB), and says which
// switch and which port of it a NIC is connected to.
//
// It never sends a frame. Nothing in a frame is proven: any machine on the link can
// send one. So each text is short and has only characters that a terminal can print.
// Read this file first, which parses a frame; listen.go has the sockets.
package lldp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"
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

// Errors of Parse.
var (
	ErrNotLLDP = errors.New("not an LLDP frame")
	// ErrLeaving means that the switch says with a time to live of 0 that its other
	// frames no longer count.
	ErrLeaving = errors.New("the switch ends its LLDP")
)

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

// Parse reads an Ethernet frame without its checksum. The errors wrap ErrNotLLDP or
// ErrLeaving.
func Parse(frame []byte) (Neighbour, error) {
	if len(frame) < etherHeader || binary.BigEndian.Uint16(frame[12:]) != etherType {
		return Neighbour{}, fmt.Errorf("%w: its EtherType is not 0x88cc", ErrNotLLDP)
	}
	var n Neighbour
	var portSubtype byte
	rest := frame[etherHeader:]
	for i := 0; ; i++ {
		kind, value, after, err := next(rest)
		if err != nil {
			return Neighbour{}, err
		}
		// The first three TLVs have their fixed order, and none of them comes again.
		if (i < 3 || kind == chassisTLV || kind == portTLV || kind == lifeTLV) && kind != i+1 {
			return Neighbour{}, fmt.Errorf("%w: its TLV number %d has the type %d", ErrNotLLDP, i+1, kind)
		}
		switch kind {
		case endTLV:
			return n.named(portSubtype), nil
		case chassisTLV:
			n.Chassis, err = id(value, chassisMAC, chassisAddress)
		case portTLV:
			if n.PortID, err = id(value, portMAC, portAddress); err == nil {
				portSubtype = value[0]
			}
		case lifeTLV:
			err = life(value)
		default:
			n.optional(kind, value)
		}
		if err != nil {
			return Neighbour{}, err
		}
		if len(after) == 0 && i >= 2 { // the end may be left out
			return n.named(portSubtype), nil
		}
		rest = after
	}
}

// next cuts off a TLV: seven bits of type, nine of length, and the value.
func next(b []byte) (kind int, value, rest []byte, err error) {
	if len(b) < 2 {
		return 0, nil, nil, fmt.Errorf("%w: it ends in a TLV", ErrNotLLDP)
	}
	head := binary.BigEndian.Uint16(b)
	length := int(head & 0x1ff)
	if b = b[2:]; len(b) < length {
		return 0, nil, nil, fmt.Errorf("%w: a TLV is longer than the frame", ErrNotLLDP)
	}
	return int(head >> 9), b[:length], b[length:], nil
}

// id reads the ID of a chassis or a port: a subtype and 1 to 255 bytes.
func id(value []byte, mac, address byte) (string, error) {
	if len(value) < 2 || len(value) > 256 {
		return "", fmt.Errorf("%w: an ID has %d bytes", ErrNotLLDP, len(value))
	}
	subtype, b := value[0], value[1:]
	switch subtype {
	case mac:
		if len(b) != 6 {
			return "", fmt.Errorf("%w: a MAC address has %d bytes", ErrNotLLDP, len(b))
		}
		return net.HardwareAddr(b).String(), nil
	case address: // the family of the address comes first: 1 is IPv4, 2 is IPv6
		if a, ok := netip.AddrFromSlice(b[1:]); ok && b[0] == map[bool]byte{true: 1, false: 2}[a.Is4()] {
			return a.String(), nil
		}
		return fmt.Sprintf("%.*x", TextLimit/2, b), nil
	}
	return text(b), nil
}

func life(value []byte) error {
	if len(value) < 2 {
		return fmt.Errorf("%w: its time to live has %d bytes", ErrNotLLDP, len(value))
	}
	if binary.BigEndian.Uint16(value) == 0 {
		return ErrLeaving
	}
	return nil
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

// named returns the neighbour with the names for people.
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
