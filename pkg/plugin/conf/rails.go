// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// rails is what the keys "rails", "minRails" and "master" say. Without "rails" there
// is one rail.
type rails struct {
	given bool
	wrong bool // their number, or what they say, is not known
	match *Match
	each  []rail
	least int
}

type rail struct {
	listed  bool // it is an element of a list
	parent  Parent
	ifName  strict.Value
	name    string // what ifName says, "" if it is absent or has a fault
	subnets strict.Value
	routing *Routing // nil: the one of the whole configuration
}

const railsHint = `write a list such as [{"master": "ens1f0"}, {"master": "ens2f0"}] or a rule {"match": {"vendors": ["15b3"]}, "count": 8}`

func oneRail() rails { return rails{each: make([]rail, 1), least: 1} }

func readRails(top *strict.Object) rails {
	v, least, rs := top.At("rails"), top.At("minRails"), oneRail()
	rs.given = v.Present()
	switch v.Kind() {
	case strict.Absent:
		if least.Present() {
			least.Bad("remove the key", "has no effect without rails")
		}
		rs.each[0].parent = parent(top.At("master"))
		return rs
	case strict.AList:
		rs.list(v)
	case strict.AnObject:
		rs.rule(v.Object())
	default:
		rs.wrong = true
		v.Fault(cnierr.Decode, railsHint, "want a list or an object, got %s", v.Kind())
	}
	if master := top.At("master"); master.Present() && master.Raw() != `""` {
		master.Bad("remove it: rails names the NICs", "has no effect with rails")
		parent(master) // reports its other faults
	}
	rs.least = len(rs.each)
	if !rs.wrong {
		rs.least = int(least.Whole(int64(rs.least), 1, int64(rs.least)))
	}
	return rs
}

func (rs *rails) list(v strict.Value) {
	list := v.List()
	if len(list) == 0 || len(list) > pool.MaxRails {
		rs.wrong = true
		v.Bad(railsHint, "want 1 to %d rails, got %d", pool.MaxRails, len(list))
		return
	}
	rs.each = nil
	for _, e := range list {
		r := listed(e)
		rs.wrong = rs.wrong || !r.listed
		for j, other := range rs.each {
			if !r.parent.Default() && reflect.DeepEqual(r.parent, other.parent) {
				e.Bad("give each rail its own NIC", "it has the same master as rail %d", j)
			}
		}
		rs.each = append(rs.each, r)
	}
}

func listed(v strict.Value) rail {
	if v.Kind() != strict.AnObject {
		v.Fault(cnierr.Decode, railsHint, "want an object, got %s", v.Kind())
		return rail{}
	}
	o := v.Object()
	defer o.Strict(notARails)
	master, ifName := o.At("master"), o.At("ifName")
	r := rail{listed: true, parent: parent(master), ifName: ifName, name: nameTemplate(ifName), subnets: o.At("subnets")}
	if !master.Present() || master.Raw() == `""` {
		master.Bad("name the NIC, or select it", "missing")
	}
	if key := o.At("routing"); key.Present() {
		own := routing(key)
		r.routing = &own
	}
	return r
}

func notARails(key string) string {
	switch key {
	case "mode", "mtu", "mac", "bcqueuelen", "linkInContainer", "sysctl", "ipam", "probe", "rdma":
		return "write it next to rails: it applies to all rails"
	case "subnet", "ranges", "range", "exclude", "gateway":
		return `write "subnets": [{"subnet": "172.16.11.0/24", "gateway": "172.16.11.254"}]`
	}
	return ""
}

func (rs *rails) rule(o *strict.Object) {
	defer o.Strict(func(key string) string {
		if key == "subnets" || key == "routing" {
			return "write it next to rails; {rail} in ipam.subnets is the number of the rail"
		}
		return ""
	})
	match, count, ifName := o.At("match"), o.At("count"), o.At("ifName")
	match.Missing(`write what the NICs have in common, such as {"vendors": ["15b3"]}`)
	count.Missing("write how many NICs match")
	n := int(count.Whole(0, 1, pool.MaxRails))
	rs.match = &Match{
		Parent: selector(match, "name the NICs in the list form: "+`"rails": [{"master": "ens1f0"}]`, "give a property that all NICs have, such as vendors"),
		Count:  n, Order: strict.Choice(o.At("order"), ByPCI, ByRDMA),
	}
	rs.wrong = n == 0
	rs.each = make([]rail, max(n, 1)) // without parents: match selects the NICs
	name := nameTemplate(ifName)
	if name != "" && n > 1 && !pool.Varies(name) {
		ifName.Bad(`write a template such as "rail{rail}"`, "%q would be the name of all %d rails", name, n)
		name = ""
	}
	for i := range rs.each {
		rs.each[i].ifName, rs.each[i].name = ifName, name
	}
}

