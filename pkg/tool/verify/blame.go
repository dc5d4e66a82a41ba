// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// fault is one answer in place of all that have the same cause.
type fault struct {
	report.Answer
	rail  int    // -1: not that of one rail
	some  bool   // it is between some pods, and others have passed
	spots []spot // where it is seen
}

// mark is a rail of a pod that fails alone, or with all other pods.
type mark struct {
	spot
	report.Answer
	gateway string // that does not answer
	with    int    // how many others; 0: alone
}

// column is a test of one rail of all pods, or of those with a gateway: marks of one may have the
// same cause.
type column struct {
	check, gateway string
	rail           int
}

func (m mark) column() column { return column{m.Check, m.gateway, m.rail} }

// faults returns one fault for each cause, in the order of signs and of rails.
func (t *tally) faults() []fault {
	marks := t.marks()
	out := t.fold(marks)
	lost := map[place]bool{} // the marks have said all about them
	for _, m := range marks {
		lost[place{m.Check, m.spot}] = true
	}
	for of, g := range t.grids {
		out = append(out, t.between(of, g, func(i int) bool { return lost[place{of.check, spot{of.rail, t.pods[i]}}] })...)
	}
	out = append(out, t.crossed(lost)...)
	slices.SortStableFunc(out, func(a, b fault) int {
		return cmp.Or(cmp.Compare(rank(a.Check), rank(b.Check)), cmp.Compare(a.rail, b.rail))
	})
	return out
}

// marks returns the rails that fail alone. A rail that fails with all other pods, and with at
// least two, is such a one.
func (t *tally) marks() []mark {
	var out []mark
	for _, a := range t.answers {
		if s := subjectOf(a.Of); a.Verdict == report.Problem && s.peer == "" {
			out = append(out, mark{spot: s.spot(), Answer: a, gateway: gatewayOf(a)})
		}
	}
	order := func(a, b column) int { return cmp.Or(strings.Compare(a.check, b.check), a.rail-b.rail) }
	for _, of := range slices.SortedFunc(maps.Keys(t.grids), order) {
		g := t.grids[of]
		for i, pod := range t.pods {
			if n := g.tests[i]; n >= 2 && g.failed[i] == n {
				p := place{of.check, spot{of.rail, pod}}
				a := t.first[kind{p, true, report.Problem}]
				other := subjectOf(a.Of).pod
				if other == pod {
					other = subjectOf(a.Of).peer
				}
				a.Found = general(a.Found, pod, other)
				out = append(out, mark{spot: p.spot, Answer: a, with: n})
			}
		}
	}
	return out
}

// grouped returns groups of what has the same key, in the order of their first ones.
func grouped[T any, K comparable](all []T, key func(T) K) [][]T {
	at := map[K]int{}
	var out [][]T
	for _, one := range all {
		i, known := at[key(one)]
		if !known {
			i = len(out)
			at[key(one)] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], one)
	}
	return out
}

// fold makes one fault of the marks of all pods of a rail, then of all rails of a pod, and then of
// what is left of a rail. It blames no gateway where other pods do not answer, either.
func (t *tally) fold(marks []mark) []fault {
	var out []fault
	var rest, left []mark
	silent := map[spot]bool{}
	for _, m := range marks {
		if m.Check == Reach {
			silent[m.spot] = true
		}
	}
	explained := func(m mark) bool { return m.Check == GatewayUp && silent[m.spot] }
	for _, c := range grouped(marks, mark.column) {
		others := slices.DeleteFunc(slices.Clone(c), explained)
		if len(others) > 0 && len(c) > 1 && len(c) == t.size(c[0]) {
			out = append(out, t.ofRail(c))
			continue
		}
		rest = append(rest, others...)
	}
	for _, row := range grouped(rest, func(m mark) place { return place{m.Check, spot{pod: m.pod}} }) {
		if len(row) > 1 && len(row) == t.count(func(s spot) bool { return s.pod == row[0].pod }) {
			out = append(out, ofPod(row))
			continue
		}
		left = append(left, row...)
	}
	for _, c := range grouped(left, mark.column) {
		out = append(out, t.ofRail(c))
	}
	return out
}

// count returns how many rails there are of a kind.
func (t *tally) count(is func(spot) bool) (n int) {
	for s := range t.cells {
		if is(s) {
			n++
		}
	}
	return n
}

