// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lldp

import (
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// tlv is a TLV of a frame.
func tlv(kind int, value ...byte) []byte {
	return append([]byte{byte(kind<<1 | len(value)>>8), byte(len(value))}, value...)
}

// words is a TLV with a text, behind some bytes.
func words(kind int, text string, before ...byte) []byte {
	return tlv(kind, append(before, text...)...)
}

// frame is a frame of a switch to the group of LLDP.
func frame(tlvs ...[]byte) []byte {
	group := nearest()
	out := append(group[:], 0x02, 0, 0, 0, 0, 0x01, 0x88, 0xcc)
	for _, t := range tlvs {
		out = append(out, t...)
	}
	return out
}

var (
	chassis = tlv(chassisTLV, chassisMAC, 0x94, 0x8e, 0xd3, 0x10, 0x20, 0x30)
	life120 = tlv(lifeTLV, 0, 120)
	end     = tlv(endTLV)
)

// switches has a frame of each common switch. They were made by hand from the documents of
// the vendors and from lldpd, which Cumulus Linux and SONiC use; none was recorded from a
// switch.
func switches() map[string]struct {
	frame []byte
	want  Neighbour
} {
	const mac = "94:8e:d3:10:20:30"
	capabilities := tlv(7, 0, 0x14, 0, 0x14)
	management := tlv(8, 5, 1, 10, 0, 0, 1, 2, 0, 0, 0, 1, 0)
	vlan := func(id byte) []byte { return tlv(organizationTLV, 0, 0x80, 0xc2, 1, 0, id) }
	longest := tlv(organizationTLV, 0, 0x12, 0x0f, 4, 0x24, 0x00)
	phy := tlv(organizationTLV, 0, 0x12, 0x0f, 1, 3, 0, 0, 0, 0)
	return map[string]struct {
		frame []byte
		want  Neighbour
	}{
		"NVIDIA Cumulus Linux": {
			frame(chassis, words(portTLV, "swp12s0", 5), life120, words(systemNameTLV, "leaf-03"),
				words(systemDescriptionTLV, "Cumulus Linux version 5.9.1 running on Mellanox Technologies Ltd. MSN4600C"),
				capabilities, management, words(portDescriptionTLV, "gpu-07 rail 3"), phy, end),
			Neighbour{
				Switch: "leaf-03", Port: "swp12s0", Chassis: mac, PortID: "swp12s0", PortDescription: "gpu-07 rail 3",
				Software: "Cumulus Linux version 5.9.1 running on Mellanox Technologies Lt…",
			},
		},
		// The local port ID is the name on the front panel, and the description is the interface.
		"NVIDIA SONiC": {
			frame(chassis, words(portTLV, "etp13a", portLocal), life120, words(portDescriptionTLV, "Ethernet96"), words(systemNameTLV, "sonic-leaf-03"),
				words(systemDescriptionTLV, "SONiC Software Version: SONiC.202311"), capabilities, management, end),
			Neighbour{
				Switch: "sonic-leaf-03", Port: "etp13a", Chassis: mac, PortID: "etp13a", PortDescription: "Ethernet96",
				Software: "SONiC Software Version: SONiC.202311",
			},
		},
		"Arista EOS": {
			frame(chassis, words(portTLV, "Ethernet12/1", 5), life120, words(systemNameTLV, "leaf03.example.org"),
				words(systemDescriptionTLV, "Arista Networks EOS version 4.30.1F"), capabilities, management, vlan(113), longest, end),
			Neighbour{
				Switch: "leaf03.example.org", Port: "Ethernet12/1", Chassis: mac, PortID: "Ethernet12/1",
				Software: "Arista Networks EOS version 4.30.1F", VLAN: 113, MaxFrame: 9216,
			},
		},
		"Cisco NX-OS": {
			frame(chassis, words(portTLV, "Ethernet1/12", 5), life120, words(portDescriptionTLV, "Ethernet1/12"), words(systemNameTLV, "leaf03"),
				words(systemDescriptionTLV, "Cisco Nexus Operating System (NX-OS) Software 9.3(10)\nTAC support: http://www.cisco.com/tac\n"),
				capabilities, management, vlan(1), end),
			Neighbour{
				Switch: "leaf03", Port: "Ethernet1/12", Chassis: mac, PortID: "Ethernet1/12", PortDescription: "Ethernet1/12",
				Software: "Cisco Nexus Operating System (NX-OS) Software 9.3(10) TAC suppo…", VLAN: 1,
			},
		},
		// The local port ID is the index of SNMP.
		"Juniper Junos": {
			frame(chassis, words(portTLV, "516", portLocal), life120, words(systemNameTLV, "leaf03"),
				words(systemDescriptionTLV, "Juniper Networks, Inc. qfx5230-64cd , version 23.4R1"), capabilities, management,
				words(portDescriptionTLV, "et-0/0/12"), phy, longest, end),
			Neighbour{
				Switch: "leaf03", Port: "et-0/0/12", Chassis: mac, PortID: "516", PortDescription: "et-0/0/12",
				Software: "Juniper Networks, Inc. qfx5230-64cd , version 23.4R1", MaxFrame: 9216,
			},
		},
		"H3C Comware": {
			frame(chassis, words(portTLV, "TwoHundredGigE1/0/12", 5), life120, words(portDescriptionTLV, "TwoHundredGigE1/0/12 Interface"),
				words(systemNameTLV, "H3C"), words(systemDescriptionTLV, "H3C Comware Platform Software\r\nH3C S9825"), capabilities, management, vlan(1), longest, end),
			Neighbour{
				Switch: "H3C", Port: "TwoHundredGigE1/0/12", Chassis: mac, PortID: "TwoHundredGigE1/0/12", PortDescription: "TwoHundredGigE1/0/12 Interface",
				Software: "H3C Comware Platform Software  H3C S9825", VLAN: 1, MaxFrame: 9216,
			},
		},
		"Huawei VRP": {
			frame(chassis, words(portTLV, "100GE1/0/12", 5), life120, tlv(portDescriptionTLV), words(systemNameTLV, "CE9860-03"),
				words(systemDescriptionTLV, "Huawei Versatile Routing Platform Software\r\nVRP (R) software, Version 8.220"), capabilities, management, vlan(113), end),
			Neighbour{
				Switch: "CE9860-03", Port: "100GE1/0/12", Chassis: mac, PortID: "100GE1/0/12",
				Software: "Huawei Versatile Routing Platform Software  VRP (R) software, V…", VLAN: 113,
			},
		},
		"a switch with the three mandatory parts, and without an end": {
			frame(tlv(chassisTLV, chassisAddress, 1, 10, 0, 0, 1), tlv(portTLV, portMAC, 2, 0, 0, 0, 0, 9), life120),
			Neighbour{Switch: "10.0.0.1", Port: "02:00:00:00:00:09", Chassis: "10.0.0.1", PortID: "02:00:00:00:00:09"},
		},
		"a switch with an IPv6 address, a port with a MAC address, and padding": {
			frame(tlv(chassisTLV, chassisAddress, 2, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1), tlv(portTLV, portMAC, 2, 0, 0, 0, 0, 9), life120,
				words(portDescriptionTLV, "uplink"), end, make([]byte, 20)),
			Neighbour{Switch: "fd00::1", Port: "uplink", Chassis: "fd00::1", PortID: "02:00:00:00:00:09", PortDescription: "uplink"},
		},
		// Such as a chassis with a name of 255 bytes, and parts that are too long to be what they say.
		"a switch with IDs of other kinds": {
			frame(tlv(chassisTLV, chassisAddress, 1, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1), words(portTLV, strings.Repeat("x", 255), portLocal), life120,
				tlv(organizationTLV, 0, 0x80, 0xc2, 1, 0xf1, 0x71), tlv(organizationTLV, 0, 0x80, 0xc2, 1, 0, 9, 9), tlv(organizationTLV, 0, 0x12, 0x0f, 4, 5),
				words(portDescriptionTLV, "uplink"), end),
			Neighbour{
				Switch: "01fd000000000000000000000000000001", Port: strings.Repeat("x", TextLimit-1) + "…", Chassis: "01fd000000000000000000000000000001",
				PortID: strings.Repeat("x", TextLimit-1) + "…", PortDescription: "uplink", VLAN: 0x171,
			},
		},
		"a port with an address": {
			frame(chassis, tlv(portTLV, portAddress, 1, 10, 0, 0, 9), life120, words(portDescriptionTLV, "uplink"), end),
			Neighbour{Switch: mac, Port: "uplink", Chassis: mac, PortID: "10.0.0.9", PortDescription: "uplink"},
		},
	}
}

func TestFramesOfCommonSwitches(t *testing.T) {
	t.Parallel()
	for name, tt := range switches() {
		got, ok := parse(tt.frame)
		if diff := cmp.Diff(tt.want, got); diff != "" || !ok {
			t.Errorf("%s: %v (-want +got)\n%s", name, ok, diff)
		}
	}
}

// TestAFrameThatLLDPDHasSent has a frame of lldpd 1.0, recorded on a veth. Cumulus Linux and SONiC
// have this program.
func TestAFrameThatLLDPDHasSent(t *testing.T) {
	t.Parallel()
	got, ok := parse(recorded(t))
	want := Neighbour{
		Switch: "leaf-03", Port: "swp12", Chassis: "02:00:00:00:00:0c", PortID: "swp12", PortDescription: "gpu-07 rail 3",
		Software: "Cumulus Linux version 5.9.1",
	}
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Errorf("%v (-want +got)\n%s", ok, diff)
	}
}

