// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// wide is a subnet without more.
func wide(s, gateway string) pool.Subnet {
	out := pool.Subnet{Prefix: prefix(s), Ranges: []netrange.Range{netrange.Of(prefix(s))}}
	if gateway != "" {
		out.Gateway = addr(gateway)
	}
	return out
}

// pooled is what an ipam of our type means, without subnets.
func pooled() conf.IPAM {
	return conf.IPAM{Type: conf.PoolType, Pool: "rails", Quarantine: 2 * time.Minute}
}

// railsOf returns the request of a configuration with n rails. Each rail
// differs from the others by its number and by what set changes.
func railsOf(ipam conf.IPAM, n int, set func(r *conf.Rail)) conf.Request {
	whole := defaults()
	whole.Network, whole.IPAM, whole.MinRails, whole.Rails = "rails", ipam, n, nil
	for i := range n {
		r := conf.Rail{Number: i, IfName: "net1", Routing: whole.Routing}
		if i > 0 {
			r.IfName = conf.LinkName(fmt.Sprintf("net1-%d", i))
		}
		set(&r)
		whole.Rails = append(whole.Rails, r)
	}
	return whole
}

func mustParse(t *testing.T, in conf.Input) conf.Request {
	t.Helper()
	r, err := conf.Parse(in)
	if err != nil {
		t.Fatalf("%s: %v", in.Stdin, err)
	}
	return r
}

func TestListOfRailsIsWhatItSays(t *testing.T) {
	t.Parallel()
	own := []conf.Parent{{Name: "ens1f0"}, {PCI: "0000:0b:00.0"}, {Name: "ens3f0"}}
	names := []conf.LinkName{"net1", "rdma1", "net1-2"}
	subnets := [][]pool.Subnet{
		{wide("10.0.0.0/24", "10.0.0.254")}, {wide("172.16.1.0/24", "172.16.1.254"), wide("fd00:1::/64", "")}, {wide("10.0.0.0/24", "10.0.0.254")},
	}
	want := railsOf(pooled(), 3, func(r *conf.Rail) {
		r.Parent, r.IfName, r.Subnets = own[r.Number], names[r.Number], subnets[r.Number]
		r.Routing.Table = 1000 + uint32(r.Number)
		if r.Number == 1 {
			r.OwnRouting, r.Routing = true, conf.Routing{Mode: conf.RoutingMain, Priority: 32000, DefaultRoute: true, Metric: 9}
		}
	})
	want.MinRails, want.MTU, want.LinkInContainer, want.Routing.Table = 2, 9000, true, 1000
	got := mustParse(t, railed(`"master": "", "mtu": 9000, "linkInContainer": true, "minRails": 2, "routing": {"table": 1000}, "rails": [
		{"master": "ens1f0"},
		{"master": {"pci": "0000:0B:00.0"}, "ifName": "rdma{rail}", "routing": {"mode": "main", "defaultRoute": true, "metric": 9},
			"subnets": [{"subnet": "172.16.{rail}.0/24", "gateway": "172.16.{rail}.254"}, {"subnet": "fd00:1::/64"}]},
		{"master": "ens3f0", "ifName": null, "subnets": null, "routing": null}
	], `+ofPool(`"subnets": [{"subnet": "10.0.0.0/24", "gateway": "10.0.0.254"}]`)))
	if d := diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestRuleOfRailsIsWhatItSays(t *testing.T) {
	t.Parallel()
	want := railsOf(pooled(), 8, func(r *conf.Rail) {
		s := wide(fmt.Sprintf("172.16.%d.0/24", r.Number+11), fmt.Sprintf("172.16.%d.254", r.Number+11))
		r.Subnets = []pool.Subnet{s}
	})
	want.Match = &conf.Match{Parent: conf.Parent{Vendors: []string{"15b3"}}, Count: 8, Order: conf.ByPCI}
	if d := diff(want, mustParse(t, railed(eight+`, `+ofPool(byRail)))); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}

	want = railsOf(conf.IPAM{}, 2, func(r *conf.Rail) { r.IfName = conf.LinkName(fmt.Sprintf("rail%d", 2*r.Number+1)) })
	want.Match = &conf.Match{Parent: conf.Parent{Subnet: prefix("10.0.0.0/8")}, Count: 2, Order: conf.ByRDMA}
	want.MinRails = 1
	got := mustParse(t, railed(`"minRails": 1, "rails": {"match": {"subnet": "10.0.0.0/8"}, "count": 2, "order": "rdma", "ifName": "rail{rail*2+1}"}`))
	if d := diff(want, got); d != "" {
		t.Errorf("without addresses (-want +got):\n%s", d)
	}
}

