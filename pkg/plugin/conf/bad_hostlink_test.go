// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

func TestFaultsOfHostLink(t *testing.T) {
	t.Parallel()
	link := func(routes string) string { return ofPool(one) + `, "hostLink": {"routes": ` + routes + `}` }
	for _, b := range []bad{
		{ofPool(one) + `, "hostLink": {}`, cnierr.BadConfig, `"hostLink.routes": missing`, `the CIDRs of the cluster's Services`},
		{ofPool(one) + `, "hostLink": {"routes": [], "route": []}`, cnierr.BadConfig, `"hostLink.route": unknown key`, `did you mean "routes"?`},
		{ofPool(one) + `, "hostlink": {}`, cnierr.BadConfig, `"hostlink": unknown key`, `did you mean "hostLink"?`},
		{ofPool(one) + `, "hostLink": true`, cnierr.Decode, `"hostLink": want an object, got true or false`, ``},
		{link(`"auto"`), cnierr.BadConfig, `"hostLink.routes": "auto" is not in a list`, `write {"routes": ["auto"]}`},
		{link(`["auto", "10.96.0.0/12", "auto"]`), cnierr.BadConfig, `"hostLink.routes[2]": "auto" appears twice`, `keep one`},
		{link(`["Auto"]`), cnierr.BadConfig, `"hostLink.routes[0]": "Auto" is not a prefix`, ``},
		{link(`["0.0.0.0/0"]`), cnierr.BadConfig, `"hostLink.routes[0]": 0.0.0.0/0 is the default route`, `through the gateway`},
		{link(`["::/0"]`), cnierr.BadConfig, `"hostLink.routes[0]": ::/0 is the default route`, `through the gateway`},
		{link(`["128.0.0.0/1"]`), cnierr.BadConfig, `"hostLink.routes[0]": 128.0.0.0/1 is wider than /8`, `only CIDRs of Services`},
		{link(`["10.96.0.0/12", "10.96.0.0/12"]`), cnierr.BadConfig, `"hostLink.routes[1]": 10.96.0.0/12 appears twice`, `keep one`},
		{link(`["fe80::/64"]`), cnierr.BadConfig, `"hostLink.routes[0]": fe80::/64 is neither`, `remove it`},
		{link(`["224.0.0.0/4"]`), cnierr.BadConfig, `"hostLink.routes[0]": 224.0.0.0/4 is neither`, `remove it`},
		{link(`["239.0.0.0/8"]`), cnierr.BadConfig, `"hostLink.routes[0]": 239.0.0.0/8 is neither`, `remove it`},
		{link(`["127.0.0.0/8"]`), cnierr.BadConfig, `"hostLink.routes[0]": 127.0.0.0/8 is neither`, `remove it`},
		{link(`["172.16.11.0/24"]`), cnierr.BadConfig, `"hostLink.routes": 172.16.11.0/24 lies in the subnet 172.16.11.0/24 of the pod`, `give only CIDRs of Services`},
		{link(`["10.96.0.0/12", "172.16.11.128/25"]`), cnierr.BadConfig, `"hostLink.routes": 172.16.11.128/25 lies in the subnet`, `only CIDRs`},
		{link(`[` + strings.Repeat(`"10.0.0.0/8",`, 64) + `"10.0.0.0/8"]`), cnierr.BadConfig, `"hostLink.routes": 65 entries, the limit is 64`, ``},
		{link(`[]`) + `, "routing": "none"`, cnierr.BadConfig, `"hostLink": with the mode none there are no routes`, `policy or main`},
		{`"hostLink": {"routes": []}`, cnierr.BadConfig, `"hostLink": without ipam the pod has no address`, `set ipam.type`},
		{ofPool(`"subnets": [{"subnet": "172.16.11.0/24"}]`) + `, "hostLink": {"routes": []}`, cnierr.BadConfig, `"routing.defaultRoute": no subnet has a gateway`, `set ipam.subnets[].gateway`},
	} {
		_, err := conf.Parse(input(b.in))
		b.check(t, err)
	}
	rails := ofPool(byRail) + `, "hostLink": {"routes": []}, `
	for _, b := range []bad{
		{rails + rule(`"count": 8, "ifName": "rail{rail}"`), cnierr.BadConfig, `"hostLink": no rail has the name "net1"`, `leave ifName out`},
		{rails + `"rails": [{"master": "ens1f0", "ifName": "host0"}, {"master": "ens2f0", "ifName": "net1"}]`, cnierr.BadConfig, `"hostLink": the pod's end of the link has the name "host0"`, `another name`},
		{rails + `"rails": [{"master": "ens1f0", "ifName": "net1", "routing": {"mode": "none"}}, {"master": "ens2f0"}]`, cnierr.BadConfig, `"hostLink": with the mode none there are no routes`, `policy or main`},
		{eight + `, ` + ofPool(byRail) + `, "hostLink": {"routes": ["172.16.12.128/25"]}`, cnierr.BadConfig, `"hostLink.routes": 172.16.12.128/25 lies in the subnet 172.16.12.0/24`, `only CIDRs`},
		{rails + eight + `, "routing": {"defaultRoute": true}`, cnierr.BadConfig, `"routing.defaultRoute": rail 0 and rail 1 cannot both have`, `for one rail only`},
	} {
		_, err := conf.Parse(railed(b.in))
		b.check(t, err)
	}
}

