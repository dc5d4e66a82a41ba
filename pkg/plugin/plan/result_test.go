// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// TestAnAddressOfNoInterfaceIsNotThatOfOurs has a plugin before roce give an address the index
// of an interface that it does not list. Behind it, the first of ours has the index 1.
func TestAnAddressOfNoInterfaceIsNotThatOfOurs(t *testing.T) {
	t.Parallel()
	for index, want := range map[int]bool{-1: false, 0: true, 1: false, 7: false} {
		ip := &current.IPConfig{Interface: &index, Address: net.IPNet{IP: net.IPv4(10, 0, 0, 1), Mask: net.CIDRMask(24, 32)}}
		req := conf.Request{Before: &current.Result{Interfaces: []*current.Interface{{Name: "eth0"}}, IPs: []*current.IPConfig{ip}}}
		got := plan.Plan{Interfaces: []plan.Interface{{Name: "net1"}}}.Result(req).IPs[0].Interface
		if (got != nil) != want || want && *got != index {
			t.Errorf("interface %d: got %v, want it kept: %v", index, got, want)
		}
		if ip.Interface == nil || req.Before.IPs[0] != ip {
			t.Error("the result of the plugin before was changed")
		}
	}
}

func TestARouteOfThePluginBeforeIsNamedIfItCannotBe(t *testing.T) {
	t.Parallel()
	route := &types.Route{Dst: net.IPNet{IP: net.IPv4(10, 1, 0, 0), Mask: net.CIDRMask(16, 32)}, GW: net.ParseIP("fd00::1")}
	_, err := plan.PreviousLease(conf.Prev{Result: &current.Result{Routes: []*types.Route{route}}})
	var fault *cnierr.Error
	if !errors.As(err, &fault) || fault.Hint != "correct the configuration of that plugin" || !strings.Contains(err.Error(), "route to 10.1.0.0/16") {
		t.Errorf("got %+v", err)
	}
}

var sameAddrs = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

