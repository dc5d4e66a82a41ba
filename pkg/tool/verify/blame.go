// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Report is the answers of tests of several pods.
type Report struct {
	Pods []string `json:"pods"`
	// Answers are those that are not ok: of very many that are alike, the first ones. If
	// the pods are few, they are all answers.
	Answers []report.Answer `json:"answers"`
	// OK counts the answers that are ok, by check. Left counts those that are not ok, and
	// not in Answers.
	OK   map[string]int `json:"ok"`
	Left int            `json:"left,omitempty"`
	// Verdicts name the faults in one line each: a rail of one pod where all of its
	// tests fail, otherwise the rail and both pods.
	Verdicts []string `json:"verdicts"`
}

// Summary counts the answers by verdict, in one line.
func (r Report) Summary() string {
	good := 0
	for _, n := range r.OK {
		good += n
	}
	out := report.Summarize(good, slices.DeleteFunc(slices.Clone(r.Answers), func(a report.Answer) bool { return a.Verdict == report.OK }))
	if r.Left > 0 {
		out += fmt.Sprintf("; %d more that are like these", r.Left)
	}
	return out
}

// Member is a pod that takes part in a test of many.
type Member interface {
	// Local tests the pod alone.
	Local() ([]report.Answer, error)
	// Test tests the pod with the server at an address. Of its errors, ErrGone says that
	// the pod itself does not answer.
	Test(address string, tests Tests) ([]report.Answer, error)
}

// Seat is a member, its name, and the address of its server.
type Seat struct {
	Member
	Name, Address string
	// Absent says why there is no member, which then is nil.
	Absent error
}

// All tests each pod alone, and each pair of pods, round by round. With first, only the
// pairs with the first pod. progress hears of each round. A member that is absent,
// that does not answer any more, or that three others cannot reach gives one answer, and is in
// no test after that.
func All(ctx context.Context, seats []Seat, tests Tests, first bool, progress func(round, of int)) Report {
	var pods []string
	for _, s := range seats {
		pods = append(pods, s.Name)
	}
	m := meeting{seats: seats, tally: newTally(len(seats)), strikes: make([]int, len(seats)), gone: make([]bool, len(seats))}
	m.alone()
	rounds := Schedule(len(seats))
	for i, round := range rounds {
		if ctx.Err() != nil {
			break
		}
		progress(i+1, len(rounds))
		m.round(slices.DeleteFunc(round, func(p Pair) bool { return first && p.A != 0 || m.gone[p.A] || m.gone[p.B] }), tests)
	}
	return m.tally.report(pods)
}

// meeting is a test of many pods, by their positions.
type meeting struct {
	seats   []Seat
	tally   *tally
	strikes []int // others that could not reach it, one after another
	gone    []bool
}

// ErrGone says that a pod has stopped to answer.
var ErrGone = errors.New("its server does not answer any more")

// unreachable is how many others, one after another, cannot reach the server of a pod before
// no more of them try: each of them waits.
const unreachable = 3

// outcome is what one member answers.
type outcome struct {
	answers []report.Answer
	err     error
}

// ask asks n members at the same time, and returns what they answer in their order.
func ask(n int, one func(int) ([]report.Answer, error)) []outcome {
	out := make([]outcome, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { out[i].answers, out[i].err = one(i) })
	}
	wg.Wait()
	return out
}

// told returns the answers of a member, and one more that says what went wrong.
func told(seat Seat, o outcome) []report.Answer {
	if o.err == nil {
		return o.answers
	}
	return append(o.answers, answer(Reach, seat.Name, report.Finding{
		Verdict: report.CannotTell, Found: o.err.Error(), Missing: "rocectl verify serve in the pod, with the same $" + TokenVariable,
	}))
}

// alone lets each member test itself.
func (m *meeting) alone() {
	for i, o := range ask(len(m.seats), func(i int) ([]report.Answer, error) {
		if m.seats[i].Absent != nil {
			return nil, m.seats[i].Absent
		}
		return m.seats[i].Local()
	}) {
		m.gone[i] = m.seats[i].Absent != nil || errors.Is(o.err, ErrGone)
		m.tally.add(told(m.seats[i], o))
	}
}

// round tests pairs.
func (m *meeting) round(pairs []Pair, tests Tests) {
	for k, o := range ask(len(pairs), func(k int) ([]report.Answer, error) {
		with := tests
		with.Peer = m.seats[pairs[k].B].Name
		return m.seats[pairs[k].A].Test(m.seats[pairs[k].B].Address, with)
	}) {
		a, b := pairs[k].A, pairs[k].B
		switch {
		case errors.Is(o.err, ErrGone):
			m.gone[a] = true
		case o.err != nil:
			m.strikes[b]++
			m.gone[b] = m.strikes[b] == unreachable
			o.err = fmt.Errorf("test %s with %s: %w", m.seats[a].Name, m.seats[b].Name, o.err)
		default:
			m.strikes[a], m.strikes[b] = 0, 0
		}
		m.tally.add(told(m.seats[a], o))
		if m.gone[b] && !errors.Is(o.err, ErrGone) {
			m.tally.add(told(m.seats[b], outcome{err: fmt.Errorf("%d pods, one after another, could not reach it, and no other has tried", unreachable)}))
		}
	}
}