func nameTemplate(v strict.Value) string {
	s, ok := v.Text("")
	if !pool.ValidTemplate(s) {
		v.Bad(pool.TemplateHint, "%q has a brace outside of a placeholder", s)
		return ""
	}
	if ok && s == "" {
		v.Bad("remove the key, and the names follow from CNI_IFNAME", "the name is empty")
	}
	return s
}

func (rs rails) needPool(v strict.Value, kind string) {
	if rs.given && kind != "" {
		v.Bad(fmt.Sprintf("set ipam.type to %q, or use one network for each rail", PoolType),
			"%q gives addresses to one interface, not to rails", kind)
	}
	for _, s := range rs.subnets() {
		if kind == "" && s.Present() {
			s.Bad(fmt.Sprintf("set ipam.type to %q", PoolType), "without ipam.type, no IPAM plugin leases addresses")
			return
		}
	}
}

func (rs rails) subnets() []strict.Value {
	var out []strict.Value
	for _, r := range rs.each {
		out = append(out, r.subnets)
	}
	return out
}

func (rs rails) places() []string {
	var out []string
	for _, r := range rs.each {
		if r.subnets.Present() {
			out = append(out, r.subnets.Path)
		} else {
			out = append(out, "ipam.subnets")
		}
	}
	return out
}

// of returns the rails of a request with the name of the first interface, with common
// routing where a rail has none of its own.
func (rs rails) of(first LinkName, common Routing) []Rail {
	out, names := make([]Rail, len(rs.each)), rs.names(first)
	for i, one := range rs.each {
		out[i] = Rail{Number: i, IfName: names[i], Parent: one.parent, Routing: common}
		if one.routing != nil {
			out[i].Routing, out[i].OwnRouting = *one.routing, true
		}
	}
	return out
}

// names returns the names of the interfaces. Without names in the
// configuration, they are CNI_IFNAME for the first, and CNI_IFNAME with a
// number from 1 for the others. Names from the configuration are used
// unchanged, also for the first rail: Multus does not look for CNI_IFNAME in
// the result, but plugins behind roce in a list do. The number of a name is the
// number of its rail, also when another rail is left out.
//
// A name with a fault is "". Names that follow from CNI_IFNAME are "" when it
// has a fault, or when there is none, as in STATUS.
func (rs rails) names(first LinkName) []LinkName {
	if rs.wrong {
		return slices.Repeat([]LinkName{first}, len(rs.each))
	}
	known := ifNameProblem(string(first)) == ""
	var out []LinkName
	var reported []string
	for i, r := range rs.each {
		var name LinkName
		switch {
		case r.ifName.Present():
			name = LinkName(pool.Expand(r.name, i))
		case known && i == 0:
			name = first
		case known:
			name = LinkName(fmt.Sprintf("%s-%d", first, i))
		}
		problem := nameProblem(name, out)
		if problem != "" && !slices.Contains(reported, r.ifName.Path) {
			reported = append(reported, r.ifName.Path)
			origin := ""
			if !r.ifName.Present() {
				origin = fmt.Sprintf(", which follows from CNI_IFNAME %q,", first)
			}
			r.ifName.Bad(`set ifName, such as "rail{rail}", or choose a shorter interface name in the pod's networks annotation`,
				"rail %d: %q%s %s", i, name, origin, problem)
		}
		out = append(out, name)
	}
	return out
}

// nameProblem says why an interface cannot have a name beside the names of
// others, or "" if it can.
func nameProblem(name LinkName, others []LinkName) string {
	if name == "" {
		return ""
	}
	if len(name) > longestIfName {
		return fmt.Sprintf("has %d characters, at most %d are possible", len(name), longestIfName)
	}
	if i := slices.Index(others, name); i >= 0 {
		return fmt.Sprintf("is the name of rail %d", i)
	}
	return ifNameProblem(string(name))
}