func TestPlaceholdersAreInAllStringsOfASubnet(t *testing.T) {
	t.Parallel()
	got := mustParse(t, railed(eight+`, `+ofPool(`"subnets": [{"subnet": "10.{rail*2}.{rail*16+3}.0/24", "gateway": "10.{rail*2}.{rail*16+3}.{rail+1}",
		"ranges": ["10.{rail*2}.{rail*16+3}.100-10.{rail*2}.{rail*16+3}.109"], "exclude": ["10.{rail*2}.{rail*16+3}.10{rail}"]}, {"subnet": "fd00:{rail+9}::/64"}]`)))
	want := []pool.Subnet{
		{Prefix: prefix("10.14.115.0/24"), Gateway: addr("10.14.115.8"), Ranges: []netrange.Range{span("10.14.115.100-10.14.115.109")}, Exclude: []netrange.Range{span("10.14.115.107")}},
		wide("fd00:16::/64", ""),
	}
	if d := diff(want, got.Rails[7].Subnets); d != "" {
		t.Errorf("rail 7 (-want +got):\n%s", d)
	}
}

func TestTablesOfRailsFollowEachOther(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][]uint32{
		`"subnets": [{"subnet": "10.0.{rail}.0/24"}]`:                                 {300, 301, 302},
		`"subnets": [{"subnet": "10.0.{rail}.0/24"}, {"subnet": "fd00:{rail}::/64"}]`: {300, 301, 302},
		`"subnets": [{"subnet": "10.0.{rail}.0/24"}, {"subnet": "10.1.{rail}.0/24"}]`: {300, 302, 304},
	} {
		r := mustParse(t, railed(rule(`"count": 3`)+`, "routing": {"table": 300}, `+ofPool(in)))
		var got []uint32
		for _, one := range r.Rails {
			got = append(got, one.Routing.Table)
		}
		if d := cmp.Diff(want, got); d != "" || r.Routing.Table != 300 {
			t.Errorf("%s: %d (-want +got):\n%s", in, r.Routing.Table, d)
		}
	}
	mustParse(t, railed(two+`, "routing": {"mode": "main", "table": 7}`)) // means nothing there
}

func TestRequestedAddressesGoToTheRailOfTheirSubnet(t *testing.T) {
	t.Parallel()
	const shared = `"subnets": [{"subnet": "10.0.0.0/24"}, {"subnet": "fd00:{rail}::/64"}]`
	for _, c := range []struct {
		subnets, ips, args string
		want               [][]netip.Addr
	}{
		{byRail, `"172.16.13.7", "172.16.11.5/24"`, "", [][]netip.Addr{{addr("172.16.11.5")}, nil, {addr("172.16.13.7")}}},
		{shared, `"10.0.0.5", "fd00:1::9", "10.0.0.3/24"`, "", [][]netip.Addr{{addr("10.0.0.5")}, {addr("10.0.0.3"), addr("fd00:1::9")}, nil}},
		{shared, `"10.0.0.5", "10.0.0.3"`, "IP=10.0.0.5,10.0.0.7/24", [][]netip.Addr{{addr("10.0.0.5")}, {addr("10.0.0.3")}, {addr("10.0.0.7")}}},
		{`"subnets": [{"subnet": "10.0.0.0/24", "exclude": ["10.0.0.{rail+1}"]}]`, `"10.0.0.1", "10.0.0.2"`, "", [][]netip.Addr{{addr("10.0.0.2")}, {addr("10.0.0.1")}, nil}},
	} {
		in := railed(rule(`"count": 3`) + `, ` + ofPool(c.subnets) + `, "runtimeConfig": {"ips": [` + c.ips + `]}`)
		in.Args = c.args
		r := mustParse(t, in)
		for i, one := range r.Rails {
			if d := diff(c.want[i], one.Requested); d != "" {
				t.Errorf("%s: rail %d (-want +got):\n%s", c.ips, i, d)
			}
		}
	}
}

