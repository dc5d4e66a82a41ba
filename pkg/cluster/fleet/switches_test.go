// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package fleet

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// cablesOfPairs compares each node with each other one: what cables must say, at a cost that
// grows with the square of the nodes.
func cablesOfPairs(nodes []Node, rows map[int][]entry) []Difference {
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

// TestCablesAreComparedAsIfInPairs has random clusters with swapped cables, switches that
// are not heard, missing NICs, and nodes that say what they like.
func TestCablesAreComparedAsIfInPairs(t *testing.T) {
	t.Parallel()
	found := 0
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		nodes := cluster(2 + rnd.IntN(40))
		for range rnd.IntN(12) {
			n := &nodes[rnd.IntN(len(nodes))]
			if len(n.Rails) == 0 {
				continue
			}
			a, b := rnd.IntN(len(n.Rails)), rnd.IntN(len(n.Rails))
			switch rnd.IntN(5) {
			case 0:
				n.Rails[a].Switch, n.Rails[b].Switch = n.Rails[b].Switch, n.Rails[a].Switch
			case 1:
				n.Rails[a].Switch = ""
			case 2:
				n.Rails = slices.Delete(n.Rails, a, a+1)
			case 3:
				n.Rails[a].Switch = fmt.Sprintf("leaf-%d-%d", rnd.IntN(3), rnd.IntN(8))
			case 4:
				for i := range n.Rails {
					n.Rails[i].Switch = fmt.Sprintf("leaf-%d-%d", rnd.IntN(3), i)
				}
			}
		}
		rows := map[int][]entry{}
		for i, n := range nodes {
			for _, r := range n.Rails {
				rows[r.Rail] = append(rows[r.Rail], entry{i, r})
			}
		}
		want := cablesOfPairs(nodes, rows)
		found += len(want)
		if diff := cmp.Diff(want, cables(nodes, rows)); diff != "" {
			t.Fatalf("seed %d (-in pairs +got)\n%s", seed, diff)
		}
	}
	if found < 100 {
		t.Errorf("only %d differences: the clusters are too healthy", found)
	}
}

// BenchmarkCompare compares 1,000 nodes with eight rails, of which some cables are swapped.
func BenchmarkCompare(b *testing.B) {
	nodes := cluster(1000)
	for i := 0; i < len(nodes); i += 50 {
		r := nodes[i].Rails
		r[2].Switch, r[3].Switch = r[3].Switch, r[2].Switch
	}
	for b.Loop() {
		Compare(nodes)
	}
}
