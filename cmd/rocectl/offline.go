// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"net/netip"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// madeUp returns made-up facts for a node that cannot be read.
func (f planFlags) madeUp(req conf.Request) ([]plan.RailFacts, error) {
	var out []plan.RailFacts
	for i, one := range req.Rails {
		parent := plan.Link{Name: one.Parent.Name, MAC: conf.MAC{0x02}, MTU: max(req.MTU, 1500)}
		if parent.Name == "" {
			parent.Name = conf.LinkName(numbered("MASTER", req, i))
		}
		if i < len(f.nicAddrs) {
			own, err := netip.ParsePrefix(f.nicAddrs[i])
			if err != nil {
				return nil, cnierr.New(cnierr.BadConfig, "read flag", "--nic-addrs", "write 172.16.11.5/24,172.16.12.5/24", "%w", err)
			}
			parent.Addrs = []netip.Prefix{own}
		}
		if req.VLAN != 0 {
			on := conf.VLAN{ID: req.VLAN, NIC: parent.Name}
			parent.Name, parent.VLAN = on.Name(), &plan.OnVLAN{VLAN: on}
		}
		facts := plan.Facts{Parent: parent, Adopted: adopted(req), Pod: plan.PodFacts{IPv6: true}}
		out = append(out, plan.RailFacts{Facts: facts})
	}
	return out, nil
}

// numbered returns a substitute for a name that only the node knows.
func numbered(name string, req conf.Request, rail int) string {
	if len(req.Rails) == 1 {
		return name
	}
	return fmt.Sprint(name, rail)
}

// adopted returns the facts of an adopted interface, nil if there is none.
func adopted(req conf.Request) *plan.Adopted {
	if req.Prev == nil {
		return nil
	}
	return plan.FromPrev(*req.Prev)
}
