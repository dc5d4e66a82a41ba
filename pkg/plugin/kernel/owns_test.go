// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"net/netip"
	"testing"
	"testing/fstest"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// TestOnlyOurLinksAreOurs has what tells a link: its kind, its mark, its MAC, and for an ipvlan its
// name, because all ipvlans of a NIC have one MAC.
func TestOnlyOurLinksAreOurs(t *testing.T) {
	t.Parallel()
	const mark = plan.MarkPrefix + "c1/net1"
	mac, other := conf.MAC{2, 0, 0, 0, 0, 5}, conf.MAC{2, 0, 0, 0, 0, 6}
	macvlan := child{op: plan.Child{Name: "net1", Mark: mark, Mode: conf.Bridge, MAC: mac}}
	ipvlan := child{op: plan.Child{Name: "net1", Mark: mark, Mode: conf.L2, MAC: mac}}
	lost := child{op: plan.Child{Name: "net1", Mark: mark}}
	pair := veth{op: plan.Veth{Name: "veth1", Mark: mark, MAC: mac}}
	lostPair := veth{op: plan.Veth{Name: "veth1", Mark: mark}}
	link := func(kind, name, alias string, mac conf.MAC) rtnl.Link {
		return rtnl.Link{Kind: kind, Name: name, Alias: alias, Address: mac[:]}
	}
	for name, c := range map[string]struct {
		owns func(rtnl.Link) bool
		link rtnl.Link
		want bool
	}{
		"the mark":                       {macvlan.owns, link("macvlan", "x", mark, other), true},
		"the MAC":                        {macvlan.owns, link("macvlan", "x", "", mac), true},
		"the MAC, an alias of a program": {macvlan.owns, link("macvlan", "net1", "theirs", mac), true},
		"the MAC, a mark of another":     {macvlan.owns, link("macvlan", "net1", plan.MarkPrefix+"c2/net1", mac), false},
		"the name alone":                 {macvlan.owns, link("macvlan", "net1", "", other), false},
		"another kind":                   {macvlan.owns, link("ipvlan", "net1", mark, mac), false},
		"an ipvlan with the mark":        {ipvlan.owns, link("ipvlan", "x", mark, mac), true},
		"an ipvlan with the name":        {ipvlan.owns, link("ipvlan", "net1", "", mac), true},
		"an ipvlan that was made aside":  {ipvlan.owns, link("ipvlan", ipvlan.nameAside(), "", mac), true},
		"another ipvlan of the NIC":      {ipvlan.owns, link("ipvlan", "net2", "", mac), false},
		"a lost record, a macvlan":       {lost.owns, link("macvlan", "x", mark, other), true},
		"a lost record, an ipvlan":       {lost.owns, link("ipvlan", "x", mark, other), true},
		"a lost record, a veth":          {lost.owns, link("veth", "x", mark, other), false},
		"a lost record, no MAC":          {lost.owns, link("macvlan", "net1", "", conf.MAC{}), false},
		"a pair":                         {pair.owns, link("veth", "x", mark, other), true},
		"a pair by its MAC":              {pair.owns, link("veth", "x", "theirs", mac), true},
		"a pair of another":              {pair.owns, link("veth", "veth1", plan.MarkPrefix+"c2", mac), false},
		"a pair by its name alone":       {pair.owns, link("veth", "veth1", "", other), false},
		"no pair":                        {pair.owns, link("macvlan", "veth1", mark, mac), false},
		"a lost record of a pair":        {lostPair.owns, link("veth", "veth1", "", conf.MAC{}), false},
		"a rail after the first":         {orphans{op: plan.Orphans{Link: "net1", Mark: mark}}.isRail, link("macvlan", "x", mark+"/7", mac), true},
		"an ipvlan of such a rail":       {orphans{op: plan.Orphans{Link: "net1", Mark: mark}}.isRail, link("ipvlan", "x", mark+"/1", mac), true},
		"the first rail":                 {orphans{op: plan.Orphans{Link: "net1", Mark: mark}}.isRail, link("macvlan", "net1", mark, mac), false},
		"no number of a rail":            {orphans{op: plan.Orphans{Link: "net1", Mark: mark}}.isRail, link("macvlan", "x", mark+"/x", mac), false},
		"a veth with the mark of a rail": {orphans{op: plan.Orphans{Link: "net1", Mark: mark}}.isRail, link("veth", "x", mark+"/7", mac), false},
		"a VLAN":                         {vlan{op: plan.VLAN{VLAN: conf.VLAN{ID: 7}}}.owns, rtnl.Link{Kind: "vlan", VLAN: 7, Alias: plan.VLANMark}, true},
		"another VLAN":                   {vlan{op: plan.VLAN{VLAN: conf.VLAN{ID: 7}}}.owns, rtnl.Link{Kind: "vlan", VLAN: 8, Alias: plan.VLANMark}, false},
		"a VLAN of the operator":         {vlan{op: plan.VLAN{VLAN: conf.VLAN{ID: 7}}}.owns, rtnl.Link{Kind: "vlan", VLAN: 7}, false},
		"no VLAN":                        {vlan{op: plan.VLAN{VLAN: conf.VLAN{ID: 7}}}.owns, rtnl.Link{Kind: "macvlan", VLAN: 7, Alias: plan.VLANMark}, false},
	} {
		if got := c.owns(c.link); got != c.want {
			t.Errorf("%s: ours %t", name, got)
		}
	}
	if a, b := macvlan.nameAside(), ipvlan.nameAside(); a != "rc020000000005" || len(b) != 14 || b[:2] != "rc" || b == a {
		t.Errorf("names that no other link has: %q and %q", a, b)
	}
	// The one with the name comes first, then the one with the mark, then any.
	all := []rtnl.Link{link("macvlan", "a", "", mac), link("macvlan", "b", mark, mac), link("macvlan", "net1", "", mac), link("veth", "v", mark, mac)}
	for n, want := range map[int]string{3: "net1", 2: "b", 1: "a"} {
		if got, ok := macvlan.among(all[:n]); got.Name != want || !ok {
			t.Errorf("of %d: got %q, %t, want %q", n, got.Name, ok, want)
		}
	}
	if got, ok := macvlan.among(all[3:]); ok {
		t.Errorf("got %+v", got)
	}
}

