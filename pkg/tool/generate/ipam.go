// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package generate

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// ipam returns what replaces the ipam object of a network. It adds the RailPool that
// it needs, and comments to d.
func (c *converter) ipam(d *Document, o object, in *fields) (any, error) {
	kind := in.str("type")
	switch kind {
	case "":
		d.note("no ipam: the pod gets an interface without an address, and so no RDMA. Add ipam.")
		return nil, nil
	case "whereabouts":
		return c.whereabouts(d, o, in)
	case "nv-ipam":
		return c.nvIPAM(d, in)
	case "spiderpool":
		return c.spiderIPAM(d, o, in.list("default_ipv4_ippool"), in.list("default_ipv6_ippool"))
	case "host-local":
		return hostLocal(d, in), nil
	}
	d.note("ipam stays: roce runs the plugin %s for addresses.", kind)
	in.done()
	return in.all, nil
}

// whereabouts reserves addresses in the cluster, for one pod at a time.
func (c *converter) whereabouts(d *Document, o object, in *fields) (any, error) {
	ranges := append([]*fields{in}, in.objects("ipRanges")...)
	comments := []string{fmt.Sprintf("%s: its whereabouts ranges. Nodes claim blocks of them, and pods start without a request to the API server.", o)}
	var subnets []block.Subnet
	for _, r := range ranges {
		if r.str("range") == "" {
			continue
		}
		s, notes, err := wherever(r)
		if err != nil {
			return nil, err
		}
		comments = append(comments, notes...)
		subnets = append(subnets, s)
	}
	if len(subnets) == 0 {
		return nil, fmt.Errorf("ipam: whereabouts has no range")
	}
	if gateway := in.str("gateway"); gateway != "" {
		subnets[0].Gateway = gateway
	}
	in.drop(d, "whereabouts")
	return c.poolIPAM(d, o.Metadata.Name, comments, subnets, in.whole("routes"))
}

func wherever(r *fields) (s block.Subnet, notes []string, err error) {
	text := r.str("range")
	first, prefix, isRange := strings.Cut(text, "-")
	if !isRange {
		prefix, first = first, ""
	}
	if s.Subnet, notes, err = subnet(prefix); err != nil {
		return s, nil, err
	}
	if isRange { // "10.0.0.5-10.0.0.9/24"
		last, _, _ := strings.Cut(prefix, "/")
		s.Ranges, notes = []string{first + "-" + last}, nil // it ends with an address, so it has host bits
	}
	if start, end := r.str("range_start"), r.str("range_end"); start != "" || end != "" {
		s.Ranges = rangeOf(netip.MustParsePrefix(s.Subnet), start, end) // subnet has checked it
	}
	for _, e := range r.list("exclude") {
		if p, err := netip.ParsePrefix(e); err == nil {
			e = p.Masked().String() // whereabouts takes a prefix with host bits, such as 10.0.0.5/30
		}
		s.Exclude = append(s.Exclude, strings.TrimSuffix(e, "/32"))
	}
	return s, notes, nil
}

// rangeOf returns a range of a subnet, of which one end may be "".
func rangeOf(p netip.Prefix, start, end string) []string {
	return []string{cmp.Or(start, p.Addr().Next().String()) + "-" + cmp.Or(end, lastHost(p).String())}
}

func lastHost(p netip.Prefix) netip.Addr {
	last := netrange.Of(p).Last
	if p.Addr().Is4() && p.Bits() < 31 {
		return last.Prev()
	}
	return last
}

