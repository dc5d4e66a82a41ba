// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

const fromNIC = `"fromMaster": true, "gateway": "last"`

// Subnets that are known later make the request that Parse would have made of
// the same subnets.
func TestSubnetsThatAreKnownLaterAreAsGoodAsThoseOfTheConfiguration(t *testing.T) {
	t.Parallel()
	const rest = `, "routing": {"table": 300}, "runtimeConfig": {"ips": ["10.1.0.7", "10.0.2.9"]}, `
	const routes = `, "routes": [{"dst": "10.8.0.0/16"}, {"dst": "10.9.0.0/16", "gw": "10.0.1.7"}]`
	three := rule(`"count": 3`)
	want := mustParse(t, railed(three+rest+ofPool(`"subnets": [{"subnet": "10.0.{rail}.0/24"}, {"subnet": "10.1.0.0/24"}]`+routes)))
	var perRail [][]pool.Subnet
	for _, one := range want.Rails {
		perRail = append(perRail, one.Subnets)
	}
	for source, set := range map[string]func(*conf.IPAM){
		fromNIC:           func(p *conf.IPAM) { p.FromMaster = &pool.FromMaster{Gateway: pool.LastHost} },
		`"table": true`:   func(p *conf.IPAM) { p.Table = true },
		`"railPool": "p"`: func(p *conf.IPAM) { p.RailPool, p.Pool = &pool.RailPool{Name: "p"}, "p" },
	} {
		later := mustParse(t, railed(three+rest+ofPool(source+routes)))
		before := fmt.Sprintf("%+v", later)
		got, err := later.WithSubnets(perRail)
		must(t, err)
		want := want
		set(&want.IPAM)
		if d := diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", source, d)
		}
		if after := fmt.Sprintf("%+v", later); before != after {
			t.Errorf("%s: the request itself has changed:\n%s\n%s", source, before, after)
		}
	}
}