func recorded(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "lldpd.hex"))
	if err != nil {
		t.Fatal(err)
	}
	frame, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

func TestHostileFramesAreRefused(t *testing.T) {
	t.Parallel()
	port := words(portTLV, "swp1", 5)
	other := frame(chassis, port, life120, end)
	other[13] = 0xcd
	for name, hostile := range map[string][]byte{
		"nothing":                       nil,
		"a header alone":                frame(),
		"another EtherType":             other,
		"no port":                       frame(chassis, life120, end),
		"another order":                 frame(port, chassis, life120, end),
		"two chassis":                   frame(chassis, port, life120, chassis, end),
		"two ports":                     frame(chassis, port, life120, port, end),
		"two times to live":             frame(chassis, port, life120, life120, end),
		"an end at once":                frame(end),
		"half a header of a TLV":        append(frame(chassis, port, life120), 0x0a),
		"a TLV beyond the frame":        append(frame(chassis, port, life120), 0x0b, 0xff, 'x'),
		"an ID without bytes":           frame(chassis, tlv(portTLV, 5), life120, end),
		"an ID of 256 bytes":            frame(chassis, words(portTLV, strings.Repeat("x", 256), 5), life120, end),
		"a MAC address of five bytes":   frame(tlv(chassisTLV, chassisMAC, 1, 2, 3, 4, 5), port, life120, end),
		"a time to live of one byte":    frame(chassis, port, tlv(lifeTLV, 120), end),
		"a switch that ends its LLDP":   frame(chassis, port, tlv(lifeTLV, 0, 0), end),
		"a frame that is cut in its ID": frame(chassis, port, life120)[:24],
	} {
		if got, ok := parse(hostile); ok || got != (Neighbour{}) {
			t.Errorf("%s: got %+v, %v", name, got, ok)
		}
	}
}

