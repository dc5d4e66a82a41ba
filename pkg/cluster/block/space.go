// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"crypto/sha256"
	"fmt"
	"iter"
	"math"
	"math/big"
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

// Space is the blocks of a pool that the nodes of one rack share. A slot is the host
// index of an address. Block i has the slots from i x size on, including slots that
// must not be leased. So a block stays the same when the pool gets more exclusions.
type Space struct {
	pool, rack string
	fabric     string
	size       int
	quarantine time.Duration
	rails      [][]pool.Subnet
	reserved   int
	sticky     []netrange.Range // sticky slots: no block has them
	ordinary   []netrange.Range // the slots of blocks that pods may have on all rails
	blocks     []netrange.Range // the indexes of the blocks, ascending, without overlap
}

// Space returns the blocks for a node in a rack. rack is "" in a pool without racks.
// The errors are those of Validate.
func (p Pool) Space(rack string) (Space, error) {
	f := &strict.Faults{}
	p.common(f)
	if !p.racked() && len(p.Spec.Racks) == 0 {
		rack = ""
	}
	s := Space{pool: p.Name, rack: rack, fabric: p.Spec.Fabric, size: p.blockSize(), quarantine: p.quarantine(&strict.Faults{})}
	s.rails = p.rails(rack, f)
	if err := f.Err(reading, p.Name); err != nil {
		return Space{}, err
	}
	s.reserved = p.reserve(s.rails)
	if p.Spec.Sticky != nil {
		if kept, ok := readSlots(p.Spec.Sticky.Slots); ok { // common has reported others
			s.sticky = []netrange.Range{kept}
		}
	}
	s.ordinary = s.usable(netrange.Minus([]netrange.Range{netrange.Numbers(0, uint64(s.size)*MaxBlocks-1)}, s.sticky))
	s.blocks = s.with(s.ordinary)
	if len(s.blocks) == 0 {
		return Space{}, cnierr.New(cnierr.BadConfig, reading, p.Name, "widen ranges or exclude less", "no host index is usable on all rails")
	}
	return s, nil
}

// Room says for how many nodes and pods the pool has addresses, for people. What cuts a
// block, such as a gateway, leaves its node fewer pods. Errors: as Validate.
func (p Pool) Room() (string, error) {
	racks, where := p.racks(), ""
	switch {
	case len(p.Spec.Racks) > 0:
		where = fmt.Sprintf(", in %d racks", len(racks))
	case p.racked():
		racks, where = []string{"1"}, ", in each rack"
	}
	whole, cut, pods := 0, 0, 0
	for _, rack := range racks {
		s, err := p.Space(rack)
		if err != nil {
			return "", err
		}
		n := s.whole()
		whole, cut, pods = whole+n, cut+s.Blocks()-n, pods+s.Total()
	}
	text := fmt.Sprintf("room for %s of %s", counted(whole, "node"), counted(p.blockSize(), "pod"))
	if cut > 0 {
		text += fmt.Sprintf(" and for %d with fewer, %s in all", cut, counted(pods, "pod"))
	}
	return text + where, nil
}

