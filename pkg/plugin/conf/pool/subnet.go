// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package pool reads which addresses an attachment may have, and how long released ones stay
// in quarantine: the subnets, the routes through them, and the requested addresses.
//
// It leases nothing and does no I/O. It stands below package conf, which puts the
// result into its request. Read subnet.go first.
package pool

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

// Subnet is one subnet of a pool. An attachment gets one address of it.
type Subnet struct {
	Prefix  netip.Prefix     // masked
	Ranges  []netrange.Range // sorted, without overlap, inside Prefix; never empty
	Exclude []netrange.Range // sorted
	Gateway netip.Addr       // may be outside of Prefix; zero: none
}

// Subnets reads a list of subnets for one rail. It replaces placeholders by the
// number of the rail. A fault of several rails is noted only for the first.
// Subnets returns nil if a subnet has a fault: what refers to the subnets can
// be checked only if they are right.
func Subnets(v strict.Value, rail int, f *strict.Faults) []Subnet {
	g, note := &strict.Faults{}, ""
	w := g.ValueAt(v.Path, nil)
	if v.Present() {
		raw := v.Raw()
		if Varies(raw) {
			raw, note = Expand(raw, rail), fmt.Sprintf("rail %d: ", rail)
		}
		w = g.ValueAt(v.Path, []byte(raw))
	}
	out := subnets(w, g)
	f.Adopt(g, note)
	if g.Len() > 0 {
		return nil
	}
	return out
}

// Families counts the subnets of each family.
func Families(subnets []Subnet) (v4, v6 int) {
	for _, s := range subnets {
		if s.Prefix.Addr().Is4() {
			v4++
		} else {
			v6++
		}
	}
	return v4, v6
}

// Braces reports the strings of v that have a brace outside of a placeholder. Without
// rails nothing can differ for each rail, and every brace is a fault.
func Braces(v strict.Value, rails bool) {
	for _, e := range v.Strings() {
		switch s, _ := e.Text(""); {
		case !rails && IsTemplate(s):
			e.Bad("write the number", "%q has a placeholder, but the configuration has no rails", s)
		case !ValidTemplate(s):
			e.Bad(TemplateHint, "%q has a brace outside of a placeholder", s)
		}
	}
}

// Apart reports subnets that overlap. Subnets of one rail must not overlap at
// all; two rails may have the same subnets. where has the JSON path of each
// rail's subnets.
func Apart(rails [][]Subnet, where []string, f *strict.Faults) {
	for i, subnets := range rails {
		for j := range i + 1 {
			if a, b, ok := clash(subnets, rails[j], i == j); ok {
				f.Add(cnierr.BadConfig, where[i], "write the same subnet for both rails, or subnets that do not overlap",
					"%s of rail %d overlaps %s of rail %d", a, i, b, j)
				break
			}
		}
	}
}

// clash returns the prefixes of two subnets that cannot exist together. same
// says that a and b are the same list.
func clash(a, b []Subnet, same bool) (p, q netip.Prefix, found bool) {
	for i, s := range a {
		for j, o := range b {
			alike := i == j
			if !same {
				alike = s.Prefix == o.Prefix
			}
			if !alike && s.Prefix.Overlaps(o.Prefix) {
				return s.Prefix, o.Prefix, true
			}
		}
	}
	return p, q, false
}

func subnets(v strict.Value, f *strict.Faults) []Subnet {
	var out []Subnet
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
	return out
}

func subnet(v strict.Value, f *strict.Faults) Subnet {
	o := v.Object()
	if !o.Present() {
		return Subnet{}
	}
	before := f.Len()
	defer o.Strict(notOursInSubnet)
	key, ranges, exclude, gateway, onLink := o.At("subnet"), o.At("ranges"), o.At("exclude"), o.At("gateway"), o.At("onLink")
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
		s.Gateway = gatewayOf(gateway, p, onLink.True())
	} else if onLink.True() {
		onLink.Bad("write the gateway too", "has no effect without gateway")
	}
	if f.Len() == before && !free(s) {
		v.Bad("widen ranges or exclude less", "no address of %s is left for pods", p)
	}
	return s
}

func rangesIn(v strict.Value, within netip.Prefix) []netrange.Range {
	var out []netrange.Range
	for _, e := range v.List() {
		r, ok := Range(e)
		if !ok {
			continue
		}
		if within.IsValid() && !r.Within(netrange.Of(within)) {
			e.Bad(fmt.Sprintf("write addresses of %s, or remove it", within), "%s is not inside %s", r, within)
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

// Range reads first-last, one address, or a prefix without host bits; the second
// result is false if there is none.
func Range(v strict.Value) (netrange.Range, bool) {
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

// apart reports ranges that share addresses, and an empty list. An empty list
// may come from a template that found nothing for this node, and must not mean
// the whole subnet.
func apart(v strict.Value, sorted []netrange.Range) {
	if v.Empty() {
		v.Bad("remove the key to use the whole subnet", "the list is empty")
	}
	for i := 1; i < len(sorted); i++ {
		if sorted[i].Overlaps(sorted[i-1]) {
			v.Bad("", "%s overlaps %s", sorted[i], sorted[i-1])
		}
	}
}

// gatewayOf reads the gateway of a subnet. Outside of the subnet it must be link-local,
// or the subnet must be a single address, or onLink must say that it is meant: any
// other address outside is probably mistyped.
func gatewayOf(v strict.Value, p netip.Prefix, onLink bool) netip.Addr {
	a, ok := v.Address()
	if !ok || !p.IsValid() {
		return a
	}
	switch what := netrange.Unusable(p)[a]; {
	case what != "":
		v.Bad("", "%s is %s of %s", a, what, p)
	case a.BitLen() != p.Addr().BitLen():
		v.Bad("write a gateway of the subnet's family", "%s is not of the family of %s", a, p)
	case p.Contains(a), a.IsLinkLocalUnicast():
	case !p.IsSingleIP() && !onLink:
		v.Bad(`correct the address; if the gateway is on the link, but outside of the subnet, write "onLink": true beside it`, "%s is not inside %s", a, p)
	case netrange.SpecialIn(netip.PrefixFrom(a, a.BitLen())) != "":
		v.Bad("write the address of the router", "%s is in %s", a, netrange.SpecialIn(netip.PrefixFrom(a, a.BitLen())))
	}
	return a
}

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

func notOursInSubnet(key string) string {
	switch key {
	case "rangeStart", "rangeEnd", "range_start", "range_end", "range":
		return `write "ranges": ["10.0.0.10-10.0.0.99"]`
	}
	return ""
}
