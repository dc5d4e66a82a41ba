// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package grant

import (
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// usage is what the leases tell about the pod that used an answer: that it has an
// address, or when it released one (this time is never too late). So the agent knows
// also a pod that lived only between two looks.
type usage struct {
	leased bool
	freed  time.Duration
}

func (t usage) and(o usage) usage { return usage{t.leased || o.leased, max(t.freed, o.freed)} }

// usages are by slot for sticky addresses, and by owner for other addresses.
type usages struct {
	slots  map[int]usage
	owners map[nodefile.Key]usage
}

// usages reads the leases of the last look, if there was one.
func (c *Controller) usages(slots block.Slots) (usages, bool) {
	now := c.Clock.Now()
	entries, since, fresh := c.Seen()
	out := usages{map[int]usage{}, map[nodefile.Key]usage{}}
	for _, e := range entries {
		var t usage
		switch {
		case !e.Of(pool.OfRailPool(c.Pool)), e.State == ledger.Conflicted: // no pod has used that address
			continue
		case e.InUse():
			t.leased = true
		default:
			t.freed = now - since - e.Age
		}
		if slot, kept := slots.Find(e.Addr); kept {
			out.slots[slot] = out.slots[slot].and(t)
			continue
		}
		k := nodefile.Key{Namespace: e.Owner.PodNamespace, Pod: e.Owner.PodName, Interface: e.Owner.IfName}
		out.owners[k] = out.owners[k].and(t)
	}
	return out, fresh
}

// of returns the usage of an answer.
func (t usages) of(slots block.Slots, a nodefile.Answer) usage {
	if !a.Granted() {
		return t.owners[a.Key]
	}
	return t.slots[slotOf(slots, a)]
}
