// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// Link is a network interface.
type Link struct {
	Index     int32
	Name      string
	AltNames  []string
	Kind      string // "macvlan", "veth"; "" for a physical NIC
	SlaveKind string // what it is a port of: "bridge", "bond"
	Master    int32  // index of what it is a port of
	Alias     string
	Address   []byte
	MTU       int
	Flags     uint32 // IFF_*
	Type      uint16 // ARPHRD_*
	Mode      string // of a macvlan or ipvlan, as ip link prints it
	VLAN      int    // number of an 802.1Q VLAN; 0: it is none
	Group     uint32 // that it was put into; 0 by default
	Lower     Lower  // of a stacked link
	PhysPort  string // the port's name on its hardware: "p0", "pf0vf3"
	Dev, Bus  string // the device behind it: "0000:0b:00.0" on "pci"
}

// Lower names the link below a stacked one.
type Lower struct {
	Index int32
	// NSID is the namespace's number in the namespace that was asked; NoNSID
	// for the same namespace.
	NSID int32
}

// NoNSID means that a namespace has no number.
const NoNSID int32 = unix.NETNSA_NSID_NOT_ASSIGNED

// Has says whether name is the link's name or one of its alternative names.
func (l Link) Has(name string) bool {
	return l.Name == name || slices.Contains(l.AltNames, name)
}

// Encap returns the link layer as ip link prints it: "ether", "infiniband".
func (l Link) Encap() string {
	return (&nl.IfInfomsg{IfInfomsg: unix.IfInfomsg{Type: l.Type}}).EncapType()
}

// Named is what the kernel answers about a name: the link, or why there is
// none.
type Named struct {
	Link Link
	Err  error
}

// LinkByName returns the link with a name or an alternative name. ENODEV means
// that there is none.
func (c *Conn) LinkByName(ctx context.Context, name string) (Link, error) {
	n := c.LinksByName(ctx, name)[0]
	return n.Link, n.Err
}

// LinksByName returns what LinkByName returns for each name. It sends one
// message to the socket for every 32 names. The kernel looks up both kinds of
// names in either attribute (rtnl_dev_get), but IFLA_IFNAME holds no more than
// 15 bytes.
func (c *Conn) LinksByName(ctx context.Context, names ...string) []Named {
	out := make([]Named, 0, len(names))
	for part := range slices.Chunk(names, maxAnswers) {
		var reqs []*nl.NetlinkRequest
		for _, name := range part {
			attr := unix.IFLA_IFNAME
			if len(name) >= unix.IFNAMSIZ {
				attr = unix.IFLA_ALT_IFNAME
			}
			reqs = append(reqs, linkRequest(0, text(attr, name)))
		}
		for _, r := range c.exchange(ctx, reqs) {
			b, err := answer(r)
			n := Named{Err: err}
			if err == nil {
				n.Link = parseLink(b)
			}
			out = append(out, n)
		}
	}
	return out
}

// LinkByIndex returns the link with an index. ENODEV means that there is none.
func (c *Conn) LinkByIndex(ctx context.Context, index int32) (Link, error) {
	b, err := c.get(ctx, linkRequest(index))
	if err != nil {
		return Link{}, err
	}
	return parseLink(b), nil
}

// Links returns all links of the namespace.
func (c *Conn) Links(ctx context.Context) ([]Link, error) {
	rows, err := c.dump(ctx, linkRequest(0))
	if err != nil {
		return nil, err
	}
	out := make([]Link, 0, len(rows))
	for _, b := range rows {
		out = append(out, parseLink(b))
	}
	return out, nil
}

// skipStats is RTEXT_FILTER_SKIP_STATS.
const skipStats = 1 << 3

// linkRequest asks for no statistics: they are most of an answer. The order of the attributes
// is that of the requests in recordings.
func linkRequest(index int32, by ...*nl.RtAttr) *nl.NetlinkRequest {
	return request(unix.RTM_GETLINK, 0, linkHeader(index), append([]*nl.RtAttr{number(unix.IFLA_EXT_MASK, skipStats)}, by...)...)
}

func parseLink(b []byte) Link {
	msg := nl.DeserializeIfInfomsg(b)
	l := Link{Index: msg.Index, Flags: msg.Flags, Type: msg.Type, Lower: Lower{NSID: NoNSID}}
	for typ, v := range nlsock.Attributes(b[msg.Len():]) {
		switch typ {
		case unix.IFLA_IFNAME:
			l.Name = nlsock.Text(v)
		case unix.IFLA_PHYS_PORT_NAME:
			l.PhysPort = nlsock.Text(v)
		case unix.IFLA_IFALIAS:
			l.Alias = nlsock.Text(v)
		case unix.IFLA_ADDRESS:
			l.Address = v
		case unix.IFLA_MTU:
			l.MTU = int(nlsock.Number(v))
		case unix.IFLA_GROUP:
			l.Group = nlsock.Number(v)
		case unix.IFLA_MASTER:
			l.Master = int32(nlsock.Number(v))
		case unix.IFLA_LINK:
			l.Lower.Index = int32(nlsock.Number(v))
		case unix.IFLA_LINK_NETNSID:
			l.Lower.NSID = int32(nlsock.Number(v))
		case unix.IFLA_PARENT_DEV_NAME:
			l.Dev = nlsock.Text(v)
		case unix.IFLA_PARENT_DEV_BUS_NAME:
			l.Bus = nlsock.Text(v)
		case unix.IFLA_LINKINFO:
			l.parseInfo(v)
		case unix.IFLA_PROP_LIST:
			for _, name := range nlsock.Attributes(v) {
				l.AltNames = append(l.AltNames, nlsock.Text(name))
			}
		}
	}
	return l
}

