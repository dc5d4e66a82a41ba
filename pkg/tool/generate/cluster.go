// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package generate

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
)

// Cluster returns the objects for the rails of nodes, as Node does for one: from what
// their agents have reported, in any order. Nodes without rails do not count. Only
// nodes names, if it has any, do. unreported are the nodes of the cluster without a report.
//
// A report has no addresses, so choice.Subnet is needed.
func Cluster(all []fleet.Node, unreported, names []string, choice Choice) ([]Document, error) {
	if err := choice.check(); err != nil {
		return nil, err
	}
	nodes, bare, err := chosen(all, names)
	if err != nil {
		return nil, err
	}
	match, left, err := common(nodes)
	if err != nil {
		return nil, err
	}
	if choice.Subnet == "" {
		return nil, errors.New("the reports of nodes have no addresses: give the subnets with --subnet, such as 172.{rail+16}.0.0/16")
	}
	count := len(nodes[0].Rails)
	pool, blocks, err := template(count, choice)
	if err != nil {
		return nil, err
	}
	if blocks >= 0 && blocks < len(nodes) {
		pool.note("Problem: %d of these %d nodes can get no block. Use larger subnets, or a smaller blockSize.", len(nodes)-blocks, len(nodes))
	}
	net := Document{slices.Concat(railsOfAll(nodes), left, absent(bare, unreported, names, choice)), railNetwork(match, count, choice)}
	pods, comments := podsOfAll(nodes)
	return []Document{pool, net, devicePlugin(pods, match, choice, comments), testPods(choice)}, nil
}

