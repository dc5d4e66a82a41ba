// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/ipam"
	"github.com/roce-cni/roce-cni/pkg/ipam/ledger"
)

// strays are the slots of a pool of which pods of this node have addresses though
// they are in none of its blocks: another node may lease the same. They are found in
// the leases at each look, so that an agent that was started since knows of them.
type strays struct {
	slots  map[string]bool
	blocks map[string]bool // by name, or where else the addresses are
	owners map[string]bool
}

// stray looks for strays. While the pool's blocks cannot be told, such as those of a
// node that is in another rack now, what was found stays. It is called with the lock
// held.
func (k *keeper) stray() {
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
	found := strays{slots: map[string]bool{}, blocks: map[string]bool{}, owners: map[string]bool{}}
	for _, e := range entries {
		if e.Pool == k.pool && e.State == ledger.Leased && !k.accounted(e.Addr, owned) {
			found.add(k, e)
		}
	}
	k.strays = len(found.slots)
	k.trouble("lost addresses", found.err(k.pool))
}

// accounted says whether an address is of a block of the node, also if pods may not
// have it any more, or of a slot that is kept for a pod: of those the clerk says which
// are lost.
func (k *keeper) accounted(a netip.Addr, owned map[int]bool) bool {
	_, kept := k.slots.Find(a)
	index, _, ok := k.space.Find(a)
	return kept || ok && owned[index]
}

func (s strays) add(k *keeper, e ipam.Entry) {
	slot, place := e.Addr.String(), "addresses that the RailPool does not have"
	if index, number, ok := k.space.Find(e.Addr); ok {
		slot, place = fmt.Sprint(number), k.space.Name(index)
	}
	s.slots[slot], s.blocks[place], s.owners[e.Owner.String()] = true, true, true
}

// err returns nil when there is none.
func (s strays) err(pool string) error {
	if len(s.slots) == 0 {
		return nil
	}
	return cnierr.New(cnierr.Limited, "keep addresses of RailPool", pool, "delete them, for other nodes may lease the same: "+some(s.owners),
		"pods of this node have %d slots of blocks that are not this node's: %s", len(s.slots), some(s.blocks))
}

// some names a few of those that there are.
func some(names map[string]bool) string {
	const few = 5
	all := slices.Sorted(maps.Keys(names))
	if more := len(all) - few; more > 0 {
		return fmt.Sprintf("%s, and %d more", strings.Join(all[:few], ", "), more)
	}
	return strings.Join(all, ", ")
}