func (l *Link) parseInfo(b []byte) {
	var data []byte
	for typ, v := range nlsock.Attributes(b) {
		switch typ {
		case unix.IFLA_INFO_KIND:
			l.Kind = nlsock.Text(v)
		case unix.IFLA_INFO_SLAVE_KIND:
			l.SlaveKind = nlsock.Text(v)
		case unix.IFLA_INFO_DATA:
			data = v
		}
	}
	l.parseData(data)
}

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
			l.Mode = modeName(l.Kind, nlsock.Number(v))
		case l.Kind == ipvlanKind && typ == nl.IFLA_IPVLAN_MODE && len(v) >= 2:
			l.Mode = modeName(l.Kind, uint32(binary.NativeEndian.Uint16(v)))
		}
	}
	if protocol != unix.ETH_P_8021Q {
		l.VLAN = 0
	}
}

// mode is a mode of a macvlan or an ipvlan, with its number (MACVLAN_MODE_*, IPVLAN_MODE_*).
type mode struct {
	kind, name string
	number     uint32
}

func modes() [8]mode {
	return [...]mode{
		{macvlanKind, "private", nl.MACVLAN_MODE_PRIVATE},
		{macvlanKind, "vepa", nl.MACVLAN_MODE_VEPA},
		{macvlanKind, "bridge", nl.MACVLAN_MODE_BRIDGE},
		{macvlanKind, "passthru", nl.MACVLAN_MODE_PASSTHRU},
		{macvlanKind, "source", nl.MACVLAN_MODE_SOURCE},
		{ipvlanKind, "l2", 0},
		{ipvlanKind, "l3", 1},
		{ipvlanKind, "l3s", 2},
	}
}

// modeNumber returns 0 for a name that is no mode: the kernel refuses it for a macvlan.
func modeNumber(kind, name string) uint32 {
	for _, m := range modes() {
		if m.kind == kind && m.name == name {
			return m.number
		}
	}
	return 0
}

func modeName(kind string, number uint32) string {
	for _, m := range modes() {
		if m.kind == kind && m.number == number {
			return m.name
		}
	}
	return fmt.Sprint(number)
}

// VF is what the physical function (PF) of a NIC lets a virtual function (VF) do.
type VF struct {
	Number uint32 // of the VF, as ip link prints it
	// SpoofCheck says that the NIC drops frames that the VF sends with another MAC than
	// its own. Untrusted says that the PF does not trust the VF. Both are false if the
	// driver does not know the setting.
	SpoofCheck, Untrusted bool
}

// VFs returns the VFs of a PF. It returns none for a link that is no PF. ENODEV means
// that there is no such link.
func (c *Conn) VFs(ctx context.Context, pf string) ([]VF, error) {
	b, err := c.get(ctx, request(unix.RTM_GETLINK, 0, linkHeader(0),
		number(unix.IFLA_EXT_MASK, skipStats|nl.RTEXT_FILTER_VF), text(unix.IFLA_IFNAME, pf)))
	if err != nil {
		return nil, err
	}
	return parseVFs(b), nil
}

func parseVFs(b []byte) []VF {
	var out []VF
	msg := nl.DeserializeIfInfomsg(b)
	for typ, list := range nlsock.Attributes(b[msg.Len():]) {
		if typ != unix.IFLA_VFINFO_LIST {
			continue
		}
		for typ, info := range nlsock.Attributes(list) {
			if typ == nl.IFLA_VF_INFO {
				out = append(out, parseVF(info))
			}
		}
	}
	return out
}

// parseVF reads struct ifla_vf_spoofchk and struct ifla_vf_trust: the number of the VF,
// and a setting. The setting is -1 if the driver does not know it (rtnl_fill_vfinfo).
func parseVF(b []byte) VF {
	var vf VF
	for typ, v := range nlsock.Attributes(b) {
		if len(v) != 8 {
			continue
		}
		setting := binary.NativeEndian.Uint32(v[4:])
		switch typ {
		case nl.IFLA_VF_SPOOFCHK:
			vf.Number, vf.SpoofCheck = nlsock.Number(v), setting == 1
		case nl.IFLA_VF_TRUST:
			vf.Number, vf.Untrusted = nlsock.Number(v), setting == 0
		}
	}
	return vf
}