// counted returns "1 pod" or "2 pods".
func counted(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// reserve excludes the reservations, and returns how many addresses they have.
func (p Pool) reserve(rails [][]pool.Subnet) int {
	var all, kept []netrange.Range
	for _, r := range p.Spec.Reservations {
		for _, s := range r.Ranges {
			if one, err := netrange.Parse(s); err == nil { // common has reported others
				all = append(all, one)
			}
		}
	}
	for _, subnets := range rails {
		for i := range subnets {
			s := &subnets[i]
			here := netrange.Clip(all, netrange.Of(s.Prefix))
			s.Exclude, kept = netrange.Minus(slices.Concat(s.Exclude, here), nil), append(kept, here...)
		}
	}
	n := netrange.Count(netrange.Minus(kept, nil))
	if !n.IsInt64() {
		return math.MaxInt
	}
	return int(n.Int64())
}

// usable returns, of some slots, those that pods may have on all rails.
func (s Space) usable(slots []netrange.Range) []netrange.Range {
	for _, subnet := range slices.Concat(s.rails...) {
		var own []netrange.Range
		for _, r := range free(subnet) {
			own = append(own, r.Indexes(subnet.Prefix))
		}
		slots = netrange.Common(slots, own)
	}
	return slots
}

// free returns the addresses of a subnet that pods may have, in ascending order.
func free(s pool.Subnet) []netrange.Range {
	holes := slices.Clone(s.Exclude)
	for a := range netrange.Unusable(s.Prefix) {
		holes = append(holes, netrange.Range{First: a, Last: a})
	}
	if s.Gateway.IsValid() {
		holes = append(holes, netrange.Range{First: s.Gateway, Last: s.Gateway})
	}
	return netrange.Minus(s.Ranges, holes)
}

// slot returns the host index of an address. If that is too high for the type, it
// returns the highest number, which is beyond all blocks.
func slot(a netip.Addr, p netip.Prefix) uint64 { return netrange.ToNumber(netrange.Index(a, p)) }

// with returns the blocks that have at least one of the slots.
func (s Space) with(slots []netrange.Range) []netrange.Range {
	var out []netrange.Range
	for _, r := range slots {
		out = append(out, netrange.Numbers(netrange.ToNumber(r.First)/uint64(s.size), netrange.ToNumber(r.Last)/uint64(s.size)))
	}
	return netrange.Minus(out, nil)
}

// Blocks returns how many blocks there are: those with at least one slot that
// pods may have on all rails.
func (s Space) Blocks() int { return count(s.blocks) }

// whole returns how many blocks have all of their slots.
func (s Space) whole() (n int) {
	size := uint64(s.size)
	for _, r := range s.ordinary {
		first, end := (netrange.ToNumber(r.First)+size-1)/size, (netrange.ToNumber(r.Last)+1)/size
		n += int(max(first, end) - first)
	}
	return n
}

// Index returns the index of block number n, from 0. Blocks without a slot for pods
// have no number.
func (s Space) Index(n int) int { return nth(s.blocks, n) }

func count(numbers []netrange.Range) int { return int(netrange.Count(numbers).Int64()) }

// nth returns element n, from 0, of numbers.
func nth(numbers []netrange.Range, n int) int {
	a := netrange.At(numbers, big.NewInt(int64(n)))
	if !a.IsValid() {
		panic(fmt.Sprintf("block: there are not %d numbers", n+1))
	}
	return int(netrange.ToNumber(a))
}

// Name returns the name of a block.
func (s Space) Name(index int) string { return join(s.pool, s.rack) + "-" + strconv.Itoa(index) }

func join(pool, rack string) string {
	if rack == "" {
		return pool
	}
	return pool + "." + rack
}

// has returns the index of the block of that name, if the space has it.
func (s Space) has(name string) (index int, ok bool) {
	i := strings.LastIndexByte(name, '-') + 1
	index, err := strconv.Atoi(name[i:])
	if err != nil || index < 0 || s.Name(index) != name {
		return 0, false
	}
	return index, has(s.blocks, uint64(index))
}

func has(numbers []netrange.Range, n uint64) bool {
	return netrange.Has(numbers, netrange.Numbers(n, n).First)
}

// Slots returns how many slots of a block pods may have on all rails.
func (s Space) Slots(index int) int { return count(s.openOf(index)) }

// openOf returns the slots of a block that pods may have on all rails.
func (s Space) openOf(index int) []netrange.Range {
	return netrange.Common(s.ordinary, []netrange.Range{s.slots(index)})
}

func (s Space) slots(index int) netrange.Range {
	first := uint64(index) * uint64(s.size)
	return netrange.Numbers(first, first+uint64(s.size)-1)
}

// Hint returns the number, from 0, of the block at which a node with one of these addresses
// begins: h for host h of a subnet. So nodes with NICs that are numbered never meet.
func (s Space) Hint(own []netip.Addr) (n int, ok bool) {
	for _, subnet := range slices.Concat(s.rails...) {
		for _, a := range own {
			if subnet.Prefix.Contains(a) {
				return int(slot(a, subnet.Prefix) % uint64(s.Blocks())), true
			}
		}
	}
	return 0, false
}

// Quarantine returns the quarantine of an address of the pool.
func (s Space) Quarantine() time.Duration { return s.quarantine }

// Rails returns what a node with these blocks may lease: a part of every subnet of every
// rail, for the node file. It ignores a block without a slot that is free on all rails; if
// it ignores all, the subnets have no ranges. The error is that of Check.
func (s Space) Rails(owned []Block) ([][]pool.Subnet, error) {
	for _, b := range owned {
		if err := s.Check(b); err != nil {
			return nil, err
		}
	}
	out := make([][]pool.Subnet, len(s.rails))
	for i, subnets := range s.rails {
		for _, whole := range subnets {
			part := pool.Subnet{Prefix: whole.Prefix, Gateway: whole.Gateway}
			for _, b := range owned {
				if _, open := s.has(b.Name); open {
					part.Ranges = append(part.Ranges, netrange.Clip(whole.Ranges, s.slice(b.Spec.Index, whole.Prefix))...)
				}
			}
			part.Ranges = netrange.Minus(part.Ranges, nil)
			part.Exclude = netrange.Common(whole.Exclude, part.Ranges)
			out[i] = append(out[i], part)
		}
	}
	return out, nil
}

// slice returns the addresses of a block in a subnet. The subnet must have the first
// address of the block.
func (s Space) slice(index int, p netip.Prefix) netrange.Range {
	part := netrange.Clip([]netrange.Range{s.slots(index)}, netrange.Of(p).Indexes(p))[0]
	return netrange.Range{First: netrange.AtIndex(part.First, p), Last: netrange.AtIndex(part.Last, p)}
}

// Check returns nil, or BadConfig for a block of another pool, rack or size.
func (s Space) Check(b Block) error {
	if b.Spec.Pool != s.pool || b.Spec.Rack != s.rack || b.Name != s.Name(b.Spec.Index) {
		return cnierr.New(cnierr.BadConfig, "use block", b.Name,
			"correct the rack label of the node; if the node has moved and no pod has addresses of the old rack: kubectl delete railblock "+b.Name,
			"it belongs to pool %q and rack %q, but the node is in rack %q of pool %q", b.Spec.Pool, b.Spec.Rack, s.rack, s.pool)
	}
	if b.Spec.Size != s.size {
		return cnierr.New(cnierr.BadConfig, "use block", b.Name, fmt.Sprintf("create RailPool %q again with its old blockSize %d; for another size, create a pool of another name", s.pool, b.Spec.Size),
			"it has %d host indexes, the blocks of the pool have %d: they would overlap", b.Spec.Size, s.size)
	}
	return nil
}

// Find returns the block and the slot of an address, whether pods may have it or not. ok is
// false for an address that is in no block.
func (s Space) Find(a netip.Addr) (index, number int, ok bool) {
	for _, subnets := range s.rails {
		for i := range subnets {
			if p := subnets[i].Prefix; p.Contains(a) {
				if n := slot(a, p); n < uint64(s.size)*MaxBlocks {
					return int(n) / s.size, int(n), true
				}
			}
		}
	}
	return 0, 0, false
}

// Open returns the slots of a block that pods may have on all rails.
func (s Space) Open(index int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, r := range s.openOf(index) {
			for n := netrange.ToNumber(r.First); n <= netrange.ToNumber(r.Last); n++ {
				if !yield(int(n)) {
					return
				}
			}
		}
	}
}

