// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package generate

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// ipam returns what replaces the ipam object of a network. It adds the RailPool that
// it needs, and comments to d.
func (c *converter) ipam(d *Document, o object, in map[string]any) (any, error) {
	kind := str(in, "type")
	switch kind {
	case "":
		d.note("no ipam: the pod gets an interface without an address, and so no RDMA. Add ipam.")
		return nil, nil
	case "whereabouts":
		return c.whereabouts(d, o, in)
	case "nv-ipam":
		return c.nvIPAM(d, in)
	case "spiderpool":
		return c.spiderIPAM(d, o, list(in, "default_ipv4_ippool"), list(in, "default_ipv6_ippool"))
	case "host-local":
		return hostLocal(d, in), nil
	}
	d.note("ipam stays: roce runs the plugin %s for addresses.", kind)
	return in, nil
}

// whereabouts reserves addresses in the cluster, for one pod at a time.
func (c *converter) whereabouts(d *Document, o object, in map[string]any) (any, error) {
	ranges := []map[string]any{in}
	for _, r := range anys(in, "ipRanges") {
		if m, ok := r.(map[string]any); ok {
			ranges = append(ranges, m)
		}
	}
	comments := []string{fmt.Sprintf("%s: its whereabouts ranges. Nodes claim blocks of them, and pods start without a request to the API server.", o)}
	var subnets []block.Subnet
	for _, r := range ranges {
		if str(r, "range") == "" {
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
	if gateway := str(in, "gateway"); gateway != "" {
		subnets[0].Gateway = gateway
	}
	noteDropped(d, "ipam.", in, map[string]string{
		"datastore": "the addresses are in RailPools", "kubernetes": "the plugin opens no connection", "etcd_host": "the addresses are in RailPools",
		"log_file": "`log` of roce is for all of it", "log_level": "`log` of roce is for all of it", "configuration_path": "there is no such file",
		"network_name": "use RailPools with different names", "leader_lease_duration": "there is no leader", "leader_renew_deadline": "there is no leader",
		"leader_retry_period": "there is no leader", "node_slice_size": "spec.blockSize of the RailPool", "overlapping_ranges": "networks may share a RailPool",
		"enable_overlapping_ranges": "networks may share a RailPool", "sleep_for_race": "there is no race",
	})
	return c.poolIPAM(d, o.Metadata.Name, comments, subnets, in["routes"])
}

// wherever converts one range of whereabouts.
func wherever(r map[string]any) (s block.Subnet, notes []string, err error) {
	text := str(r, "range")
	first, prefix, isRange := strings.Cut(text, "-")
	if !isRange {
		prefix, first = first, ""
	}
	if s.Subnet, notes, err = subnet(prefix); err != nil {
		return s, nil, err
	}
	if isRange { // "10.0.0.5-10.0.0.9/24"
		last, _, _ := strings.Cut(prefix, "/")
		s.Ranges = []string{first + "-" + last}
	}
	start, end := str(r, "range_start"), str(r, "range_end")
	if start != "" || end != "" {
		p := netip.MustParsePrefix(s.Subnet) // subnet has checked it
		if start == "" {
			start = p.Addr().Next().String()
		}
		if end == "" {
			end = lastHost(p).String()
		}
		s.Ranges = []string{start + "-" + end}
	}
	for _, e := range anys(r, "exclude") {
		s.Exclude = append(s.Exclude, strings.TrimSuffix(fmt.Sprint(e), "/32"))
	}
	return s, notes, nil
}

func lastHost(p netip.Prefix) netip.Addr {
	last := netrange.Of(p).Last
	if p.Addr().Is4() && p.Bits() < 31 {
		return last.Prev()
	}
	return last
}

// nvIPAM names a pool of NVIDIA's IPAM plugin.
func (c *converter) nvIPAM(d *Document, in map[string]any) (any, error) {
	name, kind := str(in, "poolName"), "IPPool"
	if strings.EqualFold(str(in, "poolType"), "cidrpool") {
		kind = "CIDRPool"
	}
	c.used = append(c.used, kind+" "+name)
	pool, there := c.sources[kind+" "+name]
	switch {
	case kind == "CIDRPool":
		d.note("The CIDRPool %s gives each node a subnet of its own: write it as spec.racks of a RailPool, or use ipam.fromMaster if the NICs have "+
			"addresses in these subnets (docs/configuration.md). The ipam below is the second.", name)
		return ordered{{"type", "roce-ipam"}, {"fromMaster", true}, {"gateway", "first"}}, nil
	case !there:
		d.note("The IPPool %s is not in the file. Give it to --from too: the RailPool of that name is missing.", name)
		return ordered{{"type", "roce-ipam"}, {"railPool", label(name)}}, nil
	}
	s, notes, err := subnet(str(pool.Spec, "subnet"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pool, err)
	}
	out := block.Subnet{Subnet: s, Gateway: str(pool.Spec, "gateway")}
	for _, e := range anys(pool.Spec, "exclusions") {
		if m, ok := e.(map[string]any); ok {
			out.Exclude = append(out.Exclude, str(m, "startIP")+"-"+str(m, "endIP"))
		}
	}
	spec := block.PoolSpec{Rails: []block.Rail{{Subnets: []block.Subnet{out}}}}
	comments := append([]string{pool.String() + ": blockSize replaces perNodeBlockSize. A node claims another block when it needs one."}, notes...)
	if size, ok := pool.Spec["perNodeBlockSize"].(float64); ok {
		spec.BlockSize = powerOfTwo(int(size))
	}
	if pool.Spec["nodeSelector"] != nil {
		comments = append(comments, "Dropped: nodeSelector. Write its labels as spec.nodeSelector.")
	}
	used, err := c.addPool(name, comments, spec)
	return ordered{{"type", "roce-ipam"}, {"railPool", used}}, err
}

// hostLocal leases addresses of one node, and so does roce-ipam without a RailPool.
func hostLocal(d *Document, in map[string]any) any {
	var subnets []ordered
	add := func(r map[string]any) {
		one := ordered{{"subnet", str(r, "subnet")}}
		start, end := str(r, "rangeStart"), str(r, "rangeEnd")
		if p, err := netip.ParsePrefix(str(r, "subnet")); err == nil && (start != "" || end != "") {
			if start == "" {
				start = p.Masked().Addr().Next().String()
			}
			if end == "" {
				end = lastHost(p.Masked()).String()
			}
			one = append(one, member{"ranges", []string{start + "-" + end}})
		}
		if g := str(r, "gateway"); g != "" {
			one = append(one, member{"gateway", g})
		}
		subnets = append(subnets, one)
	}
	if str(in, "subnet") != "" {
		add(in)
	}
	for _, set := range anys(in, "ranges") {
		ranges, ok := set.([]any)
		if !ok {
			continue
		}
		for _, r := range ranges {
			if m, ok := r.(map[string]any); ok {
				add(m)
			}
		}
	}
	d.note("ipam: host-local becomes a pool of the node. Give each node ranges of its own, or let the nodes share a RailPool.")
	noteDropped(d, "ipam.", in, map[string]string{"dataDir": "the state folder of the node has all leases", "resolvConf": "a rail needs no DNS"})
	out := ordered{{"type", "roce-ipam"}, {"subnets", subnets}}
	if in["routes"] != nil {
		out = append(out, member{"routes", in["routes"]})
	}
	return out
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
	out := ordered{{"type", "roce-ipam"}, {"railPool", used}}
	if routes != nil {
		out = append(out, member{"routes", routes})
	}
	d.note("ipam: the RailPool %s.", used)
	return out, nil
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
