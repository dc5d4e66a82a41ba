// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/roce-cni/roce-cni/pkg/doctor"
)

// Report is the answers of tests of several pods.
type Report struct {
	Pods    []string        `json:"pods"`
	Answers []doctor.Answer `json:"answers"`
	// Verdicts name the faults in one line each: a rail of one pod where all of its
	// tests fail, otherwise the rail and both pods.
	Verdicts []string `json:"verdicts"`
}

// Member is a pod that takes part in a test of many.
type Member interface {
	// Local tests the pod alone.
	Local() ([]doctor.Answer, error)
	// Test tests the pod with the server at an address.
	Test(address string, tests Tests) ([]doctor.Answer, error)
}

// Seat is a member, its name, and the address of its server.
type Seat struct {
	Member
	Name, Address string
}

// All tests each pod alone, and each pair of pods, round by round. With first, only the
// pairs with the first pod. progress hears of each round. Answers of a member that are
// not about its own pod, or not about the pair, do not count.
func All(ctx context.Context, seats []Seat, tests Tests, first bool, progress func(round, of int)) Report {
	var mu sync.Mutex
	var r Report
	add := func(seat Seat, peer string, answers []doctor.Answer, err error) {
		mu.Lock()
		defer mu.Unlock()
		r.Answers = append(r.Answers, counted(seat, peer, answers, err)...)
	}
	each := func(n int, do func(int)) {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { do(i) })
		}
		wg.Wait()
	}
	for _, s := range seats {
		r.Pods = append(r.Pods, s.Name)
	}
	each(len(seats), func(i int) {
		answers, err := seats[i].Local()
		add(seats[i], "", answers, err)
	})
	rounds := Schedule(len(seats))
	for i, round := range rounds {
		if ctx.Err() != nil {
			break
		}
		if first {
			round = slices.DeleteFunc(round, func(p Pair) bool { return p.A != 0 })
		}
		progress(i+1, len(rounds))
		each(len(round), func(k int) {
			a, b := seats[round[k].A], seats[round[k].B]
			with := tests
			with.Peer = b.Name
			answers, err := a.Test(b.Address, with)
			if err != nil {
				err = fmt.Errorf("test %s with %s: %w", a.Name, b.Name, err)
			}
			add(a, b.Name, answers, err)
		})
	}
	slices.SortStableFunc(r.Answers, func(a, b doctor.Answer) int {
		if a.Of != b.Of {
			return strings.Compare(a.Of, b.Of)
		}
		return strings.Compare(a.Check, b.Check)
	})
	r.Verdicts = blame(r.Answers)
	return r
}

// counted returns the answers of a member that count, and what it could not answer.
func counted(seat Seat, peer string, answers []doctor.Answer, err error) []doctor.Answer {
	all := len(answers)
	answers = slices.DeleteFunc(answers, func(a doctor.Answer) bool { return !isAbout(a, seat.Name, peer) })
	if n := all - len(answers); n > 0 && err == nil {
		err = fmt.Errorf("%d answers of %s are not about itself", n, seat.Name)
	}
	if err != nil {
		answers = append(answers, answer(Reach, seat.Name, doctor.Finding{
			Verdict: doctor.CannotTell, Found: err.Error(), Missing: "rocectl verify serve in the pod, with the same token",
		}))
	}
	return answers
}

// isAbout says whether an answer is valid, and about a pod, or, with a peer, about these
// two. A pod that lies can only accuse itself, and the links that it has itself.
func isAbout(a doctor.Answer, self, peer string) bool {
	if !a.Verdict.Valid() {
		return false
	}
	_, x, y := between(a.Of)
	if peer == "" {
		return a.Of == self || x == self && y == ""
	}
	if _, other, cross := strings.Cut(y, " of "); cross {
		y = other
	}
	return x == self && y == peer
}

// between reads what an answer is about: "rail 3 of gpu-07 to gpu-01".
func between(of string) (rail, a, b string) {
	rail, rest, _ := strings.Cut(of, " of ")
	a, b, _ = strings.Cut(rest, " to ")
	return rail, a, b
}

// blame names faults. If a test of a rail fails with every other pod, and with at least
// two, the fault is that of this rail.
func blame(answers []doctor.Answer) []string {
	type place struct{ check, rail, pod string }
	tests, failed := map[place]int{}, map[place]int{}
	for _, a := range answers {
		rail, x, y := between(a.Of)
		if y == "" || strings.Contains(y, " ") {
			continue
		}
		for _, pod := range []string{x, y} {
			tests[place{a.Check, rail, pod}]++
			if a.Verdict == doctor.Problem {
				failed[place{a.Check, rail, pod}]++
			}
		}
	}
	var out []string
	blamed := map[place]bool{}
	for _, a := range answers {
		if a.Verdict != doctor.Problem {
			continue
		}
		rail, x, y := between(a.Of)
		line, of := a.Of+": "+a.Found, place{a.Check, a.Of, a.Found}
		for _, pod := range []string{x, y} {
			p := place{a.Check, rail, pod}
			if n := tests[p]; y != "" && n >= 2 && failed[p] == n {
				of = p
				line = fmt.Sprintf("%s of %s: %s fails with all %d other pods: %s", rail, pod, a.Check, n, general(a.Found, x, y))
			}
		}
		if !blamed[of] {
			out = append(out, line)
		}
		blamed[of] = true
	}
	return out
}

// general leaves out of a text which of the other pods it was.
func general(found, a, b string) string {
	found, _, _ = strings.Cut(found, " passes from ")
	for _, end := range []string{a, b} {
		found = strings.ReplaceAll(found, " from "+end, "")
		found = strings.ReplaceAll(found, " to "+end, "")
	}
	if rest, is := strings.CutPrefix(found, "no frame passes between "); is && rest != "" {
		return "no frame passes in either direction"
	}
	return found
}
