// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

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
// pairs with the first pod. progress hears of each round, and of round 0, in which each pod is
// alone. A member that is absent, that does not answer any more, or that three others cannot
// reach gives one answer, and is in no test after that.
func All(ctx context.Context, seats []Seat, tests Tests, first bool, progress func(round, of int)) Report {
	began := time.Now()
	var pods []string
	for _, s := range seats {
		pods = append(pods, s.Name)
	}
	m := meeting{seats: seats, tally: newTally(pods), strikes: make([]int, len(seats)), gone: make([]bool, len(seats))}
	rounds := Schedule(len(seats))
	progress(0, len(rounds))
	m.alone()
	for i, round := range rounds {
		if ctx.Err() != nil {
			break
		}
		progress(i+1, len(rounds))
		m.round(slices.DeleteFunc(round, func(p Pair) bool { return first && p.A != 0 || m.gone[p.A] || m.gone[p.B] }), tests)
	}
	r := m.tally.report()
	r.Began, r.Seconds = began, time.Since(began).Seconds()
	return r
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
	return append(o.answers, cannotTell(Reach, seat.Name, o.err.Error(), "rocectl verify serve in the pod, with the same $"+TokenVariable))
}

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
		if m.gone[b] { // since now
			m.tally.add(told(m.seats[b], outcome{err: fmt.Errorf("%d pods, one after another, could not reach it, and no other has tried", unreachable)}))
		}
	}
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