// TestALeaseIsWhatItsResultSays: roce-ipam tells its lease as a result, and roce reads the
// results of other plugins.
func TestALeaseIsWhatItsResultSays(t *testing.T) {
	t.Parallel()
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	want := plan.Lease{
		Addresses: []plan.LeasedAddress{
			{Prefix: prefix("172.16.11.9/24"), Gateway: addr("172.16.11.254")}, {Prefix: prefix("fd00:11::9/64"), Gateway: addr("fd00:11::fffe")}, {Prefix: prefix("10.0.0.7/32")},
		},
		Routes: []pool.Route{
			{Dst: prefix("10.1.0.0/16"), Via: addr("172.16.11.1"), MTU: math.MaxInt32, AdvMSS: math.MaxInt32 - 1, Priority: math.MaxUint32, Table: new(math.MaxUint32), Scope: new(252)},
			{Dst: prefix("fd01::/48")},
			{Dst: prefix("10.2.0.0/16"), Table: new(1), Scope: new(254)},
		},
		DNS: types.DNS{Nameservers: []string{"10.0.0.53"}, Search: []string{"a.example"}},
	}
	b, err := json.Marshal(want.Result())
	if err != nil {
		t.Fatal(err)
	}
	got, err := plan.ReadLease(b, "1.1.0")
	if diff := cmp.Diff(want, got, sameAddrs); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestAResultThatNoPlanCanHaveIsRefused(t *testing.T) {
	t.Parallel()
	const address, route = `{"address": "172.16.11.9/24"}`, `{"dst": "10.1.2.3/16"`
	read := func(ips, routes string) (plan.Lease, error) {
		return plan.ReadLease(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "ips": [%s], "routes": [%s]}`, ips, routes), "1.1.0")
	}
	for _, c := range []struct{ ips, routes, says string }{
		{``, ``, "it has no address"},
		{`{}`, ``, `address "<nil>" is not a prefix`},
		{`null`, ``, `it printed "{\"cniVersion\": \"1.1.0\", \"ips\": [null]`},
		{address, `{}`, `route destination "<nil>" is not a prefix`},
		{address + `, {"address": "127.0.0.9/8"}`, ``, "address 127.0.0.9/8 is a loopback address"},
		{`{"address": "172.16.11.9/24", "gateway": "172.16.11.9"}`, ``, "address 172.16.11.9/24 is its own gateway"},
		{`{"address": "172.16.11.9/24", "gateway": "127.0.0.1"}`, ``, "127.0.0.1 cannot be the gateway of 172.16.11.9"},
		{`{"address": "172.16.11.9/24", "gateway": "224.0.0.1"}`, ``, "224.0.0.1 cannot be the gateway"},
		{`{"address": "172.16.11.9/24", "gateway": "fd00::1"}`, ``, "fd00::1 cannot be the gateway"},
		{address, route + `, "gw": "fd00::1"}`, "route to 10.1.2.3/16: fd00::1 cannot be the gateway"},
		{address, `{"dst": "10.9.0.0/16"}, ` + route + `, "mtu": 2147483648}`, "route to 10.1.0.0/16: mtu 2147483648 is not in 0 to 2147483647"},
		{address, route + `, "mtu": -1}`, "mtu -1 is not in"},
		{address, route + `, "advmss": 2147483648}`, "advmss 2147483648 is not in"},
		{address, route + `, "priority": 4294967296}`, "priority 4294967296 is not in 0 to 4294967295"},
		{address, route + `, "table": 4294967296}`, "table 4294967296 is not in 1 to 4294967295"},
		{address, route + `, "table": -1}`, "table -1 is not in"},
		{address, route + `, "table": 255}`, "table 255 is the kernel's table of local addresses"},
		{address, route + `, "scope": 255}`, "scope 255 is not in 0 to 254"},
		{address, route + `, "scope": -1}`, "scope -1 is not in"},
		{address, route + `, "scope": 253, "gw": "172.16.11.1"}`, "a route with a gateway cannot have scope 253"},
	} {
		if _, err := read(c.ips, c.routes); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s, %s: got %v, want %s", c.ips, c.routes, err, c.says)
		}
	}
	if _, err := plan.ReadLease([]byte(strings.Repeat("no result ", 100)), "1.1.0"); err == nil || !strings.Contains(err.Error(), "no result") || len(err.Error()) > 500 {
		t.Errorf("of a long text: got %v", err)
	}
	got, err := read(`{"address": "172.16.11.9/24", "gateway": "0.0.0.0"}`, route+`, "gw": "0.0.0.0", "table": 0}, {"dst": "10.3.0.0/16", "gw": "0.0.0.0", "scope": 254}`)
	want := plan.Lease{Addresses: []plan.LeasedAddress{{Prefix: netip.MustParsePrefix("172.16.11.9/24")}}, Routes: []pool.Route{
		{Dst: netip.MustParsePrefix("10.1.0.0/16"), Scope: new(253)}, {Dst: netip.MustParsePrefix("10.3.0.0/16"), Scope: new(254)},
	}}
	if diff := cmp.Diff(want, got, sameAddrs); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// TestAnAdoptedInterfaceHasItsOwnAddresses has addresses of two interfaces, and one of which
// the plugin does not say it.
func TestAnAdoptedInterfaceHasItsOwnAddresses(t *testing.T) {
	t.Parallel()
	ip := func(last byte, index *int) *current.IPConfig {
		return &current.IPConfig{Interface: index, Address: net.IPNet{IP: net.IPv4(10, 0, 0, last), Mask: net.CIDRMask(24, 32)}}
	}
	res := &current.Result{IPs: []*current.IPConfig{ip(1, new(0)), ip(2, new(1)), ip(3, nil)}}
	l, err := plan.PreviousLease(conf.Prev{Result: res, Interface: 1})
	if err != nil || len(l.Addresses) != 2 || l.Addresses[0].Prefix.String() != "10.0.0.2/24" || l.Addresses[1].Prefix.String() != "10.0.0.3/24" || len(res.IPs) != 3 {
		t.Errorf("got %v, %v", l.Addresses, err)
	}
}

// TestResultsHaveWhatThePluginsBeforeSaid, and leave their result as it is.
func TestResultsHaveWhatThePluginsBeforeSaid(t *testing.T) {
	t.Parallel()
	list := make([]*current.Interface, 1, 9)
	list[0] = &current.Interface{Name: "eth0"}
	routes := make([]*types.Route, 1, 9)
	routes[0] = &types.Route{Dst: net.IPNet{IP: net.IPv4(10, 1, 0, 0), Mask: net.CIDRMask(16, 32)}}
	before := &current.Result{CNIVersion: "0.4.0", Interfaces: list, Routes: routes, DNS: types.DNS{Domain: "d"}}
	p := plan.Plan{
		Interfaces: []plan.Interface{{Name: "net1", Addresses: []plan.LeasedAddress{{Prefix: netip.MustParsePrefix("10.2.0.9/16")}}}},
		Ops:        plan.InPod(plan.Route{Table: plan.MainTable, Dst: netip.MustParsePrefix("10.3.0.0/16"), Scope: 254}),
	}
	got := p.Result(conf.Request{CNIVersion: "1.1.0", Before: before})
	if len(got.Interfaces) != 2 || len(got.Routes) != 2 || *got.Routes[1].Scope != 254 || *got.IPs[0].Interface != 1 || got.DNS.Domain != "d" {
		t.Errorf("got %+v", got)
	}
	if list[:2][1] != nil || routes[:2][1] != nil || before.CNIVersion != "0.4.0" {
		t.Error("the result of the plugin before was changed")
	}
}
