// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf_test

import (
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

func TestRailPoolReplacesSubnets(t *testing.T) {
	t.Parallel()
	seven := 7
	for members, want := range map[string]pool.RailPool{
		`"railPool": "compute"`:                                            {Name: "compute"},
		`"railPool": "a"`:                                                  {Name: "a"},
		`"railPool": "compute-7", "rail": 7`:                               {Name: "compute-7", Rail: &seven},
		`"railPool": "compute", "fromMaster": false`:                       {Name: "compute"},
		`"railPool": "compute", "routes": [{"dst": "10.0.0.0/8"}]`:         {Name: "compute"},
		`"railPool": "` + strings.Repeat("r", 40) + `"`:                    {Name: strings.Repeat("r", 40)},
		`"railPool": "compute", "rail": null, "pool": null, "table": null`: {Name: "compute"},
	} {
		for which, parse := range map[string]func(conf.Input) (conf.Request, error){"roce": conf.Parse, "roce-ipam": conf.ParseIPAM} {
			r, err := parse(input(ofPool(members)))
			if err != nil {
				t.Errorf("%s: %s: %v", which, members, err)
				continue
			}
			p := r.IPAM
			if d := diff(&want, p.RailPool); d != "" || p.Pool != want.Name || r.Rails[0].Subnets != nil {
				t.Errorf("%s: %s: pool %q, subnets %v (-want +got)\n%s", which, members, p.Pool, r.Rails[0].Subnets, d)
			}
		}
	}
	rail := 0
	r := mustParse(t, railed(`"rails": [{"master": "a"}], `+ofPool(`"railPool": "compute", "rail": 0`)))
	if d := diff(&pool.RailPool{Name: "compute", Rail: &rail}, r.IPAM.RailPool); d != "" {
		t.Errorf("one rail of a list (-want +got)\n%s", d)
	}
	if long := `{"cniVersion": "1.1.0", "name": "` + strings.Repeat("n", 64) + `", ` + ofPool(`"railPool": "compute"`) + `}`; mustParse(t, call(long)).IPAM.Pool != "compute" {
		t.Error("the network's name is judged, which names no pool")
	}
}

func TestFaultsOfARailPool(t *testing.T) {
	t.Parallel()
	const rp = `"railPool": "compute"`
	for _, b := range []bad{
		{ofPool(`"railPool": 7`), cnierr.Decode, `"ipam.railPool": want a string, got a number`, ``},
		{ofPool(`"railPool": ""`), cnierr.BadConfig, `"ipam.railPool": "" is not the name of a RailPool`, `kubectl get railpools`},
		{ofPool(`"railPool": "Compute"`), cnierr.BadConfig, `"ipam.railPool": "Compute" is not the name`, `kubectl get railpools`},
		{ofPool(`"railPool": "../compute"`), cnierr.BadConfig, `"ipam.railPool": "../compute" is not`, `kubectl get railpools`},
		{ofPool(`"railPool": "a.b"`), cnierr.BadConfig, `"ipam.railPool": "a.b" is not`, `kubectl get railpools`},
		{ofPool(`"railPool": "` + strings.Repeat("r", 41) + `"`), cnierr.BadConfig, `"ipam.railPool": "rrr`, `kubectl get railpools`},
		{ofPool(rp + `, ` + one), cnierr.BadConfig, `"ipam.subnets": ipam.railPool already defines the subnets`, `keep one of the two`},
		{ofPool(rp + `, "pool": "compute"`), cnierr.BadConfig, `"ipam.pool": the RailPool defines it`, `networks that name one RailPool share its leases`},
		{ofPool(rp + `, "quarantine": "120s"`), cnierr.BadConfig, `"ipam.quarantine": the RailPool defines it`, `spec.quarantine`},
		{ofPool(rp + `, "gateway": "last"`), cnierr.BadConfig, `"ipam.gateway": has no effect without fromMaster`, `"fromMaster": true`},
		{ofPool(rp + `, "derive": {"base": 1, "perHost": 1}`), cnierr.BadConfig, `"ipam.derive": has no effect without fromMaster`, `"fromMaster": true`},
		{ofPool(rp + `, "rail": 32`), cnierr.BadConfig, `"ipam.rail": 32 is not in 0 to 31`, ``},
		{ofPool(`"rail": 2, ` + one), cnierr.BadConfig, `"ipam.rail": has no effect without railPool`, `"railPool": "compute"`},
	} {
		for _, parse := range []func(conf.Input) (conf.Request, error){conf.Parse, conf.ParseIPAM} {
			_, err := parse(input(b.in))
			b.check(t, err)
		}
	}
}

func TestFaultsOfARailPoolWithRails(t *testing.T) {
	t.Parallel()
	const rp = `"railPool": "compute"`
	for _, b := range []bad{
		{`"rails": [{"master": "a"}], ` + ofPool(rp+`, "fromMaster": true, "gateway": "last"`), cnierr.BadConfig, `"ipam.fromMaster": ipam.railPool already defines`, `keep one of the two`},
		{`"rails": [{"master": "a"}], ` + ofPool(rp+`, "table": true`), cnierr.BadConfig, `"ipam.table": the RailPool defines it`, `keep one of the two`},
		{eight + `, ` + ofPool(rp+`, "rail": 3`), cnierr.BadConfig, `"ipam.rail": each of the 8 rails uses the RailPool's rail`, `remove it`},
		{two + `, ` + ofPool(rp+`, "rail": 0`), cnierr.BadConfig, `"ipam.rail": each of the 2 rails uses`, `remove it`},
		{eight + `, ` + ofPool(rp+`, `+one), cnierr.BadConfig, `"ipam.subnets": ipam.railPool already defines the subnets`, `keep one of the two`},
		{
			`"rails": [{"master": "a", ` + one + `}, {"master": "b"}], ` + ofPool(rp),
			cnierr.BadConfig, `"rails[0].subnets": ipam.railPool already defines the subnets`, `keep one of the two`,
		},
	} {
		_, err := conf.Parse(railed(b.in))
		b.check(t, err)
	}
}

func TestARailPoolOfAnotherNumberOfRailsIsReportedWithBoth(t *testing.T) {
	t.Parallel()
	r := mustParse(t, railed(eight+`, `+ofPool(`"railPool": "compute"`)))
	a := wide("10.0.0.0/24", "10.0.0.254")
	_, err := r.WithSubnets([][]pool.Subnet{{a}, {a}})
	if want := `RailPool compute has subnets for 2 rails, the configuration has 8`; cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want code %d and %s", err, cnierr.BadConfig, want)
	}
}
