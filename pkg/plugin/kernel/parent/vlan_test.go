// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package parent

import (
	"testing"

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
		l := rtnl.Link{Name: name, Kind: kind, VLAN: id, Lower: rtnl.Lower{Index: lower, NSID: rtnl.NoNSID}, Type: unix.ARPHRD_ETHER, MTU: 4200, Flags: up, Alias: plan.VLANMark}
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
		tt.beside.Index = int32(len(h))
		h = append(h, tt.beside)
		req := rails(1, conf.Parent{IfNames: []string{"zz*"}}, conf.ByPCI) // its VLANs match too
		req.VLAN = 120
		l, err := selectOne(t.Context(), Place{h, nil, noRDMA, sys}, req)
		if tt.hint != "" {
			wantError(t, err, cnierr.BadParent, tt.hint)
			continue
		}
		want := rtnl.Link{Name: "zz.120"}
		if tt.is {
			want = tt.beside
		}
		if err != nil || string(l.Name) != want.Name || l.Index != want.Index || l.VLAN == nil || l.VLAN.Foreign != tt.foreign || l.VLAN.NIC != "zz" {
			t.Errorf("%s: got %+v, %+v, %v, want %s with the index %d", name, l, l.VLAN, err, want.Name, want.Index)
		}
	}
}

func TestARailWithoutANICHasNoVLAN(t *testing.T) {
	t.Parallel()
	h, sys := railNode()
	req := conf.Request{VLAN: 120, Rails: []conf.Rail{{Parent: conf.Parent{Name: "nosuch"}}, {Parent: conf.Parent{Name: "zz"}}}}
	links, faults, err := Select(t.Context(), Place{h, nil, noRDMA, sys}, req)
	if err != nil || faults[1] != nil || links[1].Name != "zz.120" {
		t.Fatalf("got %+v, %v, %v", links, faults, err)
	}
	wantError(t, faults[0], cnierr.BadParent, "key master")
}