// size returns how many pods could have such a mark.
func (t *tally) size(m mark) int {
	switch {
	case m.with > 0:
		tested := 0
		for _, n := range t.grids[column{check: m.Check, rail: m.rail}].tests {
			if n > 0 {
				tested++
			}
		}
		return tested
	case m.gateway != "":
		return t.asked[m.column()]
	case m.rail < 0:
		return len(t.pods)
	}
	return t.count(func(s spot) bool { return s.rail == m.rail })
}

// ofRail is the fault of marks of one rail, or of pods as a whole.
func (t *tally) ofRail(marks []mark) fault {
	m, k, n := marks[0], len(marks), t.size(marks[0])
	f := fault{Answer: m.Answer, rail: m.rail}
	var pods []int
	for _, m := range marks {
		pods = append(pods, t.at[m.pod])
		for s := range t.cells {
			if s == m.spot || m.rail < 0 && m.Check == GID && s.pod == m.pod {
				f.spots = append(f.spots, s)
			}
		}
	}
	f.Of = "pods"
	if m.rail >= 0 {
		f.Of = fmt.Sprintf("rail %d", m.rail)
	}
	some := fmt.Sprintf("%d of %d pods: %s", k, n, t.names(pods))
	switch {
	case k == 1 && m.with > 0:
		f.Of, f.Found = f.Of+" of "+m.pod, fmt.Sprintf("%s fails with all %d other pods: %s", m.Check, m.with, m.Found)
	case k == 1:
		f.Of = m.Of
	case m.gateway != "" && k == n:
		f.Found = fmt.Sprintf("the gateway %s answers none of %d pods", m.gateway, n)
		f.Fix = "# the gateway first, and its connection to the switches of this rail: VLAN and port\n" + m.Fix
	case m.gateway != "":
		f.Found = fmt.Sprintf("the gateway %s does not answer %s", m.gateway, some)
	default:
		fails := " fails in "
		if m.with > 0 {
			fails = " fails with all others in "
		}
		f.Found = m.Check + fails + fmt.Sprintf("%s; %s: %s", some, m.pod, m.Found)
	}
	return f
}

// ofPod is the fault of marks of all rails of a pod.
func ofPod(marks []mark) fault {
	m := marks[0]
	f := fault{Answer: m.Answer, rail: -1}
	for _, m := range marks {
		f.spots = append(f.spots, m.spot)
	}
	f.Of, f.Found = fmt.Sprintf("all %d rails of %s", len(marks), m.pod), fmt.Sprintf("%s fails; rail %d: %s", m.Check, m.rail, m.Found)
	return f
}

// between returns the faults of a rail between pods that are not lost: between groups of pods,
// and between single ones.
func (t *tally) between(of column, g *grid, lost func(int) bool) []fault {
	group := g.groups()
	var apart, pairs [][2]int
	for i := range t.pods {
		for j := range i {
			switch {
			case g.at(i, j) != fails || lost(i) || lost(j):
			case len(group[i]) > 1 && len(group[j]) > 1 && group[i][0] != group[j][0]:
				apart = append(apart, [2]int{j, i})
			default:
				pairs = append(pairs, [2]int{j, i})
			}
		}
	}
	var out []fault
	if len(apart) > 0 {
		out = append(out, t.apart(of, group, apart))
	}
	if len(pairs) > 0 {
		out = append(out, t.single(of, g, pairs))
	}
	return out
}

// apart is the fault between groups of pods that do not reach each other. It is seen outside of
// the largest one.
func (t *tally) apart(of column, group [][]int, pairs [][2]int) fault {
	a := t.example(of, pairs)
	s := subjectOf(a.Of)
	f := fault{Answer: a, rail: of.rail, some: true}
	groups := slices.SortedFunc(slices.Values(group), func(a, b []int) int { return cmp.Or(len(b)-len(a), slices.Compare(a, b)) })
	groups = slices.DeleteFunc(slices.CompactFunc(groups, slices.Equal), func(g []int) bool { return len(g) < 2 })
	var names []string
	for k, members := range groups {
		names = append(names, fmt.Sprintf("%d pods (%s)", len(members), t.names(members)))
		for _, i := range members {
			if k > 0 {
				f.spots = append(f.spots, spot{of.rail, t.pods[i]})
			}
		}
	}
	f.Of, f.Found = fmt.Sprintf("rail %d", of.rail), fmt.Sprintf("%s fails between %s: %s", of.check, strings.Join(names, " and "), general(a.Found, s.pod, s.peer))
	f.Fix = "# the uplinks between the leaf switches of these pods\n" + a.Fix
	return f
}

