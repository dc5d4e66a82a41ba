// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"fmt"
	"math/big"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// poolFill asks whether the RailPools of the node have addresses left. Pools in the
// configuration of a network are known to that alone.
func poolFill() Check {
	return Check{
		Name: "pools",
		Asks: "have the RailPools addresses left on this node?",
		Why:  "pods do not start when there is none left (error 101), or while the node has no block of the pool (error 11)",
		look: func(ctx context.Context, n Node) []report.Finding {
			names, err := n.Pools.Pools()
			if err != nil {
				return []report.Finding{cannotTell(err.Error(), "the right to read the state folder")}
			}
			if len(names) == 0 {
				return []report.Finding{ok("the node has no RailPool")}
			}
			var out []report.Finding
			for _, name := range names {
				out = append(out, n.pool(ctx, name).About(name))
			}
			return out
		},
	}
}

func (n Node) pool(ctx context.Context, name string) report.Finding {
	file, err := n.Pools.Read(name)
	if err != nil {
		return problem(err.Error(), "curl -s "+n.AgentURL+"  # the agent says what it waits for")
	}
	entries, err := n.Leases.List(ctx, pool.OfRailPool(name))
	if cnierr.CodeOf(err) == cnierr.Unreadable {
		return problem(err.Error(), "rocectl repair  # shows what it would restore; with --yes it does")
	}
	if err != nil {
		return cannotTell(err.Error(), "the right to read the leases in the state folder")
	}
	var used []netip.Addr
	for _, e := range entries {
		if e.State == ledger.Leased || e.InQuarantine(file.Quarantine) {
			used = append(used, e.Addr)
		}
	}
	worst, lowest := "it has no subnet", 100
	for rail, subnets := range file.Rails {
		for _, s := range subnets {
			taken, size := fillOf(s, used)
			free := 0
			if size > 0 {
				free = 100 - min(100, taken*100/size)
			}
			if free <= lowest {
				worst, lowest = fmt.Sprintf("rail %d: %d of %d addresses of %s leased or in quarantine", rail, taken, size, s.Prefix), free
			}
		}
	}
	if lowest < 10 {
		return problem(worst, shell.Command("rocectl pool list %s  # who has them; kubectl get railpool %s shows", pool.OfRailPool(name), name)+" whether there are free blocks")
	}
	return ok("%s", worst)
}

// fillOf returns how many addresses of a subnet are taken, and how many the node has
// of it, up to a billion.
func fillOf(s pool.Subnet, used []netip.Addr) (taken, size int) {
	usable := netrange.Minus(s.Ranges, s.Exclude)
	for _, a := range used {
		if slices.ContainsFunc(usable, func(r netrange.Range) bool { return r.Contains(a) }) {
			taken++
		}
	}
	const most = 1_000_000_000 // of IPv6
	all := netrange.Count(usable)
	if all.Cmp(big.NewInt(most)) > 0 {
		return taken, most
	}
	return taken, int(all.Int64())
}