// Recorded returns the blocks that a node had when Rails returned this, without UIDs, and
// without those that have nothing to lease.
func (s Space) Recorded(node Node, rails [][]pool.Subnet) []Block {
	var indices []int
	for _, subnets := range rails {
		for _, subnet := range subnets {
			for _, r := range subnet.Ranges {
				first, _, ok := s.Find(r.First)
				last, _, too := s.Find(r.Last)
				for i := first; ok && too && i <= last; i++ {
					indices = append(indices, i)
				}
			}
		}
	}
	slices.Sort(indices)
	var out []Block
	for _, i := range slices.Compact(indices) {
		out = append(out, Block{Name: s.Name(i), Spec: Spec{
			Pool: s.pool, Rack: s.rack, Index: i, Size: s.size, Owner: node.Owner(),
		}})
	}
	return out
}

// Reserved returns how many addresses reservations keep from pods.
func (s Space) Reserved() int { return s.reserved }

// Total returns how many slots pods may have on all rails, in all blocks.
func (s Space) Total() int { return count(s.ordinary) }

// Slots is the sticky slots of a pool in one rack, which are leased one by one. The zero
// value has none.
type Slots struct {
	Pool, Rack string

	rails  [][]pool.Subnet
	all    netrange.Range
	usable []netrange.Range // the slots that pods may have on all rails, ascending, without overlap
}

// Slots returns the sticky slots of a rack. Rack and errors are as in Space.
func (p Pool) Slots(rack string) (Slots, error) {
	s, err := p.Space(rack)
	return s.Sticky(), err
}

// Sticky returns the sticky slots, which are in no block.
func (s Space) Sticky() Slots {
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

// Terms returns how long the addresses stay reserved for a pod that is gone, and their
// quarantine after that; false for a pool without sticky. A value that Validate would refuse
// counts as the longest time.
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

// stickyTerms judges sticky, but for the subnets.
func (p Pool) stickyTerms(f *strict.Faults) {
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

// stickySlots reports the first subnet that two rails share, or that lacks a sticky slot.
func (p Pool) stickySlots(rails [][]pool.Subnet, f *strict.Faults) {
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
func (s Slots) Name(slot int) string { return join(s.Pool, s.Rack) + "-s" + strconv.Itoa(slot) }

// Find returns the slot of an address, and whether it is one of these, also if pods may not
// have it any more.
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

// Order returns the slots in the order in which the pod of this name tries them, which is
// always the same: by double hashing, as for blocks.
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
