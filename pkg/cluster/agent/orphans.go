// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
)

// orphans are host indexes of a pool that pods of this node use although they are in none of the
// node's blocks, so that another node may lease the same addresses.
type orphans struct {
	slots  map[string]bool
	blocks map[string]bool // by name, or by where else the addresses are
	owners map[string]bool
}

// findOrphans looks for orphans. While the pool's blocks are unknown, such as in another rack,
// the last result stays. It is called with the lock held.
func (k *poolController) findOrphans() {
	entries, _, known := k.agent.meter.last()
	if !known || !k.joined {
		return
	}
	if _, err := k.space.Rails(k.owned); err != nil {
		return
	}
	owned := map[int]bool{}
	for _, b := range k.owned {
		owned[b.Spec.Index] = true
	}
	found := orphans{slots: map[string]bool{}, blocks: map[string]bool{}, owners: map[string]bool{}}
	for _, e := range entries {
		if e.Pool == pool.OfRailPool(k.pool) && e.State == ledger.Leased && !k.accounted(e.Addr, owned) {
			found.add(k, e)
		}
	}
	k.orphans = len(found.slots)
	k.trouble("lost addresses", found.err(k.pool))
}

// accounted says whether an address is in a block of the node, even if pods may not use it any
// more, or is a sticky address: the grant controller reports lost ones.
func (k *poolController) accounted(a netip.Addr, owned map[int]bool) bool {
	_, kept := k.slots.Find(a)
	index, _, ok := k.space.Find(a)
	return kept || ok && owned[index]
}

func (s orphans) add(k *poolController, e ipam.Entry) {
	slot, place := e.Addr.String(), "addresses that the RailPool does not have"
	if index, number, ok := k.space.Find(e.Addr); ok {
		slot, place = fmt.Sprint(number), k.space.Name(index)
	}
	s.slots[slot], s.blocks[place], s.owners[e.Owner.String()] = true, true, true
}

// err returns nil if there are no orphans.
func (s orphans) err(name string) error {
	if len(s.slots) == 0 {
		return nil
	}
	return cnierr.New(cnierr.Limited, "keep addresses of RailPool", name, "delete these pods, because other nodes may lease the same addresses: "+some(s.owners),
		"pods of this node use %d host indexes of blocks that this node does not own: %s", len(s.slots), some(s.blocks))
}

// some lists the first five names.
func some(names map[string]bool) string {
	const few = 5
	all := slices.Sorted(maps.Keys(names))
	if more := len(all) - few; more > 0 {
		return fmt.Sprintf("%s, and %d more", strings.Join(all[:few], ", "), more)
	}
	return strings.Join(all, ", ")
}
