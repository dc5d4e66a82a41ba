// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf_test

import (
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
)

func TestFaultsOfHostLink(t *testing.T) {
	t.Parallel()
	link := func(routes string) string { return pool(one) + `, "hostLink": {"routes": ` + routes + `}` }
	for _, b := range []bad{
		{pool(one) + `, "hostLink": true`, cnierr.Decode, `"hostLink": want an object, got true or false`, ``},
		{pool(one) + `, "hostLink": {}`, cnierr.BadConfig, `"hostLink.routes": missing`, `the CIDRs of the cluster's Services`},
		{pool(one) + `, "hostLink": {"routes": [], "route": []}`, cnierr.BadConfig, `"hostLink.route": unknown key`, `did you mean "routes"?`},
		{pool(one) + `, "hostlink": {}`, cnierr.BadConfig, `"hostlink": unknown key`, `did you mean "hostLink"?`},
		{link(`"auto"`), cnierr.BadConfig, `"hostLink.routes": "auto" is not possible`, `the CIDRs of the cluster's Services`},
		{link(`7`), cnierr.Decode, `"hostLink.routes": want a list, got a number`, ``},
		{link(`[7]`), cnierr.Decode, `"hostLink.routes[0]": want a string, got a number`, ``},
		{link(`["10.96.0.1/12"]`), cnierr.BadConfig, `"hostLink.routes[0]": 10.96.0.1/12 has host bits set`, `did you mean "10.96.0.0/12"?`},
		{link(`["0.0.0.0/0"]`), cnierr.BadConfig, `"hostLink.routes[0]": 0.0.0.0/0 is the default route`, `through the gateway`},
		{link(`["::/0"]`), cnierr.BadConfig, `"hostLink.routes[0]": ::/0 is the default route`, `through the gateway`},
		{link(`["10.96.0.0/12", "10.96.0.0/12"]`), cnierr.BadConfig, `"hostLink.routes[1]": 10.96.0.0/12 appears twice`, `keep one`},
		{link(`["169.254.0.0/16"]`), cnierr.BadConfig, `"hostLink.routes[0]": 169.254.0.0/16 is no range`, `always`},
		{link(`["224.0.0.0/4"]`), cnierr.BadConfig, `"hostLink.routes[0]": 224.0.0.0/4 is no range`, `remove it`},
		{link(`["127.0.0.0/8"]`), cnierr.BadConfig, `"hostLink.routes[0]": 127.0.0.0/8 is no range`, `remove it`},
		{link(`["172.16.11.0/24"]`), cnierr.BadConfig, `"hostLink.routes[0]": 172.16.11.0/24 lies in the subnet 172.16.11.0/24 of the pod`, `only CIDRs of Services`},
		{link(`["10.96.0.0/12", "172.16.11.128/25"]`), cnierr.BadConfig, `"hostLink.routes[1]": 172.16.11.128/25 lies in the subnet`, `only CIDRs`},
		{link(`[` + strings.Repeat(`"10.0.0.0/8",`, 64) + `"10.0.0.0/8"]`), cnierr.BadConfig, `"hostLink.routes": 65 entries, the limit is 64`, ``},
		{link(`[]`) + `, "routing": "none"`, cnierr.BadConfig, `"hostLink": with the mode none there are no routes`, `policy or main`},
		{`"hostLink": {"routes": []}`, cnierr.BadConfig, `"hostLink": without ipam the pod has no address`, `set ipam.type`},
		{pool(`"subnets": [{"subnet": "172.16.11.0/24"}]`) + `, "hostLink": {"routes": []}`, cnierr.BadConfig, `"routing.defaultRoute": no subnet has a gateway`, `set ipam.subnets[].gateway`},
	} {
		_, err := conf.Parse(input(b.in))
		b.check(t, err)
	}
	rails := pool(byRail) + `, "hostLink": {"routes": []}, `
	for _, b := range []bad{
		{rails + rule(`"count": 8, "ifName": "rail{rail}"`), cnierr.BadConfig, `"hostLink": no rail has the name "net1"`, `leave ifName out`},
		{rails + eight + `, "routing": {"defaultRoute": true}`, cnierr.BadConfig, `"routing.defaultRoute": rail 0 and rail 1 cannot both have`, `for one rail only`},
	} {
		_, err := conf.Parse(railed(b.in))
		b.check(t, err)
	}
}

func TestHostLinkGivesTheDefaultRoute(t *testing.T) {
	t.Parallel()
	own := `"rails": [{"master": "ens1f0", "ifName": "rail0"}, {"master": "mgmt0", "ifName": "net1"}], `
	for members, linked := range map[string]int{
		eight + `, `: 0,
		own:          1,
	} {
		got, err := conf.Parse(railed(members + pool(byRail) + `, "hostLink": {"routes": ["10.96.0.0/12"]}`))
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
