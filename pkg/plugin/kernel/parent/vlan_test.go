// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package parent

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// TestOnlyTheVLANOfTheNICIsUsed asks for VLAN 120 of the NIC zz, beside another link.
func TestOnlyTheVLANOfTheNICIsUsed(t *testing.T) {
	t.Parallel()
	const zz, far = 3, 4
	up := uint32(unix.IFF_UP | unix.IFF_LOWER_UP)
	link := func(name, kind string, id int, lower int32, change func(*rtnl.Link)) rtnl.Link {
		l := rtnl.Link{Name: name, Kind: kind, VLAN: id, Lower: rtnl.Lower{Index: lower, NSID: rtnl.NoNSID}, Type: unix.ARPHRD_ETHER, MTU: 1500, Address: []byte{2, 0, 0, 0, 1, 20}, Flags: up, Alias: plan.VLANMark}
		if change != nil {
			change(&l)
		}
		return l
	}
	unmarked := func(l *rtnl.Link) { l.Alias = "" }
	for name, tt := range map[string]struct {
		beside  rtnl.Link
		is      bool // the VLAN
		foreign bool
		hint    string // of the fault; "": none
	}{
		"that of roce":                        {beside: link("zz.120", "vlan", 120, zz, nil), is: true},
		"that of the operator":                {beside: link("zz.120", "vlan", 120, zz, unmarked), is: true, foreign: true},
		"that of the operator, another name":  {beside: link("storage", "vlan", 120, zz, unmarked), is: true, foreign: true},
		"that of roce, renamed":               {beside: link("storage", "vlan", 120, zz, nil), is: true, foreign: true},
		"another number":                      {beside: link("other", "vlan", 121, zz, nil)},
		"on another NIC":                      {beside: link("other", "vlan", 120, far, nil)},
		"on a link of another namespace":      {beside: link("other", "vlan", 120, zz, func(l *rtnl.Link) { l.Lower.NSID = 7 })},
		"no VLAN":                             {beside: link("other", "macvlan", 120, zz, nil)},
		"another link that has the name":      {beside: link("zz.120", "macvlan", 0, zz, unmarked), hint: "rename that link"},
		"a VLAN of another NIC with the name": {beside: link("zz.120", "vlan", 120, far, nil), hint: "rename that link"},
		"it is down":                          {beside: link("zz.120", "vlan", 120, zz, func(l *rtnl.Link) { l.Flags = 0 }), hint: "ip link set zz.120 up"},
	} {
		h, sys := railNode()
		h.linked("zz").Address = []byte{2, 0, 0, 0, 0, zz}
		tt.beside.Index = int32(len(h))
		addrs := []rtnl.Address{
			{Index: zz, Prefix: netip.MustParsePrefix("172.16.3.3/24")}, {Index: tt.beside.Index, Prefix: netip.MustParsePrefix("172.16.120.3/24")},
		}
		h = append(h, tt.beside)
		req := rails(1, conf.Parent{IfNames: []string{"zz*"}}, conf.ByPCI) // its VLANs match too
		req.VLAN = 120
		l, err := selectOne(t.Context(), Place{h, addrs, noRDMA, sys}, req)
		if tt.hint != "" {
			wantError(t, err, cnierr.BadParent, tt.hint)
			continue
		}
		on := &plan.OnVLAN{VLAN: conf.VLAN{ID: 120, NIC: "zz"}, Identity: plan.NIC{Index: zz, MAC: conf.MAC{2, 0, 0, 0, 0, zz}}, Foreign: tt.foreign}
		want := plan.Link{Name: "zz.120", MAC: on.Identity.MAC, MTU: 4200, Layers: [][]int32{{zz}}, VLAN: on}
		if tt.is {
			want = plan.Link{
				Name: conf.LinkName(tt.beside.Name), Index: 13, MAC: conf.MAC{2, 0, 0, 0, 1, 20}, MTU: 1500, Layers: [][]int32{{13}, {zz}}, VLAN: on,
				Addrs: []netip.Prefix{netip.MustParsePrefix("172.16.120.3/24")},
			}
		}
		if diff := cmp.Diff(want, l, cmpopts.EquateComparable(netip.Prefix{})); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got)\n%s", name, err, diff)
		}
	}
}

// TestEachRailHasItsOwnVLAN has a rail without a NIC, one with a VLAN that is down, one with a VLAN
// of a lower MTU than that of its NIC, and two that are found by the names that roce gives: then
// the links of the node are not listed.
func TestEachRailHasItsOwnVLAN(t *testing.T) {
	t.Parallel()
	h, sys := railNode()
	req := conf.Request{VLAN: 120, MTU: 4200}
	for _, name := range []conf.LinkName{"nosuch", "yy", "zz", "virt", "far"} {
		req.Rails = append(req.Rails, conf.Rail{Parent: conf.Parent{Name: name}})
	}
	for i, nic := range []int32{5, 3, 11, 4} {
		l := rtnl.Link{Name: h[nic].Name + ".120", Kind: "vlan", VLAN: 120, Index: int32(len(h)), Lower: rtnl.Lower{Index: nic, NSID: rtnl.NoNSID}, MTU: 4200}
		if i > 0 {
			l.Flags = unix.IFF_UP | unix.IFF_LOWER_UP
		}
		if i == 2 {
			l.MTU = 4199
		}
		h = append(h, l)
	}
	got, faults := selected(t, Place{silent{h}, nil, noRDMA, sys}, req)
	if diff := cmp.Diff([]string{"!", "!", "zz.120", "!", "far.120"}, got); diff != "" {
		t.Errorf("%v (-want +got)\n%s", faults, diff)
	}
	wantError(t, faults[0], cnierr.BadParent, "key master")
	wantError(t, faults[1], cnierr.BadParent, "ip link set yy.120 up")
	wantError(t, faults[3], cnierr.BadConfig, "ip link set virt.120 mtu 4200")
}
