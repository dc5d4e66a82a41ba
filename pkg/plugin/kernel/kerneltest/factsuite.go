// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

func facts(t *testing.T, w opened) {
	w.HostIP(fmt.Sprintf("addr add 10.9.0.250/24 dev %s", w.NIC))
	req := conf.Request{Rails: []conf.Rail{{IfName: "net1", Parent: conf.Parent{Subnet: netip.MustParsePrefix("10.9.0.0/16")}}}}
	got, err := plan.Only(w.Facts(t.Context(), req))
	if err != nil {
		t.Fatal(err)
	}
	want := plan.PodFacts{Netns: w.ID(), IPv6: true}
	if diff := cmp.Diff(want, got.Pod, byValue()); diff != "" {
		t.Errorf("empty pod (-want +got):\n%s", diff)
	}
	if got.Parent.Name != w.NIC || got.Parent.MTU != 1500 || got.Parent.MAC.IsZero() || got.Node != "" {
		t.Errorf("parent and node: %+v", got)
	}
	if diff := cmp.Diff([]netip.Prefix{netip.MustParsePrefix("10.9.0.250/24")}, got.Parent.Addrs, byValue()); diff != "" {
		t.Errorf("the parent's own addresses (-want +got):\n%s", diff)
	}
	if !slices.Contains(got.HostAddrs, netip.MustParseAddr("10.9.0.250")) {
		t.Errorf("addresses of the host: %v", got.HostAddrs)
	}

	w.foreign()
	w.IP("route add default via 10.8.0.1 dev eth0 metric 7")
	w.IP("route add 10.7.0.0/24 via 10.8.0.1 dev eth0 table 500")
	w.IP("rule add from 10.8.0.0/24 lookup 600 priority 100 protocol 4")
	req.Rails = []conf.Rail{{IfName: "eth0", Parent: conf.Parent{Name: w.NIC}}}
	if got, err = plan.Only(w.Facts(t.Context(), req)); err != nil {
		t.Fatal(err)
	}
	want.Taken, want.Tables = true, []uint32{500, 600}
	want.Rules = []plan.ForeignRule{{From: netip.MustParsePrefix("10.8.0.0/24"), Table: 600, Priority: 100, Protocol: 4}}
	want.Defaults = []plan.DefaultRoute{{Link: "eth0", Via: netip.MustParseAddr("10.8.0.1"), Metric: 7}}
	if diff := cmp.Diff(want, got.Pod, byValue()); diff != "" {
		t.Errorf("pod with an interface (-want +got):\n%s", diff)
	}
}

func byValue() cmp.Option {
	return cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}
}

func badParents(t *testing.T, w opened) {
	fails := func(req conf.Request, code cnierr.Code) {
		t.Helper()
		_, err := plan.Only(w.Facts(t.Context(), req))
		wantCode(t, err, code)
	}
	named := conf.Request{Rails: []conf.Rail{{IfName: "net1", Parent: conf.Parent{Name: w.NIC}}}}
	fails(conf.Request{Rails: []conf.Rail{{Parent: conf.Parent{Name: "nosuch0"}}}}, cnierr.BadParent)
	fails(conf.Request{Rails: []conf.Rail{{Parent: conf.Parent{Name: "lo"}}}}, cnierr.BadParent)
	fails(conf.Request{Rails: []conf.Rail{{Parent: conf.Parent{RDMA: "mlx5_0"}}}}, cnierr.NoRDMA)
	fails(conf.Request{Rails: []conf.Rail{{}}}, cnierr.BadParent) // no default route
	fails(conf.Request{MTU: 1501, Rails: named.Rails}, cnierr.BadConfig)
	fails(conf.Request{LinkInContainer: true, Rails: named.Rails}, cnierr.BadParent)
	w.HostIP(fmt.Sprintf("link set %s down", w.NIC))
	fails(named, cnierr.BadParent)
}

// railFacts asks about three rails: the second has no NIC, the third has no
// free name.
func railFacts(t *testing.T, w opened) {
	w.HostIP(fmt.Sprintf("addr add 10.9.0.250/24 dev %s", w.NIC))
	w.HostIP(fmt.Sprintf("addr add fd00:9::250/64 dev %s", w.NIC))
	w.foreign()
	req := conf.Request{Rails: []conf.Rail{
		{IfName: "net1", Parent: conf.Parent{Name: w.NIC}},
		{IfName: "net1-1", Number: 1, Parent: conf.Parent{Name: "nosuch0"}},
		{IfName: "eth0", Number: 2, Parent: conf.Parent{IfNames: []string{string(w.NIC)}}},
	}}
	got, err := w.Facts(t.Context(), req)
	if err != nil || len(got) != 3 {
		t.Fatalf("%d facts, %v, want those of three rails", len(got), err)
	}
	for i, f := range got {
		if i == 1 {
			wantCode(t, got[i].Fault, cnierr.BadParent)
			continue
		}
		if got[i].Fault != nil || f.Parent.Name != w.NIC || len(f.Parent.Addrs) != 2 || !f.Parent.Addrs[0].Addr().Is4() {
			t.Errorf("rail %d: %+v, %v", i, f.Parent, got[i].Fault)
		}
		if f.Pod.Netns != w.ID() || f.Pod.Taken != (i == 2) || !slices.Contains(f.HostAddrs, netip.MustParseAddr("10.9.0.250")) {
			t.Errorf("rail %d: %+v, addresses of the host %v", i, f.Pod, f.HostAddrs)
		}
	}
}

// matchedFacts selects NICs by a match. NICs that are down are also found, in
// their position.
func matchedFacts(t *testing.T, w opened) {
	for _, name := range []string{"rail10", "rail2"} {
		w.HostIP(fmt.Sprintf("link add %s type bridge", name))
	}
	match := conf.Match{Parent: conf.Parent{IfNames: []string{"rail*", string(w.NIC)}}, Count: 3, Order: conf.ByPCI}
	req := conf.Request{Rails: make([]conf.Rail, 3), Match: &match}
	got, err := w.Facts(t.Context(), req)
	if err != nil || len(got) != 3 {
		t.Fatalf("%d facts, %v, want those of three rails", len(got), err)
	}
	if got[0].Parent.Name != w.NIC || got[0].Fault != nil {
		t.Errorf("rail 0: got %q, %v", got[0].Parent.Name, got[0].Fault)
	}
	for i, name := range map[int]string{1: `"rail2"`, 2: `"rail10"`} {
		wantCode(t, got[i].Fault, cnierr.BadParent)
		if got[i].Fault != nil && !strings.Contains(got[i].Fault.Error(), name) {
			t.Errorf("rail %d: got %v, want %s, which is down", i, got[i].Fault, name)
		}
	}
	match.Count = 2
	req.Rails = make([]conf.Rail, 2)
	_, err = w.Facts(t.Context(), req)
	wantCode(t, err, cnierr.BadParent)
	if want := fmt.Sprintf("want 2 NICs, got 3: %s, rail2, rail10", w.NIC); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}
