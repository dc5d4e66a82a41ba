// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package clerk

import (
	"time"

	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/nodefile"
	"github.com/roce-cni/roce-cni/pkg/ipam/ledger"
)

// trace is what the leases tell of who has used an answer: that it has an address, or
// when it has given one back, not later than it did. So a pod is known that lived
// between two looks.
type trace struct {
	leased bool
	freed  time.Duration
}

func (t trace) and(o trace) trace { return trace{t.leased || o.leased, max(t.freed, o.freed)} }

// traces are by slot, for those that are kept, and by owner for other addresses.
type traces struct {
	slots  map[int]trace
	owners map[nodefile.Key]trace
}

// traces reads the leases that were seen last, if they were seen.
func (c *Clerk) traces(slots block.Slots) (traces, bool) {
	now := c.Clock.Now()
	entries, since, fresh := c.Seen()
	out := traces{map[int]trace{}, map[nodefile.Key]trace{}}
	for _, e := range entries {
		var t trace
		switch {
		case !e.Of(c.Pool), e.State == ledger.Conflicted: // that address nobody has used
			continue
		case e.State == ledger.Leased:
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

// of returns the trace of who has used an answer.
func (t traces) of(slots block.Slots, a nodefile.Answer) trace {
	if !a.Granted() {
		return t.owners[a.Key]
	}
	return t.slots[slotOf(slots, a)]
}