// nvIPAM names a pool of NVIDIA's IPAM plugin.
func (c *converter) nvIPAM(d *Document, in *fields) (any, error) {
	name, kind := in.str("poolName"), "IPPool"
	if strings.EqualFold(in.str("poolType"), "cidrpool") {
		kind = "CIDRPool"
	}
	c.used = append(c.used, kind+" "+name)
	pool, there := c.sources[kind+" "+name]
	if !there {
		d.note("The %s %s is not in the file. Give it to --from too: the RailPool of that name is missing.", kind, name)
		return ordered{{"type", "roce-ipam"}, {"railPool", label(name)}}, nil
	}
	var notes Document
	convert := ipPool
	if kind == "CIDRPool" {
		convert = cidrPool
	}
	spec, err := convert(&notes, pool)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pool, err)
	}
	routes := pool.spec.whole("routes")
	pool.spec.drop(&notes, "nv-ipam")
	pool.spec.rest(&notes)
	used, err := c.addPool(name, notes.Comments, spec)
	return ordered{{"type", "roce-ipam"}, {"railPool", used}}.with("routes", routes), err
}

// ipPool converts a pool of which each node takes blocks.
func ipPool(d *Document, pool object) (block.PoolSpec, error) {
	s, notes, err := subnet(pool.spec.str("subnet"))
	if err != nil {
		return block.PoolSpec{}, err
	}
	out := block.Subnet{Subnet: s, Gateway: pool.spec.str("gateway"), Exclude: exclusions(pool.spec)}
	d.note("%s: blockSize replaces perNodeBlockSize. A node claims another block when it needs one.", pool)
	d.Comments = append(d.Comments, notes...)
	spec := block.PoolSpec{Rails: []block.Rail{{Subnets: []block.Subnet{out}}}}
	if size := pool.spec.number("perNodeBlockSize"); size != 0 {
		spec.BlockSize = powerOfTwo(size)
		if spec.BlockSize != size {
			d.note("blockSize: perNodeBlockSize was %d. A block is a power of two, so a node claims %d addresses at a time.", size, spec.BlockSize)
		}
	}
	return spec, nil
}

func exclusions(in *fields) (out []string) {
	for _, e := range in.objects("exclusions") {
		out = append(out, e.str("startIP")+"-"+e.str("endIP"))
	}
	return out
}

// cidrPool converts a pool that gives each node a subnet of its own: the nodes become racks.
// The subnets are those that the pool names, and those that nodes have by now.
func cidrPool(d *Document, pool object) (block.PoolSpec, error) {
	d.note("%s: each node has a subnet of its own, so each is a rack. A node that joins needs an entry in spec.racks first.", pool)
	index, all, each := pool.spec.number("gatewayIndex"), exclusions(pool.spec), pool.spec.objects("perNodeExclusions")
	pool.spec.drop(d, "CIDRPool")
	spec := block.PoolSpec{RackLabel: "kubernetes.io/hostname"}
	for _, n := range append(pool.spec.objects("staticAllocations"), pool.status.objects("allocations")...) {
		node, prefix, gateway := n.str("nodeName"), n.str("prefix"), n.str("gateway")
		if node == "" || slices.ContainsFunc(spec.Racks, func(r block.Rack) bool { return r.Name == node }) {
			continue
		}
		p, err := netip.ParsePrefix(prefix)
		if err != nil {
			return spec, fmt.Errorf("node %s: %w", node, err)
		}
		if gateway == "" && index > 0 {
			gateway = netrange.AtNumber(uint64(index), p).String()
		}
		s := block.Subnet{Subnet: p.Masked().String(), Gateway: gateway, Exclude: within(p.Masked(), all)}
		for _, e := range each {
			first, last := netrange.AtNumber(uint64(e.number("startIndex")), p), netrange.AtNumber(uint64(e.number("endIndex")), p)
			s.Exclude = append(s.Exclude, netrange.Range{First: first, Last: last}.String())
		}
		spec.Racks = append(spec.Racks, block.Rack{Name: node, Rails: []block.Rail{{Subnets: []block.Subnet{s}}}})
	}
	if len(spec.Racks) == 0 {
		return spec, errors.New("it names no subnet of a node. Give it to --from with its status (kubectl get cidrpools -A -o yaml), which has the subnets that nodes have")
	}
	return spec, nil
}

