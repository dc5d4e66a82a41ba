// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// Ipvlan is an ipvlan to be made. The kernel gives it the MAC of the link below it.
type Ipvlan struct {
	Name  string
	Lower Lower
	MTU   int
	Mode  string // l2, l3 or l3s
}

// AddIpvlan makes an ipvlan in the namespace of the socket. The mode is that of all
// ipvlans of a NIC: the kernel changes it for those that are there (ipvlan_set_port_mode).
// Like AddMacvlan it cannot set an alias.
func AddIpvlan(v Ipvlan) Change {
	req := stackedOn(v.Lower, v.Name, v.MTU)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, []byte(ipvlanKind))
	data := info.AddRtAttr(unix.IFLA_INFO_DATA, nil)
	mode := max(slices.Index(ipvlanModes(), v.Mode), 0)
	data.AddRtAttr(nl.IFLA_IPVLAN_MODE, binary.NativeEndian.AppendUint16(nil, uint16(mode)))
	req.AddData(info)
	return Change{req}
}

const (
	macvlanKind = "macvlan"
	ipvlanKind  = "ipvlan"
	vlanKind    = "vlan"
)

// AddVLAN makes a VLAN of a link in the namespace of the socket, with the MTU of that
// link. EEXIST means that the name is taken, or that there is such a VLAN already, which
// may have another name or be in another namespace. Like AddMacvlan it cannot set an alias.
func AddVLAN(name string, lower int32, id int) Change {
	req := stackedOn(Lower{Index: lower, NSID: NoNSID}, name, 0)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, []byte(vlanKind))
	data := info.AddRtAttr(unix.IFLA_INFO_DATA, nil)
	data.AddRtAttr(nl.IFLA_VLAN_ID, binary.NativeEndian.AppendUint16(nil, uint16(id)))
	req.AddData(info)
	return Change{req}
}

// ipvlanModes returns the names of the modes, by their numbers (IPVLAN_MODE_*).
func ipvlanModes() []string { return []string{"l2", "l3", "l3s"} }

// parseData reads the part of a link's description that is different for each kind.
func (l *Link) parseData(b []byte) {
	protocol := uint16(unix.ETH_P_8021Q)
	for typ, v := range nlsock.Attributes(b) {
		switch {
		case l.Kind == vlanKind && typ == nl.IFLA_VLAN_ID && len(v) >= 2:
			l.VLAN = int(binary.NativeEndian.Uint16(v))
		case l.Kind == vlanKind && typ == nl.IFLA_VLAN_PROTOCOL && len(v) >= 2:
			protocol = binary.BigEndian.Uint16(v)
		case l.Kind == macvlanKind && typ == nl.IFLA_MACVLAN_MODE:
			l.Mode = modeName(nlsock.Number(v))
		case l.Kind == ipvlanKind && typ == nl.IFLA_IPVLAN_MODE && len(v) >= 2:
			l.Mode = ipvlanMode(int(binary.NativeEndian.Uint16(v)))
		}
	}
	if protocol != unix.ETH_P_8021Q {
		l.VLAN = 0
	}
}

func ipvlanMode(n int) string {
	if modes := ipvlanModes(); n < len(modes) {
		return modes[n]
	}
	return fmt.Sprint(n)
}

// modeNumber returns the number of a macvlan mode. For a name that is no mode
// it returns 0, which the kernel refuses.
func modeNumber(name string) uint32 {
	for n := uint32(1); n < modes; n <<= 1 {
		if modeName(n) == name {
			return n
		}
	}
	return 0
}

// modes is larger than every mode. A mode is a single bit.
const modes = 32

func modeName(n uint32) string {
	switch n {
	case nl.MACVLAN_MODE_PRIVATE:
		return "private"
	case nl.MACVLAN_MODE_VEPA:
		return "vepa"
	case nl.MACVLAN_MODE_BRIDGE:
		return "bridge"
	case nl.MACVLAN_MODE_PASSTHRU:
		return "passthru"
	case nl.MACVLAN_MODE_SOURCE:
		return "source"
	}
	return fmt.Sprint(n)
}