func TestTextsOfFramesAreSafeForATerminal(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"leaf\x1b[2J\x07":                "leaf?[2J?",
		"two\nlines\ttab":                "two lines tab",
		"bad \xff\xfe":                   "bad ??",
		"\u202eevil\u200b":               "?evil?",
		"leaf-03\x00\x00":                "leaf-03",
		"":                               "",
		"機架-3":                           "機架-3",
		strings.Repeat("é", TextLimit):   strings.Repeat("é", TextLimit),
		strings.Repeat("é", TextLimit+1): strings.Repeat("é", TextLimit-1) + "…",
	} {
		got, ok := parse(frame(chassis, words(portTLV, "swp1", 5), life120, words(portDescriptionTLV, in), end))
		if !ok || got.PortDescription != want {
			t.Errorf("%q: got %q, %v, want %q", in, got.PortDescription, ok, want)
		}
	}
}

func TestWhoMayNotListenIsToldHowTo(t *testing.T) {
	t.Parallel()
	for errno, want := range map[unix.Errno]string{unix.EPERM: "CAP_NET_RAW", unix.ENODEV: "ip link"} {
		var e *cnierr.Error
		if err := failed("ens1", os.NewSyscallError("socket", errno)); !errors.As(err, &e) || !strings.Contains(e.Hint, want) || !errors.Is(err, errno) {
			t.Errorf("%v: got %+v, want %q in the hint", errno, e, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, tt := range switches() {
		f.Add(tt.frame)
	}
	f.Add(recorded(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, ok := parse(b)
		if !ok && n != (Neighbour{}) {
			t.Errorf("got %+v of a frame that is refused", n)
		}
		for _, s := range []string{n.Switch, n.Port, n.Chassis, n.PortID, n.PortDescription, n.Software} {
			if utf8.RuneCountInString(s) > TextLimit || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("a text of %d bytes: %q", len(s), s)
			}
		}
	})
}

// TestTheSlavesOfABond are on two switches (MLAG), or on one.
func TestTheSlavesOfABond(t *testing.T) {
	t.Parallel()
	heard := map[string]Neighbour{"ens1f0": {Switch: "leaf-01", Port: "swp1"}, "ens1f1": {Switch: "leaf-02", Port: "swp1"}, "ens2": {Switch: "leaf-01", Port: "swp2"}}
	for want, links := range map[string][]string{
		"leaf-01 + leaf-02 swp1 + swp1": {"ens1f0", "ens1f1"},
		"leaf-01 swp1 + swp2":           {"ens1f0", "ens2"},
		"leaf-02 swp1":                  {"ens3", "ens1f1"},
	} {
		if n := Behind(links, heard); n == nil || n.Switch+" "+n.Port != want {
			t.Errorf("%q: got %+v, want %s", links, n, want)
		}
	}
	if n := Behind([]string{"ens3"}, heard); n != nil {
		t.Errorf("got %+v of a link without a switch", n)
	}
	if heard["ens1f0"].Switch != "leaf-01" {
		t.Errorf("what was heard is changed: %+v", heard)
	}
}
