// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"net/netip"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf/strict"
	"github.com/roce-cni/roce-cni/pkg/netrange"
)

// request is one address that somebody asks for.
type request struct {
	subject string
	addr    netip.Addr
	bits    int // -1: not said
}

// requests collects the addresses that the runtime (Multus), CNI_ARGS and
// args.cni ask for, with or without prefix length.
func requests(runtime, args *strict.Object, env []string, f *strict.Faults) []request {
	var out []request
	read := func(code cnierr.Code, subject, s string) {
		a, bits, err := netrange.ParseAddr(strings.TrimSpace(s))
		if err != nil || a.Is4In6() || a.Zone() != "" {
			f.Add(code, subject, "write 172.16.11.5 or 172.16.11.5/24", "%q is not an address", s)
			return
		}
		out = append(out, request{subject, a, bits})
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

// requested returns the addresses that were asked for in the order of their
// subnets, each once; nil if no subnet is known to be right.
func requested(asked []request, subnets []Subnet, f *strict.Faults) []netip.Addr {
	if subnets == nil {
		return nil
	}
	chosen := make([]netip.Addr, len(subnets))
	for _, r := range asked {
		i := subnetOf(r.addr, subnets)
		if i < 0 {
			f.Add(cnierr.BadConfig, r.subject, "ask for an address of ipam.subnets", "%s is in none of the pool's subnets", r.addr)
			continue
		}
		s := subnets[i]
		switch what := refusal(r.addr, s); {
		case r.bits >= 0 && r.bits != s.Prefix.Bits():
			f.Add(cnierr.BadConfig, r.subject, "leave the length out", "%s/%d: the length of %s is %d", r.addr, r.bits, s.Prefix, s.Prefix.Bits())
		case what != "":
			f.Add(cnierr.BadConfig, r.subject, "ask for another address", "%s is %s of %s", r.addr, what, s.Prefix)
		case chosen[i].IsValid() && chosen[i] != r.addr:
			f.Add(cnierr.BadConfig, r.subject, "ask for one address of each subnet", "%s: %s of %s is asked for too", r.addr, chosen[i], s.Prefix)
		default:
			chosen[i] = r.addr
		}
	}
	var out []netip.Addr
	for _, a := range chosen {
		if a.IsValid() {
			out = append(out, a)
		}
	}
	return out
}

func subnetOf(a netip.Addr, subnets []Subnet) int {
	for i, s := range subnets {
		if s.Prefix.Contains(a) {
			return i
		}
	}
	return -1
}

// refusal says what makes an address of a subnet unfit for a pod, or "".
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
