// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

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