// single is the fault between single pods, of which one may be in all pairs.
func (t *tally) single(of column, g *grid, pairs [][2]int) fault {
	a := t.example(of, pairs)
	f := fault{Answer: a, rail: of.rail, some: true}
	in, tests := map[int]int{}, 0
	for _, p := range pairs {
		in[p[0]]++
		in[p[1]]++
	}
	for _, n := range g.tests {
		tests += n
	}
	if len(pairs) > 1 {
		f.Of, f.Found = fmt.Sprintf("rail %d", of.rail), fmt.Sprintf("%s fails between %d of %d pairs of pods; %s: %s", of.check, len(pairs), tests/2, a.Of, a.Found)
	}
	for i, n := range in {
		f.spots = append(f.spots, spot{of.rail, t.pods[i]})
		if n == len(pairs) && n > 1 {
			others := maps.Clone(in)
			delete(others, i)
			f.Of = fmt.Sprintf("rail %d of %s", of.rail, t.pods[i])
			f.Found = fmt.Sprintf("%s fails with %d of %d other pods: %s; %s", of.check, n, g.tests[i], t.names(slices.Sorted(maps.Keys(others))), a.Found)
		}
	}
	return f
}

// example returns an answer about one of these pairs.
func (t *tally) example(of column, pairs [][2]int) report.Answer {
	among := map[[2]int]bool{}
	for _, p := range pairs {
		among[p] = true
	}
	for _, a := range t.answers {
		s := subjectOf(a.Of)
		i, j := t.at[s.pod], t.at[s.peer]
		if a.Check == of.check && a.Verdict == report.Problem && s.peer != "" && s.rail == of.rail && s.far == of.rail && among[[2]int{min(i, j), max(i, j)}] {
			return a
		}
	}
	return t.first[kind{place{of.check, spot{of.rail, t.pods[pairs[0][0]]}}, true, report.Problem}]
}

// crossed returns the faults between different rails that are not those of one of them.
func (t *tally) crossed(lost map[place]bool) []fault {
	bad := slices.DeleteFunc(slices.Clone(t.answers), func(a report.Answer) bool {
		s := subjectOf(a.Of)
		return a.Verdict != report.Problem || s.rail == s.far || slices.ContainsFunc(s.ends(), func(end spot) bool { return lost[place{a.Check, end}] })
	})
	var out []fault
	for _, as := range grouped(bad, func(a report.Answer) [3]any { s := subjectOf(a.Of); return [3]any{a.Check, s.rail, s.far} }) {
		s := subjectOf(as[0].Of)
		f := fault{Answer: as[0], rail: s.rail, some: true, spots: s.ends()}
		if len(as) > 1 {
			f.Of += fmt.Sprintf(" and %d more", len(as)-1)
		}
		out = append(out, f)
	}
	return out
}

// names returns the names of pods, in their order, and those of three or more neighbours as
// "gpu-01 to gpu-32".
func (t *tally) names(pods []int) string {
	var out []string
	for i := 0; i < len(pods); {
		if len(out) == mostNames {
			return strings.Join(out, ", ") + fmt.Sprintf(" and %d more", len(pods)-i)
		}
		name, last := t.pods[pods[i]], i
		for last+1 < len(pods) && pods[last+1] == pods[last]+1 {
			last++
		}
		if last > i+1 {
			name, i = name+" to "+t.pods[pods[last]], last
		}
		out, i = append(out, name), i+1
	}
	return strings.Join(out, ", ")
}

const mostNames = 8

// general leaves out of a text about a pod which of the others it was.
func general(found, pod, other string) string {
	found, _, _ = strings.Cut(found, " passes from ")
	found = strings.ReplaceAll(found, " from "+other+" to "+pod, " to "+pod)
	found = strings.ReplaceAll(found, " from "+pod+" to "+other, " from "+pod)
	if strings.HasPrefix(found, "no frame passes between ") {
		return "no frame passes in either direction"
	}
	return found
}