func TestRailsHaveTheRoutesThatTheyCanHave(t *testing.T) {
	t.Parallel()
	r := mustParse(t, railed(`"rails": [
		{"master": "a", "subnets": [{"subnet": "10.0.1.0/24"}]},
		{"master": "b", "subnets": [{"subnet": "10.0.2.0/24"}, {"subnet": "fd00::/64"}]},
		{"master": "c", "subnets": [{"subnet": "10.0.2.0/24"}]}], `+
		ofPool(`"routes": [{"dst": "10.8.0.0/16"}, {"dst": "10.9.0.0/16", "gw": "10.0.2.7"}, {"dst": "fd01::/64"}]`)))
	any4, via, any6 := pool.Route{Dst: prefix("10.8.0.0/16")}, pool.Route{Dst: prefix("10.9.0.0/16"), Via: addr("10.0.2.7")}, pool.Route{Dst: prefix("fd01::/64")}
	want := [][]pool.Route{{any4}, {any4, via, any6}, {any4, via}}
	for i, one := range r.Rails {
		if d := diff(want[i], one.Routes); d != "" {
			t.Errorf("rail %d (-want +got):\n%s", i, d)
		}
	}
	if d := diff([]pool.Route{any4, via, any6}, r.IPAM.Routes); d != "" {
		t.Errorf("the whole (-want +got):\n%s", d)
	}
}

func TestSubnetsMayFollowFromElsewhere(t *testing.T) {
	t.Parallel()
	for members, set := range map[string]func(p *conf.IPAM){
		`"fromMaster": true, "gateway": "first"`: func(p *conf.IPAM) { p.FromMaster = &pool.FromMaster{Gateway: pool.FirstHost} },
		`"fromMaster": true, "gateway": "none"`:  func(p *conf.IPAM) { p.FromMaster = &pool.FromMaster{Gateway: pool.NoGateway} },
		`"fromMaster": true, "gateway": "last", "derive": {"base": 64, "perHost": 8}`: func(p *conf.IPAM) {
			p.FromMaster = &pool.FromMaster{Gateway: pool.LastHost, Derive: &pool.Derive{Base: 64, PerHost: 8}}
		},
		`"table": true`:                      func(p *conf.IPAM) { p.Table = true },
		`"table": true, "fromMaster": false`: func(p *conf.IPAM) { p.Table = true },
	} {
		ipam := pooled()
		set(&ipam)
		ipam.Requested = []netip.Addr{addr("10.0.0.9"), addr("10.0.0.5")}
		ipam.Routes = []pool.Route{{Dst: prefix("10.8.0.0/16"), Via: addr("10.0.0.1")}}
		const asked = `, "runtimeConfig": {"ips": ["10.0.0.9", "10.0.0.5/24", "10.0.0.9"]}`
		members = ofPool(members+`, "routes": [{"dst": "10.8.0.0/16", "gw": "10.0.0.1"}]`) + asked
		want := railsOf(ipam, 2, func(r *conf.Rail) { r.Parent.Name = conf.LinkName(fmt.Sprintf("ens%df0", r.Number+1)) })
		if d := diff(want, mustParse(t, railed(two+`, `+members))); d != "" {
			t.Errorf("%s, rails (-want +got):\n%s", members, d)
		}
		one := defaults()
		one.IPAM, one.IPAM.Pool = ipam, "rail1"
		if d := diff(one, mustParse(t, input(members))); d != "" {
			t.Errorf("%s, one NIC (-want +got):\n%s", members, d)
		}
	}
}

func TestRailsAdoptNothingAndStatusHasNoNames(t *testing.T) {
	t.Parallel()
	in := railed(`"mtu": 9000, ` + eight + `, "prevResult": ` + previous)
	in.Command = "ADD"
	if r := mustParse(t, in); r.Prev != nil || len(r.Rails) != 8 {
		t.Errorf("behind another plugin: adopts %v with %d rails", r.Prev, len(r.Rails))
	}
	in = conf.Input{Command: "STATUS", Stdin: in.Stdin}
	for _, one := range mustParse(t, in).Rails {
		if one.IfName != "" {
			t.Errorf("STATUS: rail %d is %q", one.Number, one.IfName)
		}
	}
}

func TestDelAndGCDoNotLookAtRails(t *testing.T) {
	t.Parallel()
	in := railed(`"rails": {"count": "many"}, "minRails": [], "cni.dev/valid-attachments": [], "ipam": {"type": "roce-ipam", "table": 7}`)
	if _, err := conf.ParseDel(in); err != nil {
		t.Error(err)
	}
	if _, err := conf.ParseGC(in); err != nil {
		t.Error(err)
	}
}
