// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func values() cmp.Option { return cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}) }

func u16(v uint16) []byte { return binary.NativeEndian.AppendUint16(nil, v) }
func u32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// TestWhatIsAddedIsReadAgain adds routes and rules with all that they can have, and removes them.
func TestWhatIsAddedIsReadAgain(t *testing.T) {
	t.Parallel()
	c := dialFresh(t)
	for _, err := range c.Batch(t.Context(), bridge("br0"), SetUp("br0", 1400), AddAddress(2, netip.MustParsePrefix("10.1.0.1/24"))) {
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err := c.LinkByName(t.Context(), "br0")
	if err != nil || l.Kind != "bridge" || l.Flags&unix.IFF_UP == 0 {
		t.Fatalf("got %+v, %v", l, err)
	}
	if err := c.Do(t.Context(), AddAddress(l.Index, netip.MustParsePrefix("10.1.0.1/24"))); err != nil && l.Index != 2 {
		t.Fatal(err)
	}
	routes := []Route{
		{
			Table: 300, Dst: netip.MustParsePrefix("10.2.0.0/16"), Via: netip.MustParseAddr("10.3.0.1"), Src: netip.MustParseAddr("10.1.0.1"),
			Index: l.Index, Metric: 7, MTU: 1300, AdvMSS: 1200, Protocol: 82, Type: unix.RTN_UNICAST, OnLink: true,
		},
		{Table: 300, Dst: netip.MustParsePrefix("10.2.0.0/16"), Index: l.Index, Metric: 8, Protocol: 82, Scope: unix.RT_SCOPE_LINK, Type: unix.RTN_UNICAST, TOS: 4},
	}
	for _, r := range routes {
		if err := c.Do(t.Context(), AddRoute(r)); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
	got, err := c.RoutesOf(t.Context(), unix.AF_INET, 300)
	slices.SortFunc(got, func(a, b Route) int { return int(a.Metric) - int(b.Metric) })
	if diff := cmp.Diff(routes, got, values()); diff != "" || err != nil {
		t.Errorf("%v (-added +read)\n%s", err, diff)
	}
	rules := []Rule{
		{From: netip.MustParsePrefix("10.4.0.0/16"), Table: 300, Priority: 5, Action: unix.FR_ACT_TO_TBL, Protocol: 82},
		{From: netip.MustParsePrefix("10.4.0.5/32"), Priority: 6, Action: unix.FR_ACT_UNREACHABLE, Protocol: 4},
	}
	before, err := c.Rules(t.Context(), unix.AF_INET)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		if err := c.Do(t.Context(), AddRule(r)); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
	after, err := c.Rules(t.Context(), unix.AF_INET)
	added := slices.DeleteFunc(after, func(r Rule) bool { return slices.Contains(before, r) })
	if diff := cmp.Diff(rules, added, values()); diff != "" || err != nil {
		t.Errorf("%v (-added +read)\n%s", err, diff)
	}
	for i := range routes { // what differs in one thing is another one
		route, rule := routes[i], rules[i]
		route.Protocol++
		rule.Protocol++
		if err := c.Do(t.Context(), DeleteRoute(route)); !errors.Is(err, unix.ESRCH) {
			t.Errorf("delete a route of another protocol: %v", err)
		}
		if err := c.Do(t.Context(), DeleteRule(rule)); !errors.Is(err, unix.ENOENT) {
			t.Errorf("delete a rule of another protocol: %v", err)
		}
		if err := c.Do(t.Context(), DeleteRoute(routes[i])); err != nil {
			t.Error(err)
		}
		if err := c.Do(t.Context(), DeleteRule(rules[i])); err != nil {
			t.Error(err)
		}
	}
	if left, err := c.RoutesOf(t.Context(), unix.AF_INET, 300); len(left) != 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestRowsOfLinks has links of kinds that not every kernel and no fresh namespace has.
func TestRowsOfLinks(t *testing.T) {
	t.Parallel()
	vlan := func(parts ...[]byte) []byte {
		return nested(unix.IFLA_LINKINFO, nested(unix.IFLA_INFO_DATA, parts...), nested(unix.IFLA_INFO_KIND, []byte("vlan\x00")))
	}
	of := func(kind string, data []byte) []byte {
		return nested(unix.IFLA_LINKINFO, nested(unix.IFLA_INFO_KIND, append([]byte(kind), make([]byte, 8-len(kind))...)), nested(unix.IFLA_INFO_DATA, data))
	}
	short := func(typ uint16, a, b byte) []byte { return append(nested(typ, []byte{a, b}), 0, 0) } // two bytes, and what fills the row
	id, tagged, stag := short(nl.IFLA_VLAN_ID, 7, 0), short(nl.IFLA_VLAN_PROTOCOL, 0x81, 0), short(nl.IFLA_VLAN_PROTOCOL, 0x88, 0xa8)
	lower := Lower{NSID: NoNSID}
	for name, tt := range map[string]struct {
		row  []byte
		want Link
	}{
		"the function of a NIC": {
			slices.Concat(nested(unix.IFLA_IFNAME, []byte("eth0\x00\x00\x00\x00")), nested(unix.IFLA_PHYS_PORT_NAME, []byte("p0\x00\x00")),
				nested(unix.IFLA_PARENT_DEV_NAME, []byte("0000:0b:00.0")), nested(unix.IFLA_PARENT_DEV_BUS_NAME, []byte("pci\x00"))),
			Link{Name: "eth0", PhysPort: "p0", Dev: "0000:0b:00.0", Bus: "pci", Lower: lower},
		},
		"a port of a bond": {
			slices.Concat(
				nested(unix.IFLA_IFNAME, []byte("eth0\x00\x00\x00\x00")), nested(unix.IFLA_IFALIAS, []byte("mine\x00\x00\x00\x00")), nested(unix.IFLA_ADDRESS, []byte{2, 0, 0, 0, 0, 5, 0, 0}),
				nested(unix.IFLA_MTU, u32(4200)), nested(unix.IFLA_GROUP, u32(9)), nested(unix.IFLA_MASTER, u32(6)), nested(unix.IFLA_LINK, u32(4)), nested(unix.IFLA_LINK_NETNSID, u32(3)),
				nested(unix.IFLA_PROP_LIST, nested(unix.IFLA_ALT_IFNAME, []byte("enp0\x00\x00\x00\x00")), nested(unix.IFLA_ALT_IFNAME, []byte("enx0\x00\x00\x00\x00"))),
				nested(unix.IFLA_LINKINFO, nested(unix.IFLA_INFO_KIND, []byte("veth\x00\x00\x00\x00")), nested(unix.IFLA_INFO_SLAVE_KIND, []byte("bond\x00\x00\x00\x00"))),
			),
			Link{
				Name: "eth0", Alias: "mine", Address: []byte{2, 0, 0, 0, 0, 5, 0, 0}, MTU: 4200, Group: 9, Master: 6, Lower: Lower{Index: 4, NSID: 3},
				AltNames: []string{"enp0", "enx0"}, Kind: "veth", SlaveKind: "bond",
			},
		},
		"a VLAN":              {vlan(id, tagged), Link{Kind: "vlan", VLAN: 7, Lower: lower}},
		"an outer VLAN":       {vlan(id, stag), Link{Kind: "vlan", Lower: lower}},
		"another of it":       {vlan(nested(nl.IFLA_VLAN_FLAGS, u32(1), u32(1))), Link{Kind: "vlan", Lower: lower}},
		"a VLAN with flags":   {vlan(id, nested(nl.IFLA_VLAN_FLAGS, u32(1), u32(1))), Link{Kind: "vlan", VLAN: 7, Lower: lower}},
		"flags of macvlan":    {of("macvlan", short(nl.IFLA_MACVLAN_FLAGS, 1, 0)), Link{Kind: "macvlan", Lower: lower}},
		"half a number":       {of("vlan", nested(nl.IFLA_VLAN_ID, []byte{7})), Link{Kind: "vlan", Lower: lower}},
		"half a protocol":     {of("vlan", slices.Concat(id, nested(nl.IFLA_VLAN_PROTOCOL, []byte{7}))), Link{Kind: "vlan", VLAN: 7, Lower: lower}},
		"a macvlan":           {of("macvlan", nested(nl.IFLA_MACVLAN_MODE, u32(nl.MACVLAN_MODE_PASSTHRU))), Link{Kind: "macvlan", Mode: "passthru", Lower: lower}},
		"an ipvlan":           {of("ipvlan", short(nl.IFLA_IPVLAN_MODE, 2, 0)), Link{Kind: "ipvlan", Mode: "l3s", Lower: lower}},
		"half a mode":         {of("ipvlan", nested(nl.IFLA_IPVLAN_MODE, []byte{1})), Link{Kind: "ipvlan", Lower: lower}},
		"flags of ipvlan":     {of("ipvlan", nested(nl.IFLA_IPVLAN_FLAG, u16(1), u16(0))), Link{Kind: "ipvlan", Lower: lower}},
		"a new mode":          {of("macvlan", nested(nl.IFLA_MACVLAN_MODE, u32(64))), Link{Kind: "macvlan", Mode: "64", Lower: lower}},
		"a number of no VLAN": {of("bridge", id), Link{Kind: "bridge", Lower: lower}},
	} {
		if diff := cmp.Diff(tt.want, parseLink(append(make([]byte, unix.SizeofIfInfomsg), tt.row...))); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

// TestRowsOfRoutesAndRules has what is none of ours: it is never equal to one of ours.
func TestRowsOfRoutesAndRules(t *testing.T) {
	t.Parallel()
	all := netip.MustParsePrefix("0.0.0.0/0")
	head := make([]byte, unix.SizeofRtMsg)
	head[0] = unix.AF_INET
	for _, typ := range []uint16{unix.RTA_ENCAP, unix.RTA_VIA, unix.RTA_FLOW, nhID} {
		if diff := cmp.Diff(Route{Dst: all, Odd: true}, parseRoute(slices.Concat(head, nested(typ, u32(1)))), values()); diff != "" {
			t.Errorf("attribute %d of a route (-want +got)\n%s", typ, diff)
		}
	}
	for typ, want := range map[uint16]Rule{
		unix.FRA_GOTO:               {From: all, Goto: 9, Odd: true},
		unix.FRA_FLOW:               {From: all, Odd: true},
		unix.FRA_SUPPRESS_PREFIXLEN: {From: all, Odd: true},
		unix.FRA_PAD:                {From: all},
		unix.FRA_FWMARK:             {From: all, Narrow: true},
		250:                         {From: all, Narrow: true},
		unix.FRA_TABLE:              {From: all, Table: 9},
	} {
		if diff := cmp.Diff(want, parseRule(slices.Concat(head, nested(typ, u32(9)))), values()); diff != "" {
			t.Errorf("attribute %d of a rule (-want +got)\n%s", typ, diff)
		}
	}
}
