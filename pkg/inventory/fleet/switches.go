// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package fleet

import (
	"fmt"
	"maps"
	"slices"
)

// cables returns the rails that are on another switch than the same rail of the
// neighbours of the node. Neighbours have most of their other rails on the same switches. So
// groups of nodes with switches of their own, as large clusters have them, do not differ.
// Two nodes alone cannot tell which of them has the fault.
func cables(nodes []Node, rows map[int][]entry) []Difference {
	at := make([]map[int]string, len(nodes))
	for i := range at {
		at[i] = map[int]string{}
	}
	for rail, row := range rows {
		for _, e := range row {
			if e.Switch != "" {
				at[e.node][rail] = e.Switch
			}
		}
	}
	var out []Difference
	for i, n := range nodes {
		if len(at[i]) == 0 {
			continue // no LLDP
		}
		for _, rail := range slices.Sorted(maps.Keys(rows)) {
			if !slices.ContainsFunc(rows[rail], func(e entry) bool { return e.node == i }) {
				continue // there is no such NIC
			}
			votes := []string{at[i][rail]}
			for j := range nodes {
				if s := at[j][rail]; s != "" && j != i && together(at[i], at[j], rail) {
					votes = append(votes, s)
				}
			}
			if most, count := majority(votes); most != at[i][rail] && count > 1 {
				out = append(out, Difference{
					Node: n.Name, Rails: []int{rail}, What: "switch", Is: at[i][rail],
					Most: fmt.Sprintf("%s on %d of %d nodes that share its other switches", most, count, len(votes)),
				})
			}
		}
	}
	return out
}

// together says whether two nodes have most of their rails on the same switches, but for
// one rail.
func together(a, b map[int]string, except int) bool {
	same, known := 0, 0
	for rail, s := range a {
		if rail == except || b[rail] == "" {
			continue
		}
		if known++; b[rail] == s {
			same++
		}
	}
	return same*2 > known
}
