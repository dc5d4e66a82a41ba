// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

// Pair is two pods that are tested with each other, by their positions.
type Pair struct{ A, B int }

// Schedule returns rounds of tests that together have each pair of n pods once. In a
// round each pod is in at most one pair, so each NIC is in at most one test. There are
// n-1 rounds, or n if n is odd, which is the least possible.
//
// It is the circle method of tournaments: the pods stand in a circle around the last
// one, each round pairs those opposite to each other, and then the circle turns.
func Schedule(n int) [][]Pair {
	if n < 2 {
		return nil
	}
	circle := n - 1 + n%2 // with an odd number, the last place stays empty
	var out [][]Pair
	for round := range circle {
		var pairs []Pair
		add := func(a, b int) {
			if max(a, b) < n {
				pairs = append(pairs, Pair{min(a, b), max(a, b)})
			}
		}
		add(round, circle)
		for k := 1; k <= circle/2; k++ {
			add((round+k)%circle, (round-k+circle)%circle)
		}
		out = append(out, pairs)
	}
	return out
}
