// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"fmt"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

type given struct {
	subnets [][]pool.Subnet // of each rail; nil when they are not known yet or have a fault
	places  []string        // the JSON path of each rail's subnets
	asked   []pool.Asked
}

// addresses reads "ipam", and, for our own pools, the requested addresses.
func addresses(top, runtime *strict.Object, args []string, network string, rs rails, f *strict.Faults) (IPAM, given) {
	before := f.Len()
	o := top.At("ipam").Object()
	kind, _ := o.At("type").Text("")
	if kind != PoolType {
		checkDelegated(o, kind)
		if f.Len() == before {
			rs.needPool(o.At("type"), kind)
		}
		return IPAM{Type: kind}, given{}
	}
	defer o.Strict(notOurs)
	p := IPAM{Type: PoolType, RailPool: pool.ReadRailPool(o, len(rs.each)), FromMaster: pool.ReadFromMaster(o, asOurs), Table: table(o.At("table"))}
	if p.RailPool != nil {
		p.Pool = p.RailPool.Name
	} else {
		p.Pool = pool.Name(o.At("pool"), network, f)
	}
	g := given{subnets: ipamSubnets(o, rs, f), places: rs.places()}
	p.Quarantine = pool.Quarantine(o.At("quarantine"))
	g.asked = pool.ReadAsked(runtime, top.At("args").Object().At("cni").Object(), args, f)
	p.Requested, p.Routes = pool.Addresses(g.asked), pool.Routes(o.At("routes"))
	return p, g
}

func ipamSubnets(o *strict.Object, rs rails, f *strict.Faults) [][]pool.Subnet {
	common, before := o.At("subnets"), f.Len()
	if source := pool.Elsewhere(o); source != "" {
		for _, v := range append(rs.subnets(), common) {
			if v.Present() {
				v.Bad("keep one of the two", "ipam.%s already defines the subnets", source)
			}
		}
		return nil
	}
	for _, v := range append(rs.subnets(), common) {
		pool.Braces(v, rs.given)
	}
	if rs.wrong {
		if common.Present() {
			pool.Subnets(common, 0, f)
		}
		return nil
	}
	var out [][]pool.Subnet
	for i, r := range rs.each {
		v := common
		if r.subnets.Present() || r.listed && !common.Present() {
			v = r.subnets
		}
		out = append(out, pool.Subnets(v, i, f))
	}
	if f.Len() != before {
		return nil
	}
	return out
}

func table(v strict.Value) bool {
	if v.Kind() == strict.AString {
		v.Bad(fmt.Sprintf(`write "table": true; the key "table" of %s on the node is the path of the table`, SettingsFile),
			"the path of the table is a setting of the node, which a network cannot change")
		return false
	}
	return v.True()
}

// checkDelegated checks only the type: the plugin with that name checks the
// rest. An object without keys means no addresses. In an object with keys but
// without type, the type was forgotten.
func checkDelegated(o *strict.Object, kind string) {
	v := o.At("type")
	if strings.Contains(kind, "/") || !printable(kind) {
		v.Bad("", "%q is not the name of a plugin", kind)
	}
	if kind == PluginType { // roce would start itself and wait for itself
		v.Bad(fmt.Sprintf("set ipam.type to %q", PoolType), "%q is not an IPAM plugin", kind)
	}
	others := slices.DeleteFunc(slices.Clone(o.Keys()), func(key string) bool { return key == "type" })
	if len(others) == 0 || kind != "" || v.Present() && v.Kind() != strict.AString {
		return
	}
	hint := fmt.Sprintf("set ipam.type to %q", PoolType)
	for _, key := range others {
		if strict.Resembles(key, "type") {
			hint = fmt.Sprintf(`%q: did you mean "type"?`, key)
		}
	}
	v.Bad(hint, "missing")
}

const asOurs = `write "subnets": [{"subnet": "10.0.0.0/24", "ranges": ["10.0.0.10-10.0.0.99"], "gateway": "10.0.0.254"}]`

