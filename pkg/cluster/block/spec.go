// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

const reading = "read RailPool"

// sampleRacks is how many racks Validate looks at in a pool with {rack}, because it
// cannot know which racks exist.
const sampleRacks = 256

// Validate returns nil or BadConfig, which joins all faults, each with its path in the
// object. Of a pool with {rack}, it checks rack 1, and that the racks 0 to 255 have subnets
// of their own. Space checks the node's rack.
func (p Pool) Validate() error {
	f := &strict.Faults{}
	p.common(f)
	switch {
	case len(p.Spec.Racks) > 0:
		p.table(f)
	case p.racked():
		p.rails("1", f)
		if f.Len() == 0 {
			p.apart("spec", p.prefixes(p.racks()), f)
		}
	default:
		p.rails("", f)
	}
	return f.Err(reading, p.Name)
}

// common checks everything but the subnets.
func (p Pool) common(f *strict.Faults) {
	s := p.Spec
	if !label(p.Name) {
		f.Add(cnierr.BadConfig, "metadata.name", "use 1 to 40 lower-case letters, digits and -", "%q cannot be the first part of a block's name", p.Name)
	}
	if s.BlockSize < 0 || s.BlockSize > MaxSize {
		f.Add(cnierr.BadConfig, "spec.blockSize", "16 is right for 8 pods on a node", "%d is not in 1 to %d", s.BlockSize, MaxSize)
	}
	if s.MaxBlocksPerNode < 0 || s.MaxBlocksPerNode > MaxBlocks {
		f.Add(cnierr.BadConfig, "spec.maxBlocksPerNode", "leave it out for no limit", "%d is not in 1 to %d", s.MaxBlocksPerNode, MaxBlocks)
	}
	if s.Fabric != "" && !label(s.Fabric) {
		f.Add(cnierr.BadConfig, "spec.fabric", "use 1 to 40 lower-case letters, digits and -", "%q is not the name of a network", s.Fabric)
	}
	sources := 0
	for _, there := range []bool{len(s.Rails) > 0, s.Template != nil, len(s.Racks) > 0} {
		if there {
			sources++
		}
	}
	if sources != 1 {
		f.Add(cnierr.BadConfig, "spec", "write one of rails, template and racks", "%d of them define the subnets", sources)
	}
	byRack := len(s.Racks) > 0 || p.racked()
	if byRack && s.RackLabel == "" {
		f.Add(cnierr.BadConfig, "spec.rackLabel", "name the node label that contains the rack", "missing, although the subnets differ by rack")
	}
	if !byRack && s.RackLabel != "" {
		f.Add(cnierr.BadConfig, "spec.rackLabel", "remove it, or write {rack} in the subnets", "has no effect: the subnets are the same in every rack")
	}
	p.quarantine(f)
	p.stickyTerms(f)
	p.reservations(f)
}

// blockSize is how many slots a block has.
func (p Pool) blockSize() int {
	if p.Spec.BlockSize == 0 {
		return DefaultSize
	}
	return p.Spec.BlockSize
}

func (p Pool) quarantine(f *strict.Faults) time.Duration {
	if p.Spec.Quarantine == "" {
		return pool.StandardQuarantine
	}
	return pool.Quarantine(text(f, "spec.quarantine", p.Spec.Quarantine))
}

// table checks the rails of all racks: no two racks may share an address.
func (p Pool) table(f *strict.Faults) {
	var all []named
	for i, r := range p.Spec.Racks {
		path := fmt.Sprintf("spec.racks[%d]", i)
		if !label(r.Name) {
			f.Add(cnierr.BadConfig, path+".name", "use 1 to 40 lower-case letters, digits and -", "%q cannot be a part of a block's name", r.Name)
		}
		if slices.IndexFunc(p.Spec.Racks, func(o Rack) bool { return o.Name == r.Name }) < i {
			f.Add(cnierr.BadConfig, path+".name", "keep one of the two", "rack %q appears twice", r.Name)
		}
		for _, subnets := range p.rails(r.Name, f) {
			for _, s := range subnets {
				all = append(all, named{s.Prefix, r.Name})
			}
		}
	}
	p.apart("spec.racks", all, f)
}

// named is a subnet and the rack that has it.
type named struct {
	prefix netip.Prefix
	rack   string
}

// apart reports the first two racks that share addresses.
func (p Pool) apart(path string, all []named, f *strict.Faults) {
	slices.SortStableFunc(all, func(a, b named) int { return a.prefix.Addr().Compare(b.prefix.Addr()) })
	for i := 1; i < len(all); i++ {
		// Prefixes are nested or apart, and those of one rack equal or apart. So a clash shows
		// between neighbours.
		a, b := all[i-1], all[i]
		if a.rack != b.rack && a.prefix.Overlaps(b.prefix) {
			f.Add(cnierr.BadConfig, path, "give each rack its own subnets", "%s of rack %q overlaps %s of rack %q", b.prefix, b.rack, a.prefix, a.rack)
			return
		}
	}
}

