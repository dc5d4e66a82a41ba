// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package pool

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

// Asked is one requested address.
type Asked struct {
	Subject string // who requests it: a JSON path or the name of a variable
	Addr    netip.Addr
	Bits    int // -1: not said
}

// ReadAsked collects the addresses that the runtime (Multus), CNI_ARGS and
// args.cni request, with or without prefix length.
func ReadAsked(runtime, args *strict.Object, env []string, f *strict.Faults) []Asked {
	var out []Asked
	read := func(code cnierr.Code, subject, s string) {
		s = strings.TrimSpace(s)
		a, err := netip.ParseAddr(s)
		bits := -1
		if p, prefixErr := netip.ParsePrefix(s); prefixErr == nil {
			a, bits, err = p.Addr(), p.Bits(), nil
		}
		if err != nil || a.Is4In6() || a.Zone() != "" {
			f.Add(code, subject, "write 172.16.11.5 or 172.16.11.5/24", "%q is not an address", s)
			return
		}
		out = append(out, Asked{subject, a, bits})
	}
	for _, list := range []strict.Value{runtime.At("ips"), args.At("ips")} {
		for _, v := range list.List() {
			if s, ok := v.Text(""); ok {
				read(cnierr.BadConfig, v.Path, s)
			}
		}
	}
	for _, s := range env {
		read(cnierr.BadEnv, "CNI_ARGS IP", s)
	}
	return out
}

// Addresses returns the requested addresses, each once.
func Addresses(asked []Asked) []netip.Addr {
	var out []netip.Addr
	for _, a := range asked {
		if !slices.Contains(out, a.Addr) {
			out = append(out, a.Addr)
		}
	}
	return out
}

type place struct{ rail, subnet int }

// Give hands each requested address to a rail with a subnet that contains it.
// If several rails share the subnet, the address goes to the next rail that has
// no address of the subnet yet. For each rail, Give returns the addresses in
// the order of its subnets, each once.
func Give(asked []Asked, rails [][]Subnet, f *strict.Faults) [][]netip.Addr {
	given := map[place]netip.Addr{}
	for _, a := range asked {
		giveOne(a, rails, given, f)
	}
	out := make([][]netip.Addr, len(rails))
	for i, subnets := range rails {
		for j := range subnets {
			if a, ok := given[place{i, j}]; ok {
				out[i] = append(out[i], a)
			}
		}
	}
	return out
}

func giveOne(a Asked, rails [][]Subnet, given map[place]netip.Addr, f *strict.Faults) {
	bad := func(hint, format string, args ...any) { f.Add(cnierr.BadConfig, a.Subject, hint, format, args...) }
	places := placesOf(a.Addr, rails)
	if len(places) == 0 {
		bad("request an address of ipam.subnets", "%s is in none of the pool's subnets", a.Addr)
		return
	}
	subnet := func(p place) Subnet { return rails[p.rail][p.subnet] }
	first := subnet(places[0]) // all have the same prefix
	fit := slices.DeleteFunc(slices.Clone(places), func(p place) bool { return refusal(a.Addr, subnet(p)) != "" })
	if slices.ContainsFunc(places, func(p place) bool { return subnet(p).Gateway == a.Addr }) { // it is free on no rail
		fit = nil
	}
	open := slices.DeleteFunc(slices.Clone(fit), func(p place) bool { return given[p].IsValid() })
	switch {
	case a.Bits >= 0 && a.Bits != first.Prefix.Bits():
		bad("write the address without length", "%s/%d: the length of %s is %d", a.Addr, a.Bits, first.Prefix, first.Prefix.Bits())
	case len(fit) == 0:
		why := cmp.Or(refusal(a.Addr, first), "a gateway")
		bad("request another address", "%s is %s of %s", a.Addr, why, first.Prefix)
	case slices.ContainsFunc(fit, func(p place) bool { return given[p] == a.Addr }): // the address is requested twice
	case len(open) > 0:
		given[open[0]] = a.Addr
	case len(rails) == 1:
		bad("request one address of each subnet", "%s: %s of %s is requested, too", a.Addr, given[fit[0]], first.Prefix)
	default:
		bad("request one address of each subnet and rail", "%s: each rail in %s already has another requested address", a.Addr, first.Prefix)
	}
}

func placesOf(a netip.Addr, rails [][]Subnet) []place {
	var out []place
	for i, subnets := range rails {
		if j := subnetOf(a, subnets); j >= 0 {
			out = append(out, place{i, j})
		}
	}
	return out
}

func subnetOf(a netip.Addr, subnets []Subnet) int {
	return slices.IndexFunc(subnets, func(s Subnet) bool { return s.Prefix.Contains(a) })
}

func refusal(a netip.Addr, s Subnet) string {
	if a == s.Gateway {
		return "the gateway"
	}
	for _, r := range s.Exclude {
		if r.Contains(a) {
			return "an excluded address"
		}
	}
	return netrange.Unusable(s.Prefix)[a]
}