func notOurs(key string) string {
	switch key {
	case "ranges", "range", "rangeStart", "rangeEnd", "range_start", "range_end", "subnet", "gateway", "exclude":
		return asOurs
	case "addresses":
		return `ask for fixed addresses with "capabilities": {"ips": true}`
	case "dataDir", "stateDir":
		return "the node has all leases in its state folder: the key stateDir of " + SettingsFile
	case "dns", "resolvConf":
		return "set the top-level key dns"
	}
	return ""
}

// settled returns the request with the subnets of each rail, and with the requested
// addresses and the routes in them. Without subnets, the rails get none. It then gives
// each rail its routing, and reports what contradicts the subnets.
func (r Request) settled(g given, f *strict.Faults) Request {
	r.Rails = slices.Clone(r.Rails)
	if g.subnets != nil {
		pool.Apart(g.subnets, g.places, f)
		addrs, routes := pool.Give(g.asked, g.subnets, f), pool.Share(r.IPAM.Routes, g.subnets, f)
		for i := range r.Rails {
			one := &r.Rails[i]
			one.Subnets, one.Requested, one.Routes = g.subnets[i], addrs[i], routes[i]
		}
	}
	n := tables(r.Rails)
	for i := range r.Rails {
		if one := &r.Rails[i]; !one.OwnRouting && r.Routing.Table != 0 { // the table of the first rail
			one.Routing.Table += uint32(i * n)
		}
	}
	contradictoryMTU(r, f)
	missingGateways(r, f)
	contradictoryTables(r, f)
	misplacedHostRoutes(r, f)
	moreThanAResultSays(r, f)
	return r
}

// tables returns how many tables a rail may need. A second address of a family
// needs a second table.
func tables(each []Rail) int {
	most := 1
	for _, one := range each {
		v4, v6 := pool.Families(one.Subnets)
		most = max(most, v4, v6)
	}
	return most
}

// WithSubnets completes a request with subnets that come from the NICs, a table
// or a RailPool, once they are known. perRail has the subnets of each rail, none for
// one that is left out. Requested addresses and routes go to the rails with subnets
// that contain them. It does not change r.
//
// The error is BadConfig, as in Parse: for an address or a route that fits no
// rail, for subnets that overlap, for a wrong number of rails, and for what else
// contradicts the subnets.
func (r Request) WithSubnets(perRail [][]pool.Subnet) (Request, error) {
	if len(perRail) != len(r.Rails) {
		return Request{}, cnierr.New(cnierr.BadConfig, operation, r.Network, "give both the same number of rails",
			"%s has subnets for %d rails, the configuration has %d", r.IPAM.source(), len(perRail), len(r.Rails))
	}
	if !slices.ContainsFunc(perRail, func(s []pool.Subnet) bool { return len(s) > 0 }) {
		return Request{}, cnierr.New(cnierr.BadConfig, operation, r.Network, "give the NIC an address, or write ipam.subnets",
			"%s has no subnet", r.IPAM.source())
	}
	f, g := &strict.Faults{}, given{subnets: perRail, places: slices.Repeat([]string{r.IPAM.source()}, len(perRail))}
	for _, a := range r.IPAM.Requested {
		g.asked = append(g.asked, pool.Asked{Subject: "requested address", Addr: a, Bits: -1})
	}
	r = r.settled(g, f)
	if err := f.Err(operation, r.Network); err != nil {
		return Request{}, err
	}
	return r, nil
}

// later says whether the subnets come from elsewhere than the configuration.
func (p IPAM) later() bool { return p.RailPool != nil || p.Table || p.FromMaster != nil }

func (p IPAM) source() string {
	switch {
	case p.RailPool != nil:
		return "RailPool " + p.RailPool.Name
	case p.Table:
		return "ipam.table"
	case p.FromMaster != nil:
		return "ipam.fromMaster"
	}
	return "ipam.subnets"
}
