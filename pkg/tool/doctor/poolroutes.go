// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// poolRoutes asks whether the node sends packets for the subnets of its RailPools
// through an interface that is no RoCE NIC, such as that of the pod network.
func poolRoutes() Check {
	return Check{
		Name: "pool-routes",
		Asks: "are the subnets of RailPools apart from what the node routes elsewhere?",
		Why:  "two networks with the same addresses: pods and nodes reach one of them, and it depends on the side which",
		look: func(ctx context.Context, n Node) []report.Finding {
			names, err := n.Pools.Pools()
			if err != nil {
				return []report.Finding{cannotTell(err.Error(), "the right to read the state folder")}
			}
			routes, err := n.Routes(ctx)
			if err != nil {
				return []report.Finding{cannotTell("the routes cannot be listed: "+err.Error(), "root in the network namespace of the node")}
			}
			ports, unknown := n.ports(ctx)
			if unknown != nil {
				return unknown
			}
			nics := map[int32]bool{}
			for _, p := range ports {
				if p.Own != nil {
					nics[p.Own.Index], nics[p.NIC.Index] = true, true
				}
			}
			var out []report.Finding
			for _, name := range names {
				out = append(out, n.clash(name, routes, nics).About(name))
			}
			if len(out) == 0 {
				return []report.Finding{ok("the node has no RailPool")}
			}
			return out
		},
	}
}

func (n Node) clash(pool string, routes []rtnl.Route, nics map[int32]bool) report.Finding {
	file, err := n.Pools.Read(pool)
	if err != nil {
		return cannotTell(err.Error(), "what pools says")
	}
	for _, subnets := range file.Rails {
		for _, s := range subnets {
			for _, r := range routes {
				own := r.Table == unix.RT_TABLE_MAIN && r.Type == unix.RTN_UNICAST && r.Index != 0
				if own && r.Dst.Bits() > 0 && r.Dst.Overlaps(s.Prefix) && !nics[r.Index] {
					return problem(fmt.Sprintf("%s of the pool overlaps the route %s of the node", s.Prefix, r.Dst),
						shell.Command("ip route show %s", r.Dst)+"  # who made it? Then give the RailPool subnets that no other network of the cluster has")
				}
			}
		}
	}
	return ok("no other route of the node has addresses of its subnets")
}
