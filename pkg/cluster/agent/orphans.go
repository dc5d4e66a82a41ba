// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
)

// findOrphans looks for orphans: host indexes of the pool that pods of this node use although they
// are in none of the node's blocks, so that another node may lease the same addresses. While the
// pool's blocks are unknown, such as in another rack, the last result stays. It is called with the
// lock held.
func (k *poolController) findOrphans() {
	entries, _, known := k.agent.meter.last()
	if !known || !k.joined {
		return
	}
	_, err := k.space.Rails(k.owned)
	if err != nil {
		return
	}
	slots, blocks, owners := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, e := range entries {
		if e.Pool != pool.OfRailPool(k.pool) || e.State != ledger.Leased || k.accounted(e.Addr) {
			continue
		}
		slot, place := e.Addr.String(), "addresses that the RailPool does not have"
		if index, number, ok := k.space.Find(e.Addr); ok {
			slot, place = fmt.Sprint(number), k.space.Name(index)
		}
		slots[slot], blocks[place], owners[e.Owner.String()] = true, true, true
	}
	if k.orphans = len(slots); k.orphans > 0 {
		some := func(names map[string]bool) string { return cnierr.Some(slices.Sorted(maps.Keys(names))) }
		err = cnierr.New(cnierr.Limited, "keep addresses of RailPool", k.pool, "delete these pods, because other nodes may lease the same addresses: "+some(owners),
			"pods of this node use %d host indexes of blocks that this node does not own: %s", k.orphans, some(blocks))
	}
	k.trouble("lost addresses", err)
}

// accounted says whether an address is in a block of the node, even if pods may not use it any
// more, or is a sticky address: the grant controller reports lost ones.
func (k *poolController) accounted(a netip.Addr) bool {
	_, kept := k.slots.Find(a)
	index, _, ok := k.space.Find(a)
	return kept || ok && slices.ContainsFunc(k.owned, func(b block.Block) bool { return b.Spec.Index == index })
}