func TestASettingIsOneOfTheLink(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"net/ipv4/conf/net1/arp_ignore": true, "net/ipv6/neigh/net1/retrans_time_ms": true,
		"net/ipv4/conf/net2/arp_ignore": false, "net/ipv4/conf/all/arp_ignore": false, "net/ipv4/route/net1/x": false, "net/core/conf/net1/x": false, "kernel/ipv4/conf/net1/x": false,
		"net/ipv4/conf/net1": false, "net/ipv4/conf/net1/a/b": false, "net/ipv4/conf/net1/..": false, "net/ipv4/conf/net1/": false, "/net/ipv4/conf/net1": false,
	} {
		if got := ofLink("net1", path); got != want {
			t.Errorf("%s: %t", path, got)
		}
	}
	for _, link := range []conf.LinkName{"all", "default"} {
		if ofLink(link, "net/ipv4/conf/"+string(link)+"/arp_ignore") {
			t.Errorf("%s is a link", link)
		}
	}
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"1", "1", true},
		{"0x10", "16", true},
		{"1 2", "1\t2", true},
		{"fd00:0::1", "fd00::1", true},
		{"a", "a", true},
		{"1", "2", false},
		{"1 2", "1", false},
		{"fd00::1", "fd00::2", false},
		{"a", "b", false},
		{"1", "a", false},
		{"fd00::1", "1", false},
	} {
		if sameValue(c.a, c.b) != c.want || sameValue(c.b, c.a) != c.want {
			t.Errorf("%q and %q are the same: %t", c.a, c.b, !c.want)
		}
	}
}

func TestAnAdoptedLinkIsOfEthernet(t *testing.T) {
	t.Parallel()
	for typ, code := range map[uint16]cnierr.Code{unix.ARPHRD_ETHER: 0, unix.ARPHRD_INFINIBAND: cnierr.NoRDMA, unix.ARPHRD_LOOPBACK: cnierr.BadConfig, unix.ARPHRD_NONE: cnierr.BadConfig} {
		err := adoptable(rtnl.Link{Name: "net1", Type: typ})
		if (err == nil) != (code == 0) || err != nil && cnierr.CodeOf(err) != code {
			t.Errorf("type %d: %v, want code %d", typ, err, code)
		}
	}
	req := conf.Request{Prev: &conf.Prev{
		Result: &current.Result{Interfaces: []*current.Interface{{}, {Name: "net1", Mac: "02:00:00:00:00:05", Mtu: 4200}}}, Interface: 1, Device: "0000:0b:00.2",
	}, Rails: []conf.Rail{{IfName: "net1"}}}
	got, err := HostFacts(t.Context(), req, fstest.MapFS{})
	want := []plan.RailFacts{{Facts: plan.Facts{
		Adopted: &plan.Adopted{MAC: conf.MAC{2, 0, 0, 0, 0, 5}, MTU: 4200}, Parent: plan.Link{Name: "net1", Device: "0000:0b:00.2", InPod: true}, Pod: plan.PodFacts{IPv6: hasIPv6()},
	}}}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}
