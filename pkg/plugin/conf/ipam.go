// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"fmt"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/strict"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// given is what a configuration says of the addresses of its rails.
type given struct {
	subnets [][]Subnet // of each rail; nil when they are not known yet or have a fault
	places  []string   // the JSON path of each rail's subnets
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

// ipamSubnets returns the subnets of each rail. They are nil when they are not
// known yet or have a fault.
func ipamSubnets(o *strict.Object, rs rails, f *strict.Faults) [][]Subnet {
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
		if rs.given {
			pool.Braces(v)
		} else {
			pool.NoBraces(v)
		}
	}
	if rs.wrong {
		if common.Present() {
			pool.Subnets(common, 0, f)
		}
		return nil
	}
	var out [][]Subnet
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

// table says whether the subnets are in the table of the node.
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

// notOurs returns how to write here a key that other IPAM plugins spell
// differently.
func notOurs(key string) string {
	switch key {
	case "ranges", "range", "rangeStart", "rangeEnd", "range_start", "range_end", "subnet", "gateway", "exclude":
		return asOurs
	case "addresses":
		return `ask for fixed addresses with "capabilities": {"ips": true}`
	case "dataDir":
		return "the node has all leases in its state folder: the key stateDir of " + SettingsFile
	case "dns", "resolvConf":
		return "set the top-level key dns"
	}
	return ""
}
