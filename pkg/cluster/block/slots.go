// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"crypto/sha256"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// Slots is the slots of a pool in one rack that are leased one by one. A pod that
// comes back gets the same slot. The zero value has no slots.
type Slots struct {
	Pool, Rack string

	rails  [][]pool.Subnet
	all    netrange.Range
	usable []netrange.Range // the slots that pods may have on all rails, ascending, without overlap
}

// Slots returns the sticky slots of a rack. It returns none for a pool without
// sticky. rack and the errors are as in Space.
func (p Pool) Slots(rack string) (Slots, error) {
	s, err := p.Space(rack)
	return s.Kept(), err
}

// Kept returns the sticky slots, which are in no block: those of Pool.Slots.
func (s Space) Kept() Slots {
	if len(s.sticky) == 0 {
		return Slots{}
	}
	return Slots{Pool: s.pool, Rack: s.rack, rails: s.rails, all: s.sticky[0], usable: s.usable(s.sticky)}
}

// readSlots reads first-last.
func readSlots(text string) (netrange.Range, bool) {
	first, last, two := strings.Cut(text, "-")
	a, err := strconv.ParseUint(first, 10, 32)
	b, err2 := strconv.ParseUint(last, 10, 32)
	ok := two && err == nil && err2 == nil && a <= b
	return netrange.Numbers(a, b), ok
}

// Terms returns two times: how long the addresses stay reserved for a pod that is
// gone, and their quarantine before another pod may have them. It returns false for a
// pool without sticky. A value that Validate would refuse counts as the longest
// possible time.
func (p Pool) Terms() (ttl, quarantine time.Duration, ok bool) {
	if p.Spec.Sticky == nil {
		return 0, 0, false
	}
	f := &strict.Faults{}
	ttl, quarantine = p.ttl(f), p.quarantine(f)
	if f.Len() > 0 {
		return longestTTL, longestTTL, true
	}
	return ttl, quarantine, true
}

const longestTTL = 30 * 24 * time.Hour

// keeps judges sticky, but for the subnets.
func (p Pool) keeps(f *strict.Faults) {
	const path = "spec.sticky.slots"
	if p.Spec.Sticky == nil {
		return
	}
	before := f.Len()
	ttl, quarantine := p.ttl(f), p.quarantine(&strict.Faults{})
	if f.Len() == before && ttl < quarantine {
		f.Add(cnierr.BadConfig, "spec.sticky.ttl", fmt.Sprintf("write %v or more", quarantine), "%v is less than the quarantine: another pod would get addresses that are still in quarantine", ttl)
	}
	kept, ok := readSlots(p.Spec.Sticky.Slots)
	size, begin, end := uint64(p.blockSize()), netrange.ToNumber(kept.First), netrange.ToNumber(kept.Last)
	switch {
	case !ok:
		f.Add(cnierr.BadConfig, path, "write the first and the last host index, such as 1024-2047", "%q is not a range of host indexes", p.Spec.Sticky.Slots)
	case end >= size*MaxBlocks:
		f.Add(cnierr.BadConfig, path, fmt.Sprintf("write host indexes up to %d", size*MaxBlocks-1), "%d is beyond all blocks", end)
	case begin%size != 0 || (end+1)%size != 0:
		f.Add(cnierr.BadConfig, path, fmt.Sprintf("write %d-%d, or another range of whole blocks", begin/size*size, (end/size+1)*size-1), "%s begins or ends inside a block of %d host indexes", p.Spec.Sticky.Slots, size)
	}
}

// keepsIn reports the first subnet that two rails share, or that does not contain all
// of the sticky slots.
func (p Pool) keepsIn(rails [][]pool.Subnet, f *strict.Faults) {
	if p.Spec.Sticky == nil {
		return
	}
	kept, ok := readSlots(p.Spec.Sticky.Slots)
	if !ok {
		return
	}
	seen := map[netip.Prefix]bool{}
	bad := func(hint, format string, args ...any) {
		f.Add(cnierr.BadConfig, "spec.sticky.slots", hint, format, args...)
	}
	for _, s := range slices.Concat(rails...) {
		if seen[s.Prefix] {
			bad("give each rail a subnet of its own, or remove sticky", "two rails share %v: a host index has one address of it", s.Prefix)
			return
		}
		seen[s.Prefix] = true
		holds := func(r netrange.Range) bool { return kept.Within(r.Indexes(s.Prefix)) }
		if !slices.ContainsFunc(netrange.Minus(s.Ranges, nil), holds) {
			bad("write host indexes that are in all ranges of all rails", "the ranges of %v do not contain all of %s", s.Prefix, p.Spec.Sticky.Slots)
			return
		}
	}
}

func (p Pool) ttl(f *strict.Faults) time.Duration {
	return text(f, "spec.sticky.ttl", p.Spec.Sticky.TTL).Duration(time.Hour, time.Second, longestTTL)
}

// Count returns how many slots there are that pods may have on all rails.
func (s Slots) Count() int { return count(s.usable) }

// Has says whether pods may have the slot.
func (s Slots) Has(slot int) bool { return slot >= 0 && has(s.usable, uint64(slot)) }

// Name returns the name of the lease of a slot.
func (s Slots) Name(slot int) string {
	if s.Rack != "" {
		return fmt.Sprintf("%s.%s-s%d", s.Pool, s.Rack, slot)
	}
	return fmt.Sprintf("%s-s%d", s.Pool, slot)
}

// Find returns the slot of an address, and whether it is one of these slots. That is
// true also if pods may not have the slot any more.
func (s Slots) Find(a netip.Addr) (number int, ok bool) {
	for _, subnet := range slices.Concat(s.rails...) {
		if subnet.Prefix.Contains(a) {
			n := netrange.Index(a, subnet.Prefix)
			return int(netrange.ToNumber(n)), s.all.Contains(n)
		}
	}
	return 0, false
}

// Rails returns the addresses of a slot: one of every subnet of every rail. It panics
// for a slot for which Has is false.
func (s Slots) Rails(number int) [][]pool.Subnet {
	if !s.Has(number) {
		panic(fmt.Sprintf("block: pool %s has no host index %d", s.Pool, number))
	}
	out := make([][]pool.Subnet, len(s.rails))
	for i, subnets := range s.rails {
		for _, whole := range subnets {
			a := netrange.AtNumber(uint64(number), whole.Prefix)
			out[i] = append(out[i], pool.Subnet{Prefix: whole.Prefix, Gateway: whole.Gateway, Ranges: []netrange.Range{{First: a, Last: a}}})
		}
	}
	return out
}

// Order returns the slots in the order in which the pod of this name tries them. It
// uses double hashing, as nodes do for blocks. The order is always the same.
func (s Slots) Order(name string) iter.Seq[int] {
	sum := sha256.Sum256([]byte(name))
	return func(yield func(int) bool) {
		for n := range probes(sum[:16], s.Count()) {
			if !yield(nth(s.usable, n)) {
				return
			}
		}
	}
}