// between reads what an answer is about: "rail 3 of gpu-07 to gpu-01".
func between(of string) (rail, a, b string) {
	rail, rest, _ := strings.Cut(of, " of ")
	a, b, _ = strings.Cut(rest, " to ")
	return rail, a, b
}

// blame names faults. If a test of a rail fails with every other pod, and with at least
// two, the fault is that of this rail.
func (t *tally) blame() []string {
	var out []string
	blamed := map[place]bool{}
	for _, a := range t.answers {
		if a.Verdict != report.Problem {
			continue
		}
		rail, x, y := between(a.Of)
		line, of := a.Of+": "+a.Found, place{a.Check, a.Of, a.Found}
		for _, pods := range [][2]string{{x, y}, {y, x}} {
			pod, other := pods[0], pods[1]
			p := place{a.Check, rail, pod}
			if n := t.tests[p]; y != "" && n >= 2 && t.failed[p] == n {
				of = p
				line = fmt.Sprintf("%s of %s: %s fails with all %d other pods: %s", rail, pod, a.Check, n, general(a.Found, pod, other))
			}
		}
		if !blamed[of] {
			out = append(out, line)
		}
		blamed[of] = true
	}
	return out
}

// general leaves out of a text about a pod which of the others it was.
func general(found, pod, other string) string {
	found, _, _ = strings.Cut(found, " passes from ")
	found = strings.ReplaceAll(found, " from "+other+" to "+pod, " to "+pod)
	found = strings.ReplaceAll(found, " from "+pod+" to "+other, " from "+pod)
	if rest, is := strings.CutPrefix(found, "no frame passes between "); is && rest != "" {
		return "no frame passes in either direction"
	}
	return found
}

// fewPods is the most pods of a test of which each answer is kept. A thousand nodes with
// eight rails give eight million answers.
const fewPods = 16

// mostOfOne is the most answers of one kind about one rail of a pod that are kept when there are
// more pods.
const mostOfOne = 16

// place is a test of a rail of a pod.
type place struct{ check, rail, pod string }

// tally counts answers, and keeps those that a reader needs.
type tally struct {
	all           bool // the pods are few
	answers       []report.Answer
	ok            map[string]int // by check
	left          int
	tests, failed map[place]int // between two pods
	kept          map[kind]int
}

// kind is a verdict of a place.
type kind struct {
	place
	verdict report.Verdict
}

func newTally(pods int) *tally {
	return &tally{all: pods <= fewPods, ok: map[string]int{}, tests: map[place]int{}, failed: map[place]int{}, kept: map[kind]int{}}
}

func (t *tally) add(answers []report.Answer) {
	for _, a := range answers {
		rail, x, y := between(a.Of)
		t.vote(a, rail, x, y)
		if a.Verdict == report.OK {
			t.ok[a.Check]++
		}
		switch {
		case t.all || a.Verdict != report.OK && t.wanted(a, rail, x, y):
			t.answers = append(t.answers, a)
		case a.Verdict != report.OK:
			t.left++
		}
	}
}

// vote counts a test between the same rail of two pods, for both.
func (t *tally) vote(a report.Answer, rail, x, y string) {
	if y == "" || strings.Contains(y, " ") {
		return
	}
	for _, pod := range []string{x, y} {
		p := place{a.Check, rail, pod}
		t.tests[p]++
		if a.Verdict == report.Problem {
			t.failed[p]++
		}
	}
}

// wanted says whether few answers like this one are kept so far, for one of its ends.
func (t *tally) wanted(a report.Answer, rail, x, y string) bool {
	if x == "" { // about a pod, and not about a rail
		rail, x = "", a.Of
	}
	if _, pod, cross := strings.Cut(y, " of "); cross {
		y = pod
	}
	wanted := false
	for _, pod := range []string{x, y} {
		k := kind{place{a.Check, rail, pod}, a.Verdict}
		if pod != "" && t.kept[k] < mostOfOne {
			wanted = true
		}
	}
	if wanted {
		t.kept[kind{place{a.Check, rail, x}, a.Verdict}]++
		t.kept[kind{place{a.Check, rail, y}, a.Verdict}]++
	}
	return wanted
}

// report returns what is kept, in the order of what it is about.
func (t *tally) report(pods []string) Report {
	slices.SortStableFunc(t.answers, func(a, b report.Answer) int {
		if a.Of != b.Of {
			return strings.Compare(a.Of, b.Of)
		}
		return strings.Compare(a.Check, b.Check)
	})
	return Report{Pods: pods, Answers: t.answers, OK: t.ok, Left: t.left, Verdicts: t.blame()}
}

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
