// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package fleet has what the nodes of a cluster report about their rails, and says
// where a rail of a node differs from the same rail of most nodes.
//
// It does no I/O. It trusts no report: each node writes its own, and a report changes
// what is said of other nodes only as one voice of many. This file has the report and
// finds the differences, switches.go those of the cables, and faults.go says why rails
// cannot serve new pods.
package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// MaxRails is the most rails of a report.
const MaxRails = 32

// MaxGPUs is the most GPUs of a rail.
const MaxGPUs = 16

// Report is what a node says of its rails. It has nothing of pods, and no addresses:
// others may read it. It changes only when the NICs, their cables or their faults do.
type Report struct {
	Rails []Rail `json:"rails"`
}

// Rail is a RoCE NIC of a node, with the number that package nic gives it. Empty
// fields are not known. All texts are short, and have only printable characters of ASCII.
type Rail struct {
	Rail       int      `json:"rail"`
	Netdev     string   `json:"netdev,omitempty"`
	PCI        string   `json:"pci,omitempty"`
	Device     string   `json:"device,omitempty"`
	Port       int      `json:"port,omitempty"`
	State      string   `json:"state,omitempty"`
	Speed      int      `json:"speed,omitempty"` // in Mb/s
	MTU        int      `json:"mtu,omitempty"`
	Vendor     string   `json:"vendor,omitempty"`
	DeviceID   string   `json:"deviceID,omitempty"`
	Driver     string   `json:"driver,omitempty"` // with its version
	Firmware   string   `json:"firmware,omitempty"`
	GPUs       []string `json:"gpus,omitempty"`     // the nearest
	Distance   string   `json:"distance,omitempty"` // of these
	GIDs       int      `json:"gids,omitempty"`     // size of the GID table
	GIDWidth   int      `json:"gidWidth,omitempty"` // how many entries of it an address takes
	QoS        string   `json:"qos,omitempty"`      // PFC, DSCP and ECN, in words
	Switch     string   `json:"switch,omitempty"`
	SwitchPort string   `json:"switchPort,omitempty"`
	Faults     []Fault  `json:"faults,omitempty"` // why new pods should not get it
}

// Connection is the switch of a NIC and the port of that switch.
type Connection struct{ Switch, Port string }

// Node is a node and its report.
type Node struct {
	Name string `json:"name"`
	Report
}

// Difference is what rails of a node have, and the same rails of most other nodes do not.
type Difference struct {
	Node  string `json:"node,omitempty"` // "" if no value is that of most nodes
	Rails []int  `json:"rails,omitempty"`
	What  string `json:"what"`
	Is    string `json:"is"`
	Most  string `json:"most,omitempty"` // what the others have, and how many nodes they are
}

// Compare returns the differences, by node and rail. Nodes without rails do not count.
//
// A rail is compared with the rails of the same number. On a node that has not as many
// rails as most nodes, the PCI address tells which rail it is, because a missing NIC
// changes the numbers of those behind it. NICs of another type differ only in their type.
func Compare(nodes []Node) []Difference {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return len(n.Rails) == 0 })
	number, out := counts(nodes)
	places := placesOf(nodes, number)
	rows := map[int][]entry{}
	for i, n := range nodes {
		missing, seen := maps.Clone(places), map[int]bool{-1: true}
		for _, r := range n.Rails {
			rail := r.Rail
			if len(n.Rails) != number {
				rail = places.rail(r.PCI)
			}
			if seen[rail] { // of no known place, or a report that names a NIC twice
				continue
			}
			seen[rail] = true
			delete(missing, rail)
			rows[rail] = append(rows[rail], entry{i, r})
		}
		if len(n.Rails) < number {
			for _, rail := range slices.Sorted(maps.Keys(missing)) {
				out = append(out, Difference{Node: n.Name, Rails: []int{rail}, What: "NIC", Is: "missing", Most: places[rail]})
			}
		}
	}
	for _, rail := range slices.Sorted(maps.Keys(rows)) {
		out = append(out, rowDifferences(nodes, rail, rows[rail])...)
	}
	return merged(append(out, cables(nodes, rows)...))
}

// entry is a rail of the node with that index.
type entry struct {
	node int
	Rail
}

// counts returns how many rails most nodes have, 0 if there is no majority.
func counts(nodes []Node) (int, []Difference) {
	votes := make([]string, len(nodes))
	for i, n := range nodes {
		votes[i] = strconv.Itoa(len(n.Rails))
	}
	most, out := against(votes, func(i int) string { return nodes[i].Name }, "number of rails", nil)
	number, _ := strconv.Atoi(most) // "" is 0
	return number, out
}

// places has the PCI address that a rail has on most nodes.
type places map[int]string

