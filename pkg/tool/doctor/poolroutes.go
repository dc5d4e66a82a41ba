// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
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
			routes, err := n.Routes()
			if err != nil {
				return []report.Finding{cannotTell("the routes cannot be listed: "+err.Error(), "root in the network namespace of the node")}
			}
			nics, err := n.roceIndexes(ctx)
			if err != nil {
				return unlisted(err)
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

// roceIndexes returns the indexes of the interfaces of RDMA ports.
func (n Node) roceIndexes(ctx context.Context) (map[int]bool, error) {
	ports, err := n.ports(ctx)
	out := map[int]bool{}
	for _, p := range ports {
		out[int(p.NetdevIndex)] = true
	}
	return out, err
}

func (n Node) clash(pool string, routes []netlink.Route, nics map[int]bool) report.Finding {
	file, err := n.Pools.Read(pool)
	if err != nil {
		return cannotTell(err.Error(), "what pools says")
	}
	for _, subnets := range file.Rails {
		for _, s := range subnets {
			for _, r := range routes {
				dst, isUnicast := destination(r)
				if isUnicast && dst.Bits() > 0 && dst.Overlaps(s.Prefix) && !nics[r.LinkIndex] {
					return problem(fmt.Sprintf("%s of the pool overlaps the route %s of the node", s.Prefix, dst),
						shell.Command("ip route show %s", dst)+"  # who made it? Then give the RailPool subnets that no other network of the cluster has")
				}
			}
		}
	}
	return ok("no other route of the node has addresses of its subnets")
}

func destination(r netlink.Route) (netip.Prefix, bool) {
	if r.Dst == nil || r.Type != unix.RTN_UNICAST || r.LinkIndex == 0 {
		return netip.Prefix{}, false
	}
	a, valid := netip.AddrFromSlice(r.Dst.IP)
	bits, _ := r.Dst.Mask.Size()
	if a.Is4In6() {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, bits), valid
}