// chosen returns the nodes that count, by name, and those without rails.
func chosen(all []fleet.Node, names []string) (nodes []fleet.Node, bare []string, err error) {
	if len(all) == 0 {
		return nil, nil, errors.New("no agent has reported the NICs of its node yet: kubectl -n roce-cni get pods shows whether they run")
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(n fleet.Node) bool { return n.Name == name }) {
			return nil, nil, fmt.Errorf("node %q has no report", name)
		}
	}
	for _, n := range all {
		switch {
		case len(names) > 0 && !slices.Contains(names, n.Name):
		case len(n.Rails) == 0:
			bare = append(bare, n.Name)
		default:
			if err := plausible(n); err != nil {
				return nil, nil, err
			}
			n.Rails = slices.SortedFunc(slices.Values(n.Rails), func(a, b fleet.Rail) int { return cmp.Compare(a.Rail, b.Rail) })
			nodes = append(nodes, n)
		}
	}
	if len(nodes) == 0 {
		return nil, nil, errors.New("no node has reported a RoCE NIC that can be a rail")
	}
	slices.Sort(bare)
	slices.SortFunc(nodes, func(a, b fleet.Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes, bare, nil
}

var (
	nodeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
	// A name of a NIC becomes a pattern in ifNames, so it must not have the characters of one.
	nicName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,15}$`)
	pciID   = regexp.MustCompile(`^([0-9a-f]{4})?$`)
)

// plausible refuses what no agent reports. A node that was taken over may write anything
// into its report.
func plausible(n fleet.Node) error {
	if !nodeName.MatchString(n.Name) {
		return fmt.Errorf("%q is not the name of a node", n.Name)
	}
	seen := map[int]bool{}
	for _, r := range n.Rails {
		if r.Rail < 0 || r.Rail >= fleet.MaxRails || seen[r.Rail] || r.GIDs < 0 || r.GIDWidth < 0 || !nicName.MatchString(r.Netdev) ||
			!pciID.MatchString(r.Vendor) || !pciID.MatchString(r.DeviceID) || (r.Vendor == "") != (r.DeviceID == "") {
			return fmt.Errorf("no agent reports such a NIC: rail %d of node %s, %q, %q:%q, %d GIDs", r.Rail, n.Name, r.Netdev, r.Vendor, r.DeviceID, r.GIDs)
		}
		seen[r.Rail] = true
	}
	return nil
}

func kind(r fleet.Rail) string { return strings.Trim(r.Vendor+":"+r.DeviceID, ":") }

// common returns the selector that fits the same number of rails on all nodes, and says what
// it leaves out. nodes have these rails alone afterwards.
func common(nodes []fleet.Node) (ordered, []string, error) {
	var rails []fleet.Rail
	for _, n := range nodes {
		rails = append(rails, n.Rails...)
	}
	if slices.ContainsFunc(rails, func(r fleet.Rail) bool { return r.Vendor == "" }) {
		return sameNames(nodes, rails)
	}
	kinds := unique(rails, kind)
	if !sameCount(nodes) {
		kinds = sharedKinds(nodes, kinds)
	}
	shared := slices.DeleteFunc(slices.Clone(rails), func(r fleet.Rail) bool { return !slices.Contains(kinds, kind(r)) })
	vendors, ids := unique(shared, func(r fleet.Rail) string { return r.Vendor }), unique(shared, func(r fleet.Rail) string { return r.DeviceID })
	var left []string
	for i, n := range nodes {
		var kept []fleet.Rail
		var extra []string
		for _, r := range n.Rails {
			if slices.Contains(vendors, r.Vendor) && slices.Contains(ids, r.DeviceID) { // as the match does
				kept = append(kept, r)
			} else {
				extra = append(extra, strings.TrimSpace(r.Netdev+" "+kind(r)))
			}
		}
		if len(kept) <= len(extra) {
			return nil, nil, differ(nodes)
		}
		if len(extra) > 0 {
			left = append(left, fmt.Sprintf("Left out on node %s: %s. Not all nodes have NICs of this type.", n.Name, strings.Join(extra, ", ")))
		}
		nodes[i].Rails = kept
	}
	if !sameCount(nodes) {
		return nil, nil, differ(nodes)
	}
	match := ordered{{"vendors", vendors}, {"deviceIDs", ids}, {"linkTypes", []string{"ether"}}}
	left = append(left, "match: vendor and type of the NICs. It fits all these nodes.",
		"Cannot tell: whether a node has more NICs of this type that are no rails. Then ADD fails there with error 102, and rocectl generate on that node names the interfaces.")
	return match, left, nil
}

// sharedKinds returns the types of NIC of which all nodes have the same number. It returns none
// if a type is on all nodes in different numbers: NICs may be missing.
func sharedKinds(nodes []fleet.Node, kinds []string) []string {
	var out []string
	for _, k := range kinds {
		numbers := map[int]bool{}
		for _, n := range nodes {
			numbers[len(slices.DeleteFunc(slices.Clone(n.Rails), func(r fleet.Rail) bool { return kind(r) != k }))] = true
		}
		switch {
		case len(numbers) == 1:
			out = append(out, k)
		case !numbers[0]:
			return nil
		}
	}
	return out
}

func sameCount(nodes []fleet.Node) bool {
	return !slices.ContainsFunc(nodes, func(n fleet.Node) bool { return len(n.Rails) != len(nodes[0].Rails) })
}

// sameNames is for NICs on no PCI bus.
func sameNames(nodes []fleet.Node, rails []fleet.Rail) (ordered, []string, error) {
	names := unique(rails, func(r fleet.Rail) string { return r.Netdev })
	for _, n := range nodes {
		if len(n.Rails) != len(names) || len(unique(n.Rails, func(r fleet.Rail) string { return r.Netdev })) != len(names) {
			return nil, nil, differ(nodes)
		}
	}
	return ordered{{"ifNames", names}}, []string{"match: NICs are on no PCI bus, so it names them. These nodes have the same names."}, nil
}

// differ is the error that no selector fits all nodes. It has the nodes that are alike.
func differ(nodes []fleet.Node) error {
	groups := map[string][]string{}
	for _, n := range nodes {
		count := map[string]int{}
		for _, r := range n.Rails {
			count[cmp.Or(kind(r), r.Netdev)]++
		}
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(count)) {
			parts = append(parts, fmt.Sprintf("%d x %s", count[k], k))
		}
		has := strings.Join(parts, " + ")
		groups[has] = append(groups[has], n.Name)
	}
	var parts []string
	for _, has := range slices.Sorted(maps.Keys(groups)) {
		parts = append(parts, fmt.Sprintf("%s on --nodes %s", has, strings.Join(groups[has], ",")))
	}
	return fmt.Errorf("no match fits the NICs of all nodes: %s", strings.Join(parts, "; "))
}

// railsOfAll says which NIC is which rail on which nodes.
func railsOfAll(nodes []fleet.Node) []string {
	names := unique(nodes, func(n fleet.Node) string { return n.Name })
	out := []string{fmt.Sprintf("A network with all rails of %d nodes: %s", len(nodes), strings.Join(names, ", "))}
	differ := false
	for i := range nodes[0].Rails {
		groups := map[string][]string{}
		for _, n := range nodes {
			r := n.Rails[i]
			driver, _, _ := strings.Cut(r.Driver, " ") // the version changes nothing
			has := fmt.Sprintf("%s, %s, %s, %s, MTU %d", r.Netdev, r.PCI, kind(r), driver, r.MTU)
			groups[has] = append(groups[has], n.Name)
		}
		for _, has := range slices.Sorted(maps.Keys(groups)) {
			on := ""
			if len(groups) > 1 {
				on, differ = " (on "+strings.Join(groups[has], ", ")+")", true
			}
			out = append(out, fmt.Sprintf("rail %d: %s%s", i, has, on))
		}
	}
	if differ {
		return append(out, "The nodes differ where a rail has several lines. Check that it is the same network on all of them, with the same MTU.")
	}
	return append(out, "The nodes agree in all of this.")
}

// absent says which nodes do not count, and why.
func absent(bare, unreported, names []string, choice Choice) []string {
	if len(names) > 0 {
		return []string{fmt.Sprintf("It is for these nodes alone. If others have NICs that fit, label these, and add the label to the nodeSelector of RailPool %s and of the pods.", choice.Name)}
	}
	var out []string
	if len(bare) > 0 {
		out = append(out, "Without a RoCE NIC that can be a rail: "+strings.Join(bare, ", "))
	}
	if len(unreported) > 0 {
		out = append(out, "Cannot tell: these nodes have no report: "+strings.Join(slices.Sorted(slices.Values(unreported)), ", "))
	}
	return out
}

// podsOfAll returns how many pods the smallest GID table has room for, and says why.
func podsOfAll(nodes []fleet.Node) (int, []string) {
	const own = 2 // a NIC's link-local and IPv4 address
	pods, where := 0, ""
	for _, n := range nodes {
		for _, r := range n.Rails {
			width := cmp.Or(r.GIDWidth, 2)
			if room := max(0, r.GIDs/width-own); r.GIDs > 0 && (where == "" || room < pods) {
				pods, where = room, fmt.Sprintf("%d entries (%s of node %s), %d for each address", r.GIDs, r.Netdev, n.Name, width)
			}
		}
	}
	if where == "" {
		return 0, []string{unknownTables}
	}
	return pods, []string{fmt.Sprintf(
		"rdmaHcaMax: how many pods the smallest GID table has room for, with one IPv4 address each: %s, without the NIC's own %d addresses. rocectl gids shows what is free.",
		where, own)}
}
