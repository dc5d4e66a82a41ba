// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf/strict"
	"github.com/roce-cni/roce-cni/pkg/netrange"
)

// addresses reads "ipam", and, for our own pools, the addresses that were
// asked for.
func addresses(top, runtime *strict.Object, args []string, network string, f *strict.Faults) IPAM {
	o := top.At("ipam").Object()
	kind, _ := o.At("type").Text("")
	if kind != PoolType {
		checkDelegated(o, kind)
		return IPAM{Type: kind}
	}
	defer o.Strict(notOurs)
	p := IPAM{
		Type:       PoolType,
		Pool:       pool(o.At("pool"), network, f),
		Subnets:    subnets(o.At("subnets"), f),
		Quarantine: o.At("quarantine").Duration(120*time.Second, 0, 24*time.Hour),
	}
	asked := requests(runtime, top.At("args").Object().At("cni").Object(), args, f)
	p.Requested = requested(asked, p.Subnets, f)
	p.Routes = readRoutes(o.At("routes"), p.Subnets)
	return p
}

// checkDelegated checks the type alone: the rest is for the plugin of that
// name. An object without keys asks for no addresses; in one with keys but
// without type somebody forgot it.
func checkDelegated(o *strict.Object, kind string) {
	v := o.At("type")
	if strings.Contains(kind, "/") || !printable(kind) {
		v.Bad("", "%q is not the name of a plugin", kind)
	}
	if kind == PluginType { // it would run itself, and wait for itself
		v.Bad(fmt.Sprintf("set ipam.type to %q", PoolType), "%q is no IPAM plugin", kind)
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

// notOurs tells how to write here what other IPAM plugins spell otherwise.
func notOurs(key string) string {
	switch key {
	case "ranges", "range", "rangeStart", "rangeEnd", "range_start", "range_end", "subnet", "gateway", "exclude":
		return `write "subnets": [{"subnet": "10.0.0.0/24", "ranges": ["10.0.0.10-10.0.0.99"], "gateway": "10.0.0.254"}]`
	case "addresses":
		return `ask for fixed addresses with "capabilities": {"ips": true}`
	case "dataDir":
		return "set the top-level key stateDir"
	case "dns", "resolvConf":
		return "set the top-level key dns"
	}
	return ""
}

func notOursInSubnet(key string) string {
	switch key {
	case "rangeStart", "rangeEnd", "range_start", "range_end", "range":
		return `write "ranges": ["10.0.0.10-10.0.0.99"]`
	}
	return ""
}

// longestPool is what the name of a pool may have.
const longestPool = 63

// pool returns the name of the pool, which is the network's when nobody says
// another one. What else a network's name may be networkName knows.
func pool(v strict.Value, network string, f *strict.Faults) string {
	if !v.Present() {
		if len(network) > longestPool {
			f.Add(cnierr.BadConfig, "name", "use a shorter name, or set ipam.pool",
				"%d characters, at most %d can name a pool", len(network), longestPool)
		}
		return network
	}
	s, ok := v.Text("")
	if ok && (s == "" || len(s) > longestPool || s == "." || s == ".." || strings.Trim(s, nameChars) != "") {
		v.Bad("use 1 to 63 letters, digits and _.-", "%q is not the name of a pool", s)
	}
	return s
}

// subnets returns nil if a subnet has a fault: what refers to the subnets can
// be judged only if they are right.
func subnets(v strict.Value, f *strict.Faults) []Subnet {
	var out []Subnet
	before := f.Len()
	if !v.Present() || v.Empty() {
		v.Bad(`write "subnets": [{"subnet": "10.0.0.0/24"}]`, "no subnet")
	}
	for _, e := range v.List() {
		s := subnet(e, f)
		for _, other := range out {
			if s.Prefix.Overlaps(other.Prefix) { // false if one is invalid
				e.Bad("keep one of the two", "%s overlaps %s", s.Prefix, other.Prefix)
			}
		}
		out = append(out, s)
	}
	if f.Len() != before {
		return nil
	}
	return out
}

func subnet(v strict.Value, f *strict.Faults) Subnet {
	o := v.Object()
	if !o.Present() {
		return Subnet{}
	}
	before := f.Len()
	defer o.Strict(notOursInSubnet)
	key, ranges, exclude, gateway := o.At("subnet"), o.At("ranges"), o.At("exclude"), o.At("gateway")
	key.Missing("")
	p, ok := key.Prefix()
	if ok && netrange.SpecialIn(p) != "" {
		key.Bad("choose a subnet of ordinary unicast addresses", "%s has %s", p, netrange.SpecialIn(p))
	}
	s := Subnet{Prefix: p, Ranges: rangesIn(ranges, p), Exclude: rangesIn(exclude, p)}
	if ranges.Present() {
		apart(ranges, s.Ranges)
	} else if ok {
		s.Ranges = []netrange.Range{netrange.Of(p)}
	}
	if gateway.Present() {
		s.Gateway = gatewayIn(gateway, p)
	}
	if f.Len() == before && !free(s) {
		v.Bad("widen ranges or exclude less", "no address of %s is left for pods", p)
	}
	return s
}

// rangesIn reads ranges inside a subnet, unless that is invalid, and sorts
// them.
func rangesIn(v strict.Value, within netip.Prefix) []netrange.Range {
	var out []netrange.Range
	for _, e := range v.List() {
		r, ok := oneRange(e)
		if !ok {
			continue
		}
		if within.IsValid() && !r.Within(netrange.Of(within)) {
			e.Bad("", "%s is not inside %s", r, within)
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b netrange.Range) int {
		if c := a.First.Compare(b.First); c != 0 {
			return c
		}
		return a.Last.Compare(b.Last)
	})
	return out
}

func oneRange(v strict.Value) (netrange.Range, bool) {
	s, ok := v.Text(`write a range as a string: "10.0.0.10-10.0.0.99"`)
	if !ok {
		return netrange.Range{}, false
	}
	if strings.Contains(s, "/") {
		p, ok := v.Prefix()
		if !ok {
			return netrange.Range{}, false
		}
		return netrange.Of(p), true
	}
	r, err := netrange.Parse(s)
	if err != nil {
		v.Bad("write first-last, one address, or a prefix", "%q is not a range: %w", s, err)
	}
	return r, err == nil
}

// apart reports ranges that share addresses, and a list without any: an empty
// list may come from a template that found nothing for this node, and must not
// mean the whole subnet.
func apart(v strict.Value, sorted []netrange.Range) {
	if v.Empty() {
		v.Bad("leave the key out to use the whole subnet", "the list is empty")
	}
	for i := 1; i < len(sorted); i++ {
		if sorted[i].Overlaps(sorted[i-1]) {
			v.Bad("", "%s overlaps %s", sorted[i], sorted[i-1])
		}
	}
}

func gatewayIn(v strict.Value, p netip.Prefix) netip.Addr {
	a, ok := v.Address()
	if !ok || !p.IsValid() {
		return a
	}
	if !p.Contains(a) {
		v.Bad("", "%s is not inside %s", a, p)
	} else if what := netrange.Unusable(p)[a]; what != "" {
		v.Bad("", "%s is %s of %s", a, what, p)
	}
	return a
}

// free says whether a subnet has an address that a pod may get.
func free(s Subnet) bool {
	taken := slices.Clone(s.Exclude)
	for a := range netrange.Unusable(s.Prefix) {
		taken = append(taken, netrange.Range{First: a, Last: a})
	}
	if s.Gateway.IsValid() {
		taken = append(taken, netrange.Range{First: s.Gateway, Last: s.Gateway})
	}
	return len(netrange.Minus(s.Ranges, taken)) > 0
}
