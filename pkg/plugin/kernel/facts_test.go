// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

func TestHostFactsAreThoseOfAFreshPod(t *testing.T) {
	t.Parallel()
	node, _, k := machine(t)
	for i := range 3 {
		name := fmt.Sprint("rail", 9+i)
		node.NIC(name)
		node.IP(fmt.Sprintf("addr add 172.16.%d.3/24 dev %s", 9+i, name))
	}
	node.IP("link set rail10 down")
	node.IP("link set rail11 mtu 1400")
	rule := conf.Request{
		MTU: 1500, Rails: []conf.Rail{{IfName: "net1"}, {IfName: "net1-1"}, {IfName: "net1-2"}},
		Match: &conf.Match{Parent: conf.Parent{Subnet: netip.MustParsePrefix("172.16.0.0/16")}, Count: 3, Order: conf.ByPCI},
	}
	list := conf.Request{MTU: 1500, Rails: []conf.Rail{
		{Parent: conf.Parent{Name: "rail9"}}, {Parent: conf.Parent{Name: "rail10"}}, {Parent: conf.Parent{Name: "rail11"}},
	}}
	for name, req := range map[string]conf.Request{"rule": rule, "list": list} {
		inPod, err := k.Facts(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		onHost, err := kernel.HostFacts(t.Context(), req, fstest.MapFS{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range inPod {
			inPod[i].Pod.Netns = netns.ID{}
		}
		options := cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(plan.RailFacts{}, "Fault")}
		if diff := cmp.Diff(inPod, onHost, options); diff != "" {
			t.Errorf("%s (-Facts +HostFacts)\n%s", name, diff)
		}
		if got := onHost[0].Parent; got.Name != "rail9" || len(got.Addrs) != 1 || got.Addrs[0] != netip.MustParsePrefix("172.16.9.3/24") {
			t.Errorf("%s: parent of rail 0 is %+v", name, got)
		}
		for _, rails := range [][]plan.RailFacts{inPod, onHost} {
			if rails[0].Fault != nil {
				t.Errorf("%s: %v", name, rails[0].Fault)
			}
			wantCode(t, rails[1].Fault, cnierr.BadParent) // down
			wantCode(t, rails[2].Fault, cnierr.BadConfig) // the MTU
		}
	}
}

func TestHostFactsTakeAParentInsideThePodByItsName(t *testing.T) {
	t.Parallel()
	node, _, _ := machine(t)
	node.IP("addr add 10.2.0.1/24 dev " + nic)
	req := conf.Request{LinkInContainer: true, MTU: 4200, Rails: []conf.Rail{{Parent: conf.Parent{Name: "eth0"}}, {Number: 1}, {Number: 2, Parent: conf.Parent{Name: "eth1"}}}}
	facts, err := kernel.HostFacts(t.Context(), req, fstest.MapFS{})
	if err != nil || len(facts) != 3 {
		t.Fatalf("got %+v, %v", facts, err)
	}
	for i, f := range facts {
		if f.Parent.Name != req.Rails[i].Parent.Name || f.Parent.MTU != 4200 || !slices.Contains(f.HostAddrs, netip.MustParseAddr("10.2.0.1")) || (f.Fault != nil) != (i == 1) {
			t.Errorf("rail %d: got %+v, %v", i, f.Facts, f.Fault)
		}
	}
	wantCode(t, facts[1].Fault, cnierr.BadParent)
	req.MTU = 0
	if facts, err = kernel.HostFacts(t.Context(), req, fstest.MapFS{}); err != nil || facts[0].Parent.MTU != 1500 {
		t.Errorf("without MTU: got %+v, %v", facts, err)
	}
}

func TestANamespaceIsAskedByItsPath(t *testing.T) {
	t.Parallel()
	node, pod, k := machine(t)
	pod.IP("link add net1 type bridge")
	pod.IP("link set net1 up")
	has := func(path string) (bool, error) { return kernel.HasAddress(t.Context(), path, "net1") }
	for _, add := range []string{"", "addr add 169.254.0.1/16 dev net1 scope link", "addr add 10.9.0.5/24 dev net1"} {
		if add != "" {
			pod.IP(add)
		}
		if got, err := has(pod.Path); got != strings.Contains(add, "10.9") || err != nil {
			t.Errorf("after %q: %v, %v", add, got, err)
		}
	}
	if got, err := has(node.Path); got || err != nil {
		t.Errorf("a namespace without the interface: %v, %v", got, err)
	}
	_, err := has(pod.Path + ".gone")
	wantCode(t, err, cnierr.BadNetns)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = kernel.HasAddress(over, pod.Path, "net1")
	wantCode(t, err, cnierr.TryAgain)
	if id, err := kernel.NetnsID(pod.Path); id != k.ID() || err != nil {
		t.Errorf("got %v, %v, want %v", id, err, k.ID())
	}
	_, err = kernel.NetnsID(pod.Path + ".gone")
	wantCode(t, err, cnierr.BadNetns)
	for _, add := range []string{"10.3.0.1/24 dev " + nic, "10.2.0.1/24 dev " + nic, "10.2.0.1/25 dev " + nic, "10.2.0.1/32 dev lo"} {
		node.IP("addr add " + add)
	}
	got, err := kernel.HostAddrs(t.Context())
	if diff := cmp.Diff([]netip.Addr{netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("10.3.0.1"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	_, err = kernel.HostFacts(t.Context(), conf.Request{Rails: make([]conf.Rail, 9), Match: &conf.Match{Count: 9}}, fstest.MapFS{})
	wantCode(t, err, cnierr.BadParent)
	_, err = kernel.HostAddrs(over)
	wantCode(t, err, cnierr.TryAgain)
	for _, req := range []conf.Request{{Rails: []conf.Rail{{}}}, {LinkInContainer: true, Rails: []conf.Rail{{}}}} {
		_, err = kernel.HostFacts(over, req, fstest.MapFS{})
		wantCode(t, err, cnierr.TryAgain)
	}
}
