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
	rails := slices.Sorted(maps.Keys(rows))
	wirings, has := wiringsOf(len(nodes), rails, rows)
	of := map[int]*wiring{} // by node
	for _, w := range wirings {
		for _, n := range w.nodes {
			of[n] = w
		}
	}
	onSwitch := map[socket][]*wiring{}
	for _, w := range wirings {
		for k, s := range w.at {
			if s != "" {
				onSwitch[socket{k, s}] = append(onSwitch[socket{k, s}], w)
			}
		}
	}
	for _, w := range wirings {
		w.judge(w.neighbours(onSwitch))
	}
	var out []Difference
	for i, n := range nodes {
		for k, most := range of[i].others {
			if most != "" && has[i][k] {
				out = append(out, Difference{Node: n.Name, Rails: []int{rails[k]}, What: "switch", Is: of[i].at[k], Most: most})
			}
		}
	}
	return out
}

// wiring is the switches of rails, and the nodes that have exactly these. There are far
// fewer wirings than nodes. k is the position of a rail.
type wiring struct {
	at     []string // by k, "" if the switch is not known
	nodes  []int
	others []string // by k: what most neighbours have, in words, if the wiring differs
}

// socket is a switch of the rail at a position.
type socket struct {
	k    int
	name string
}

// wiringsOf groups nodes, and says which rails each of them has.
func wiringsOf(nodes int, rails []int, rows map[int][]entry) (out []*wiring, has [][]bool) {
	at := make([][]string, nodes)
	has = make([][]bool, nodes)
	for i := range nodes {
		at[i], has[i] = make([]string, len(rails)), make([]bool, len(rails))
	}
	for k, rail := range rails {
		for _, e := range rows[rail] {
			at[e.node][k], has[e.node][k] = e.Switch, true
		}
	}
	same := map[string]*wiring{}
	for i := range nodes {
		key := fmt.Sprintf("%q", at[i])
		w, there := same[key]
		if !there {
			w = &wiring{at: at[i], others: make([]string, len(rails))}
			same[key], out = w, append(out, w)
		}
		w.nodes = append(w.nodes, i)
	}
	return out, has
}

// neighbours returns the wirings with a switch of this one, itself included.
func (w *wiring) neighbours(onSwitch map[socket][]*wiring) []*wiring {
	seen := map[*wiring]bool{}
	var out []*wiring
	for k, s := range w.at {
		for _, other := range onSwitch[socket{k, s}] {
			if !seen[other] {
				seen[other], out = true, append(out, other)
			}
		}
	}
	return out
}

// judge compares each rail with those of neighbours that have most of the other rails on the
// same switches. A node has its own vote, also if its switch is not known.
func (w *wiring) judge(neighbours []*wiring) {
	votes := make([]map[string]int, len(w.at))
	total := make([]int, len(w.at))
	for k, s := range w.at {
		votes[k], total[k] = map[string]int{s: 1}, 1
	}
	for _, other := range neighbours {
		voters := len(other.nodes)
		if other == w {
			voters--
		}
		known, same := 0, 0
		for k, s := range w.at {
			if s != "" && other.at[k] != "" {
				known++
				if s == other.at[k] {
					same++
				}
			}
		}
		for k, s := range w.at {
			if other.at[k] == "" {
				continue
			}
			but, alike := known, same // of the other rails
			if s != "" {
				but--
			}
			if s == other.at[k] {
				alike--
			}
			if alike*2 > but {
				votes[k][other.at[k]] += voters
				total[k] += voters
			}
		}
	}
	for k, own := range w.at {
		for s, count := range votes[k] {
			if s != own && count > 1 && count*2 > total[k] {
				w.others[k] = fmt.Sprintf("%s on %d of %d nodes that share its other switches", s, count, total[k])
			}
		}
	}
}
