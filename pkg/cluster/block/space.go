// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"fmt"
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
	sticky     []run // sticky slots: no block has them
	runs       []run // the indexes of the blocks, ascending, without overlap
}

// run is the numbers first to last.
type run struct{ first, last uint64 }

func (r run) count() int { return int(r.last - r.first + 1) }

// Space returns the blocks for a node in a rack. rack is "" in a pool without racks.
// The errors are those of Validate.
func (p Pool) Space(rack string) (Space, error) {
	f := &strict.Faults{}
	p.common(f)
	if rack != "" && !p.racked() && len(p.Spec.Racks) == 0 {
		rack = ""
	}
	s := Space{pool: p.Name, rack: rack, fabric: p.Spec.Fabric, size: p.blockSize(), quarantine: p.quarantine(&strict.Faults{})}
	s.rails = p.rails(rack, f)
	if err := f.Err(reading, p.Name); err != nil {
		return Space{}, err
	}
	p.reserve(s.rails)
	if p.Spec.Sticky != nil {
		if kept, ok := readSlots(p.Spec.Sticky.Slots); ok { // common has reported others
			s.sticky = []run{kept}
		}
	}
	s.runs = blocks(s.usable(s.open()), uint64(s.size))
	if len(s.runs) == 0 {
		return Space{}, cnierr.New(cnierr.BadConfig, reading, p.Name, "widen ranges or exclude less", "no host index is usable on all rails")
	}
	return s, nil
}

// reserve excludes the reservations.
func (p Pool) reserve(rails [][]pool.Subnet) {
	var all []netrange.Range
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
			s.Exclude = netrange.Minus(slices.Concat(s.Exclude, netrange.Clip(all, netrange.Of(s.Prefix))), nil)
		}
	}
}

// open returns the slots that pods may have of blocks.
func (s Space) open() []run {
	all := run{0, uint64(s.size)*MaxBlocks - 1}
	if len(s.sticky) == 0 {
		return []run{all}
	}
	kept := s.sticky[0]
	out := []run{{kept.last + 1, all.last}}
	if kept.first > 0 {
		out = []run{{0, kept.first - 1}, out[0]}
	}
	return out
}

// usable returns, of some slots, those that pods may have on all rails.
func (s Space) usable(slots []run) []run {
	for _, subnets := range s.rails {
		for _, subnet := range subnets {
			slots = common(slots, slotsOf(subnet))
		}
	}
	return slots
}

// slotsOf returns the slots that pods may have in a subnet, in ascending order.
func slotsOf(s pool.Subnet) []run {
	var out []run
	for _, r := range free(s) {
		out = append(out, run{slot(r.First, s.Prefix), slot(r.Last, s.Prefix)})
	}
	return out
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
func slot(a netip.Addr, p netip.Prefix) uint64 {
	b, network := a.As16(), p.Masked().Addr().As16()
	var n uint64
	for i := range b {
		if n>>56 != 0 {
			return 1<<64 - 1
		}
		n = n<<8 | uint64(b[i]^network[i])
	}
	return n
}

// at returns the address of a slot that the subnet has.
func at(n uint64, p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := len(b) - 1; n > 0; i-- {
		b[i] |= byte(n)
		n >>= 8
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// common returns the elements that are in both ascending lists.
func common(a, b []run) []run {
	var out []run
	for i, j := 0, 0; i < len(a) && j < len(b); {
		both := run{max(a[i].first, b[j].first), min(a[i].last, b[j].last)}
		if both.first <= both.last {
			out = append(out, both)
		}
		if a[i].last < b[j].last {
			i++
		} else {
			j++
		}
	}
	return out
}

// blocks returns the blocks that have at least one of the slots.
func blocks(slots []run, size uint64) []run {
	var out []run
	for _, s := range slots {
		r, end := run{s.first / size, s.last / size}, len(out)-1
		if end >= 0 && r.first <= out[end].last+1 {
			out[end].last = r.last
			continue
		}
		out = append(out, r)
	}
	return out
}

// Blocks returns how many blocks there are: those with at least one slot that
// pods may have on all rails.
func (s Space) Blocks() int { return sum(s.runs) }

// Index returns the index of block number n, from 0. Blocks without a slot for pods
// have no number.
func (s Space) Index(n int) int { return nth(s.runs, n) }

// nth returns element n, from 0, of the numbers in runs.
func nth(runs []run, n int) int {
	for _, r := range runs {
		if n < r.count() {
			return int(r.first) + n
		}
		n -= r.count()
	}
	panic(fmt.Sprintf("block: runs have no number %d more", n))
}

// Name returns the name of a block.
func (s Space) Name(index int) string {
	if s.rack != "" {
		return fmt.Sprintf("%s.%s-%d", s.pool, s.rack, index)
	}
	return fmt.Sprintf("%s-%d", s.pool, index)
}

// has says whether name is the name of a block of the space, and returns the index of
// the block.
func (s Space) has(name string) (index int, ok bool) {
	i := strings.LastIndexByte(name, '-') + 1
	index, err := strconv.Atoi(name[i:])
	if err != nil || index < 0 || s.Name(index) != name {
		return 0, false
	}
	n := uint64(index)
	return index, slices.ContainsFunc(s.runs, func(r run) bool { return r.first <= n && n <= r.last })
}

// Slots returns how many slots of a block pods may have on all rails.
func (s Space) Slots(index int) int {
	return sum(s.openOf(index))
}

// openOf returns the slots of a block that pods may have on all rails.
func (s Space) openOf(index int) []run {
	return common(s.usable([]run{s.slots(index)}), s.open())
}

// sum returns how many numbers runs has.
func sum(runs []run) int {
	n := 0
	for _, r := range runs {
		n += r.count()
	}
	return n
}

func (s Space) slots(index int) run {
	first := uint64(index) * uint64(s.size)
	return run{first, first + uint64(s.size) - 1}
}

// Hint returns the number, from 0, of the block at which a node with one of these
// addresses begins. For host number h of a rail's subnet it is block number h. So
// nodes never meet if their NICs are numbered one by one.
func (s Space) Hint(own []netip.Addr) (n int, ok bool) {
	for _, subnets := range s.rails {
		for _, subnet := range subnets {
			for _, a := range own {
				if subnet.Prefix.Contains(a) {
					return int(slot(a, subnet.Prefix) % uint64(s.Blocks())), true
				}
			}
		}
	}
	return 0, false
}

// Quarantine returns the quarantine of an address of the pool.
func (s Space) Quarantine() time.Duration { return s.quarantine }

// Rails returns what a node with these blocks may lease: a part of every subnet of
// every rail, for the node file. It ignores a block if its exclusions leave no slot
// that is free on all rails. If it ignores all blocks, the subnets have no ranges,
// and there is nothing to write. The error is BadConfig for a block of another pool,
// rack or size: blocks of two sizes overlap.
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
	slots, last := s.slots(index), slot(netrange.Of(p).Last, p)
	return netrange.Range{First: at(slots.first, p), Last: at(min(slots.last, last), p)}
}

// Check returns nil, or BadConfig for a block that is not of this space.
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