// racked says whether the subnets have {rack}.
func (p Pool) racked() bool {
	raw := string(marshal([]any{p.Spec.Rails, p.Spec.Template}))
	return len(p.Spec.Racks) == 0 && strings.Contains(raw, "{rack")
}

// rails returns the subnets of each rail in a rack, nil if one has a fault.
func (p Pool) rails(rack string, f *strict.Faults) [][]pool.Subnet {
	before := f.Len()
	p.alike(f)
	places, values := p.lists(rack, f)
	if n := len(values); f.Len() == before && (n == 0 || n > pool.MaxRails) {
		f.Add(cnierr.BadConfig, "spec", "write an entry for each rail", "want 1 to %d rails, got %d", pool.MaxRails, n)
	}
	out := make([][]pool.Subnet, 0, len(values))
	for i, v := range values {
		if i == 0 || places[i] != places[i-1] { // a template has one list for all rails
			pool.Braces(v, true)
		}
		out = append(out, pool.Subnets(v, i, f))
	}
	if f.Len() == before {
		pool.Apart(out, places, f)
		p.stickySlots(out, f)
	}
	if f.Len() != before {
		return nil
	}
	return out
}

// lists returns the subnets of each rail with the number of the rack, and their paths in the
// object.
func (p Pool) lists(rack string, f *strict.Faults) (places []string, values []strict.Value) {
	add := func(place string, subnets []Subnet, number int) {
		raw := marshal(append([]Subnet{}, subnets...)) // a list, even if it is empty
		if number >= 0 {
			raw = []byte(inRack(string(raw), number))
		}
		places, values = append(places, place), append(values, f.ValueAt(place, raw))
	}
	for i, r := range p.Spec.Racks {
		if r.Name != rack {
			continue
		}
		if len(r.Rails) == 0 {
			f.Add(cnierr.BadConfig, fmt.Sprintf("spec.racks[%d].rails", i), "write an entry for each rail", "no rail")
		}
		for j, rail := range r.Rails {
			add(fmt.Sprintf("spec.racks[%d].rails[%d].subnets", i, j), rail.Subnets, -1)
		}
		return places, values
	}
	if len(p.Spec.Racks) > 0 {
		f.Add(cnierr.BadConfig, "spec.racks", fmt.Sprintf("add the rack, or correct the node's label %q", p.Spec.RackLabel), "the node's rack %q is not in the pool", rack)
		return nil, nil
	}
	number := -1
	if p.racked() {
		n, err := strconv.ParseUint(rack, 10, 16)
		if err != nil || strconv.FormatUint(n, 10) != rack { // 07 would be rack 7 under another name
			f.Add(cnierr.BadConfig, "spec.rackLabel", fmt.Sprintf("label the node with the number of its rack: %s=7", p.Spec.RackLabel), "the node's rack %q is not a number", rack)
			return nil, nil
		}
		number = int(n)
	}
	for i, rail := range p.Spec.Rails {
		add(fmt.Sprintf("spec.rails[%d].subnets", i), rail.Subnets, number)
	}
	if t := p.Spec.Template; t != nil {
		if t.Count < 1 || t.Count > pool.MaxRails {
			f.Add(cnierr.BadConfig, "spec.template.count", "write how many rails a node has", "%d is not in 1 to %d", t.Count, pool.MaxRails)
		}
		for range min(t.Count, pool.MaxRails) {
			add("spec.template.subnets", t.Subnets, number)
		}
	}
	return places, values
}

// inRack replaces {rack}, {rack+1} and so on, and leaves the placeholders for the rail.
func inRack(s string, rack int) string {
	const hidden = "{\x00" // meanwhile; neither JSON nor a subnet has this character
	s = strings.ReplaceAll(strings.ReplaceAll(s, "{rail", hidden), "{rack", "{rail")
	return strings.ReplaceAll(pool.Expand(s, rack), hidden, "{rail")
}

// label says whether s can be a part of the name of a block. Such a name must be a
// DNS subdomain (RFC 1123) of at most 253 characters, with parts of at most 63.
func label(s string) bool {
	return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`).MatchString(s)
}

// text returns a string as a value that was read.
func text(f *strict.Faults, path, s string) strict.Value { return f.ValueAt(path, marshal(s)) }

// marshal writes our own plain types, which have a JSON form.
func marshal(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("block: " + err.Error())
	}
	return b
}