// within returns what of ranges is in a subnet. A text that is no range stays, for the check of
// the RailPool.
func within(p netip.Prefix, ranges []string) (out []string) {
	for _, text := range ranges {
		r, err := netrange.Parse(text)
		if err != nil {
			out = append(out, text)
			continue
		}
		for _, part := range netrange.Clip([]netrange.Range{r}, netrange.Of(p)) {
			out = append(out, part.String())
		}
	}
	return out
}

// hostLocal leases addresses of one node, and so does roce-ipam without a RailPool.
func hostLocal(d *Document, in *fields) any {
	var subnets []ordered
	for _, r := range append([]*fields{in}, in.objects("ranges")...) {
		text := r.str("subnet")
		if text == "" {
			continue
		}
		one := ordered{{"subnet", text}}
		start, end := r.str("rangeStart"), r.str("rangeEnd")
		if p, err := netip.ParsePrefix(text); err == nil && (start != "" || end != "") {
			one = append(one, member{"ranges", rangeOf(p.Masked(), start, end)})
		}
		subnets = append(subnets, one.with("gateway", r.str("gateway")))
	}
	d.note("ipam: host-local becomes a pool of the node. Give each node ranges of its own, or let the nodes share a RailPool.")
	in.drop(d, "host-local")
	return ordered{{"type", "roce-ipam"}, {"subnets", subnets}}.with("routes", in.whole("routes"))
}

// poolIPAM adds a RailPool with one rail, and returns the ipam object that uses it.
func (c *converter) poolIPAM(d *Document, name string, comments []string, subnets []block.Subnet, routes any) (any, error) {
	spec := block.PoolSpec{Rails: []block.Rail{{Subnets: subnets}}}
	if n := addresses(subnets); n > 0 {
		spec.BlockSize = blockSize(n)
		if spec.BlockSize != 0 {
			comments = append(comments, fmt.Sprintf("blockSize: %d addresses are few, so the blocks are smaller than the usual %d.", n, block.DefaultSize))
		}
	}
	used, err := c.addPool(name, comments, spec)
	if err != nil {
		return nil, err
	}
	d.note("ipam: the RailPool %s.", used)
	return ordered{{"type", "roce-ipam"}, {"railPool", used}}.with("routes", routes), nil
}

// blockSize returns a size of blocks that lets at least 32 nodes have one; 0 is the
// default.
func blockSize(addresses uint64) int {
	size := block.DefaultSize
	for size > 1 && addresses < uint64(32*size) {
		size /= 2
	}
	if size == block.DefaultSize {
		return 0
	}
	return size
}

// powerOfTwo returns the largest power of two that is at most n.
func powerOfTwo(n int) int {
	size := 1
	for size*2 <= n && size < block.MaxSize {
		size *= 2
	}
	return size
}

// addresses counts the addresses of the smallest subnet, 0 if they cannot be counted.
func addresses(subnets []block.Subnet) uint64 {
	smallest := uint64(1 << 32)
	for _, s := range subnets {
		texts := s.Ranges
		if len(texts) == 0 {
			texts = []string{s.Subnet}
		}
		var ranges []netrange.Range
		for _, t := range texts {
			r, err := netrange.Parse(t)
			if err != nil {
				return 0
			}
			ranges = append(ranges, r)
		}
		if n := netrange.Count(ranges); n.IsUint64() {
			smallest = min(smallest, n.Uint64())
		}
	}
	return smallest
}

// subnet returns a prefix without host bits, and a comment if it had some.
func subnet(text string) (out string, notes []string, err error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return "", nil, fmt.Errorf("subnet %q: %w", text, err)
	}
	if p != p.Masked() {
		notes = []string{fmt.Sprintf("subnet: %s was written %s. If the prefix length is wrong, correct it here.", p.Masked(), text)}
	}
	return p.Masked().String(), notes, nil
}