func placesOf(nodes []Node, number int) places {
	votes := map[int][]string{}
	for _, n := range nodes {
		if len(n.Rails) == number {
			for _, r := range n.Rails {
				votes[r.Rail] = append(votes[r.Rail], r.PCI)
			}
		}
	}
	out := places{}
	for rail, v := range votes {
		if most, _ := majority(v); most != "" {
			out[rail] = most
		}
	}
	return out
}

// rail returns the rail with a PCI address, -1 if there is none.
func (p places) rail(pci string) int {
	for rail, at := range p {
		if at == pci {
			return rail
		}
	}
	return -1
}

type column struct {
	name string
	of   func(Rail) string
}

// columns has what is compared of a rail.
func columns() []column {
	return []column{
		{"state", func(r Rail) string { return r.State }},
		{"speed", func(r Rail) string { return strconv.Itoa(r.Speed) + " Mb/s" }},
		{"MTU", func(r Rail) string { return strconv.Itoa(r.MTU) }},
		{"driver", func(r Rail) string { return r.Driver }},
		{"firmware", func(r Rail) string { return r.Firmware }},
		{"GID table", func(r Rail) string { return strconv.Itoa(r.GIDs) + " entries" }},
		{"QoS", func(r Rail) string { return r.QoS }},
	}
}

// rowDifferences compares the rails of one number.
func rowDifferences(nodes []Node, rail int, row []entry) []Difference {
	name := func(entries []entry) func(int) string {
		return func(i int) string { return nodes[entries[i].node].Name }
	}
	votes := func(entries []entry, of func(Rail) string) []string {
		out := make([]string, len(entries))
		for i, e := range entries {
			out[i] = of(e.Rail)
		}
		return out
	}
	kind := func(r Rail) string { return strings.Trim(r.Vendor+":"+r.DeviceID, ":") }
	_, out := against(votes(row, kind), name(row), "type of NIC", []int{rail})
	same := map[string][]entry{}
	for _, e := range row {
		same[kind(e.Rail)] = append(same[kind(e.Rail)], e)
	}
	for _, k := range slices.Sorted(maps.Keys(same)) {
		for _, c := range columns() {
			_, found := against(votes(same[k], c.of), name(same[k]), c.name, []int{rail})
			out = append(out, found...)
		}
	}
	return out
}

// against returns the value of most voters, and who has another one. Without a majority it is
// one difference, of no node.
func against(votes []string, name func(int) string, what string, rails []int) (most string, out []Difference) {
	most, count := majority(votes)
	if count == 0 && len(votes) > 1 {
		return "", []Difference{{Rails: rails, What: what, Is: distribution(votes)}}
	}
	for i, v := range votes {
		if v != most {
			out = append(out, Difference{Node: name(i), Rails: rails, What: what, Is: v, Most: fmt.Sprintf("%s on %d of %d nodes", told(most), count, len(votes))})
		}
	}
	return most, out
}

// told returns a value for people: one that is not known is a dash.
func told(v string) string { return cmp.Or(v, "-") }

// majority returns the value of more than half of the voters, and how many have it; 0 if there is
// none.
func majority(votes []string) (string, int) {
	for v, n := range counted(votes) {
		if n*2 > len(votes) {
			return v, n
		}
	}
	return "", 0
}

func counted(votes []string) map[string]int {
	count := map[string]int{}
	for _, v := range votes {
		count[v]++
	}
	return count
}

// distribution says how many voters have each value: of the most frequent ones.
func distribution(votes []string) string {
	const shown = 4
	count := counted(votes)
	values := slices.SortedFunc(maps.Keys(count), func(a, b string) int { return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b)) })
	var parts []string
	for i, v := range values {
		if i == shown {
			parts = append(parts, fmt.Sprintf("%d other values", len(values)-shown))
			break
		}
		parts = append(parts, fmt.Sprintf("%s on %d", told(v), count[v]))
	}
	return strings.Join(parts, ", ")
}

// merged makes one difference of those that differ only in their rails, and sorts them by node.
func merged(all []Difference) []Difference {
	slices.SortStableFunc(all, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.What, b.What), cmp.Compare(a.Is, b.Is), cmp.Compare(a.Most, b.Most), slices.Compare(a.Rails, b.Rails))
	})
	var out []Difference
	for _, d := range all {
		if n := len(out) - 1; n >= 0 && out[n].Node == d.Node && out[n].What == d.What && out[n].Is == d.Is && out[n].Most == d.Most {
			out[n].Rails = slices.Concat(out[n].Rails, d.Rails)
		} else {
			out = append(out, d)
		}
	}
	slices.SortStableFunc(out, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), slices.Compare(a.Rails, b.Rails))
	})
	return out
}