func TestHostLinkGivesTheDefaultRoute(t *testing.T) {
	t.Parallel()
	own := `"rails": [{"master": "ens1f0", "ifName": "rail0", "routing": "none"}, {"master": "mgmt0", "ifName": "net1"}], `
	for members, linked := range map[string]int{
		eight + `, `: 0,
		own:          1,
	} {
		got, err := conf.Parse(railed(members + ofPool(byRail) + `, "hostLink": {"routes": ["10.96.0.0/12", "172.16.16.0/21"]}`)) // wider than a subnet
		if err != nil {
			t.Errorf("%s: %v", members, err)
			continue
		}
		for i, r := range got.Rails {
			if want := i == linked; r.Routing.DefaultRoute != want || got.Linked(r) != want {
				t.Errorf("%s: rail %d: default route %v, linked %v, want both %v", members, i, r.Routing.DefaultRoute, got.Linked(r), want)
			}
		}
	}
}

func TestServicesOfTheClusterBelongToAutoRoutes(t *testing.T) {
	t.Parallel()
	prefixes := func(texts ...string) (out []netip.Prefix) {
		for _, s := range texts {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	r, err := conf.Parse(input(ofPool(one) + `, "hostLink": {"routes": ["10.244.0.0/16", "auto", "10.96.0.0/16"]}`))
	if err != nil || !r.HostLink.Auto || len(r.HostLink.Routes) != 2 {
		t.Fatalf("%+v, error %v", r.HostLink, err)
	}
	got, err := r.WithServices(prefixes("10.96.0.0/16", "fd00:96::/108", "10.96.0.0/16"))
	if want := prefixes("10.244.0.0/16", "10.96.0.0/16", "fd00:96::/108"); err != nil || !slices.Equal(got.HostLink.Routes, want) {
		t.Errorf("%v, error %v, want %v", got.HostLink.Routes, err, want)
	}
	if len(r.HostLink.Routes) != 2 {
		t.Errorf("the request itself has changed: %v", r.HostLink.Routes)
	}
	r.HostLink.Routes = slices.Grow(r.HostLink.Routes, 9)
	first, _ := r.WithServices(prefixes("10.97.0.0/16"))
	if _, err := r.WithServices(prefixes("10.98.0.0/16")); err != nil || first.HostLink.Routes[2].String() != "10.97.0.0/16" {
		t.Errorf("the request for other Services has changed: %v, %v", first.HostLink.Routes, err)
	}
	var many []netip.Prefix
	for i := range 63 {
		many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(i)}), 16))
	}
	if _, err := r.WithServices(many[1:]); err != nil {
		t.Errorf("64 routes: %v", err)
	}
	for _, b := range []struct {
		services []netip.Prefix
		says     string
	}{
		{prefixes("172.16.11.64/26"), `"hostLink.routes": 172.16.11.64/26 lies in the subnet`},
		{many, `"hostLink.routes": 65 with those of the cluster's Services, the limit is 64`},
	} {
		if _, err := r.WithServices(b.services); cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(fmt.Sprint(err), b.says) {
			t.Errorf("%v, want %s", err, b.says)
		}
	}
}

func TestServicesThatCannotBe(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"0.0.0.0/0", "::/0", "0.0.0.0/1", "8000::/1", "127.0.0.0/8", "169.254.0.0/16", "169.254.20.0/24", "224.0.0.0/4", "fe80::/64", "fd00:ec2::254/128", "fd00::/16", "::1/128", "10.96.0.1/12", "::ffff:10.96.0.0/108"} {
		if conf.Service(netip.MustParsePrefix(s)) {
			t.Errorf("%s counts as a range of ClusterIPs", s)
		}
	}
	if conf.Service(netip.Prefix{}) || !conf.Service(netip.MustParsePrefix("10.96.0.0/12")) {
		t.Error("want 10.96.0.0/12, and no invalid prefix")
	}
}