func TestOneNICGetsItsSubnets(t *testing.T) {
	t.Parallel()
	const more = `, "routes": [{"dst": "10.9.0.0/16", "gw": "10.0.0.7"}]`
	r := mustParse(t, input(ofPool(fromNIC+more)+`, "runtimeConfig": {"ips": ["10.0.0.5/24"]}`))
	s := wide("10.0.0.0/24", "10.0.0.254")
	got, err := r.WithSubnets([][]pool.Subnet{{s}})
	must(t, err)
	one := &r.Rails[0]
	one.Subnets, one.Requested, one.Routes = []pool.Subnet{s}, r.IPAM.Requested, r.IPAM.Routes
	if d := diff(r, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestSkippedRailGetsNothing(t *testing.T) {
	t.Parallel()
	r := mustParse(t, railed(two+`, `+ofPool(`"table": true, "routes": [{"dst": "10.9.0.0/16"}]`)+`, "minRails": 1, "runtimeConfig": {"ips": ["10.0.0.5"]}`))
	got, err := r.WithSubnets([][]pool.Subnet{nil, {wide("10.0.0.0/24", "")}})
	must(t, err)
	if p := got.Rails[0]; p.Subnets != nil || p.Requested != nil || p.Routes != nil {
		t.Errorf("rail 0 has %+v", p)
	}
	if p := got.Rails[1]; len(p.Subnets) != 1 || len(p.Requested) != 1 || len(p.Routes) != 1 {
		t.Errorf("rail 1 has %+v", p)
	}
}

func TestFaultsOfSubnetsThatAreKnownLater(t *testing.T) {
	t.Parallel()
	a, b, c := wide("10.0.0.0/24", "10.0.0.254"), wide("10.0.1.0/24", ""), wide("10.0.0.0/16", "")
	list := func(own string) string { return `"rails": [{"master": "a"}, {"master": "b"` + own + `}]` }
	for _, x := range []struct {
		bad
		subnets [][]pool.Subnet
	}{
		{bad{`, "runtimeConfig": {"ips": ["10.9.0.1"]}`, cnierr.BadConfig, `"requested address": 10.9.0.1 is in none`, `ipam.subnets`}, [][]pool.Subnet{{a}, {b}}},
		{bad{`, "runtimeConfig": {"ips": ["10.0.0.254"]}`, cnierr.BadConfig, `10.0.0.254 is the gateway of 10.0.0.0/24`, `another`}, [][]pool.Subnet{{a}, {b}}},
		{bad{`, "runtimeConfig": {"ips": ["10.0.0.1", "10.0.0.2"]}`, cnierr.BadConfig, `10.0.0.2: each rail in 10.0.0.0/24 already has`, `each subnet and rail`}, [][]pool.Subnet{{a}, {b}}},
		{bad{``, cnierr.BadConfig, `"ipam.fromMaster": 10.0.0.0/16 of rail 1 overlaps 10.0.0.0/24 of rail 0`, `do not overlap`}, [][]pool.Subnet{{a}, {c}}},
		{bad{``, cnierr.BadConfig, `"ipam.fromMaster": 10.0.1.0/24 of rail 1 overlaps 10.0.1.0/24 of rail 1`, `do not overlap`}, [][]pool.Subnet{{a}, {b, b}}},
		{bad{`, "mtu": 60`, cnierr.BadConfig, `"mtu": 60 is less than 68`, ``}, [][]pool.Subnet{{a}, {b}}},
		{bad{`, "routing": {"table": 251}`, cnierr.BadConfig, `"routing.table": rail 1 needs the tables 253 to 254`, `1 to 252`}, [][]pool.Subnet{{a, b}, {a, b}}},
	} {
		r := mustParse(t, railed(list("")+`, `+ofPool(fromNIC)+x.in))
		_, err := r.WithSubnets(x.subnets)
		x.check(t, err)
	}
	r := mustParse(t, railed(list(`, "routing": {"table": 7, "defaultRoute": true}`)+`, `+ofPool(fromNIC+`, "routes": [{"dst": "10.9.0.0/16", "gw": "10.7.0.1"}]`)))
	_, err := r.WithSubnets([][]pool.Subnet{{a}, {b}})
	if d := cmp.Diff([]string{"ipam.routes[0].gw", "rails[1].routing.defaultRoute"}, subjects(t, err)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestNumberOfRailsMustBeThatOfTheSubnets(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config  string
		subnets [][]pool.Subnet
		want    string
	}{
		{eight + `, ` + ofPool(`"table": true`), make([][]pool.Subnet, 4), `ipam.table has subnets for 4 rails, the configuration has 8`},
		{`"master": "a", ` + ofPool(`"table": true`), make([][]pool.Subnet, 2), `ipam.table has subnets for 2 rails, the configuration has 1`},
		{two + `, ` + ofPool(fromNIC), make([][]pool.Subnet, 2), `ipam.fromMaster has no subnet`},
		{two + `, ` + ofPool(fromNIC), nil, `ipam.fromMaster has subnets for 0 rails`},
	} {
		_, err := mustParse(t, railed(c.config)).WithSubnets(c.subnets)
		if cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.config, err, c.want)
		}
	}
}

func TestTableHasTheSubnetsOfANode(t *testing.T) {
	t.Parallel()
	const file = `{"nodes": {"broken": 7, "gpu-01": [
		{"subnet": "172.16.0.0/31", "gateway": "172.16.0.0"},
		[{"subnet": "172.16.0.2/31", "gateway": "172.16.0.2"}, {"subnet": "fd00::2/127"}]
	]}}`
	got, err := pool.ParseTable("/etc/rails.json", []byte(file), "gpu-01")
	must(t, err)
	if most, err := pool.ParseTable("/etc/rails.json", []byte(tableOf(pool.MaxRails)), "n"); err != nil || len(most) != pool.MaxRails {
		t.Errorf("got %d rails, %v, want %d", len(most), err, pool.MaxRails)
	}
	want := [][]pool.Subnet{{wide("172.16.0.0/31", "172.16.0.0")}, {wide("172.16.0.2/31", "172.16.0.2"), wide("fd00::2/127", "")}}
	if d := diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// tableOf returns a table in which the node n has this number of rails.
func tableOf(rails int) string {
	return `{"nodes": {"n": [{"subnet": "10.0.0.0/31"}` + strings.Repeat(`, {"subnet": "10.0.0.0/31"}`, rails-1) + `]}}`
}

func TestFaultsOfATable(t *testing.T) {
	t.Parallel()
	many := make([]string, 0, 14)
	for i := range 14 {
		many = append(many, fmt.Sprintf(`"gpu-%02d": []`, 20-i))
	}
	const at = `read table of rails "/etc/rails.json": `
	for _, b := range []bad{
		{`{`, 0, at + `"/etc/rails.json": line 1, column 1: unexpected end`, ``},
		{`[]`, 0, at + `"/etc/rails.json": want an object, got a list`, ``},
		{`{}`, 0, at + `"nodes": missing`, `write {"nodes"`},
		{`{"nodes": {"n": [{"subnet": "10.0.0.0/31"}]}, "node": {}}`, 0, `"node": unknown key`, `did you mean "nodes"?`},
		{`{"nodes": {}}`, 0, `"nodes": the table has no node "n", only none`, `add the node`},
		{`{"nodes": {"n": null}}`, 0, `"nodes": the table has no node "n", only none`, `add the node`},
		{`{"nodes": {"m": [], "a": []}}`, 0, `"nodes": the table has no node "n", only a, m`, `add the node`},
		{`{"nodes": {` + strings.Join(many, ", ") + `}}`, 0, `only gpu-07, gpu-08, gpu-09, gpu-10, gpu-11, gpu-12, gpu-13, gpu-14, gpu-15, gpu-16, gpu-17, gpu-18, and 2 more`, `add the node`},
		{`{"nodes": {"n": {"subnet": "10.0.0.0/31"}}}`, 0, `"nodes.n": want a list, got an object`, ``},
		{`{"nodes": {"n": []}}`, 0, `"nodes.n": want 1 to 32 rails, got 0`, `one entry for each rail`},
		{tableOf(pool.MaxRails + 1), 0, `"nodes.n": want 1 to 32 rails, got 33`, `one entry for each rail`},
		{`{"nodes": {"n": [{"subnet": "10.0.0.0/31"}, {"subnet": "10.0.0.3/31"}]}}`, 0, `"nodes.n[1].subnet": 10.0.0.3/31 has host bits set`, `did you mean "10.0.0.2/31"?`},
		{`{"nodes": {"n": [{"subnet": "10.0.0.0/31", "gw": "10.0.0.0"}]}}`, 0, `"nodes.n[0].gw": unknown key`, ``},
		{`{"nodes": {"n": [{"subnet": "10.0.{rail}.0/31"}]}}`, 0, `"nodes.n[0].subnet": "10.0.{rail}.0/31" is not a prefix`, ``},
		{`{"nodes": {"n": [[]]}}`, 0, `"nodes.n[0]": no subnet`, `write "subnets"`},
		{`{"nodes": {"n": [[{"subnet": "10.0.0.0/31"}, {"subnet": "10.0.0.0/30"}]]}}`, 0, `"nodes.n[0][1]": 10.0.0.0/30 overlaps 10.0.0.0/31`, `keep one`},
	} {
		_, err := pool.ParseTable("/etc/rails.json", []byte(b.in), "n")
		e := cnierr.CNI("roce", err)
		if e == nil || e.Code != uint(cnierr.BadConfig) {
			t.Errorf("%s: got %v", b.in, e)
			continue
		}
		if !strings.Contains(e.Msg, b.msg) || !strings.Contains(e.Details, b.hint) || !strings.Contains(e.Msg, at) || strings.Contains(e.Msg, ";") {
			t.Errorf("%s:\n got %s, %s\nwant %s, %s", b.in, e.Msg, e.Details, b.msg, b.hint)
		}
	}
}
