// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Report is what a test of pods has found.
type Report struct {
	// Cluster and Version are those of the caller, if it says so.
	Cluster string    `json:"cluster,omitempty"`
	Version string    `json:"version,omitempty"`
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"`
	Pods    []Row     `json:"pods"`
	// Faults are one answer for each fault, however many tests it lets fail.
	Faults []report.Answer `json:"faults"`
	// Answers are those that are not ok: of very many that are alike, the first ones. If
	// the pods are few, they are all answers.
	Answers []report.Answer `json:"answers"`
	// OK counts the answers that are ok, by check. Left counts those that are not ok, and
	// not in Answers.
	OK   map[string]int `json:"ok"`
	Left int            `json:"left,omitempty"`
}

// Row is a pod with its rails.
type Row struct {
	Name  string `json:"name"`
	Rails []Cell `json:"rails"`
}

// Cell is a rail of a pod.
type Cell struct {
	// Sign is Works, Unknown, or the letter of one of Signs: a small one if the rail fails with
	// some pods only. It is "" if the pod has no such rail.
	Sign   string   `json:"sign"`
	Faults []string `json:"faults,omitempty"`
	// Gbps is the fastest of its transfers by RDMA: a slow peer makes others slow.
	Gbps float64 `json:"gbps,omitempty"`
}

// Sign stands for a kind of fault.
type Sign struct{ Check, Letter, Means string }

// Signs of rails without a fault.
const (
	Works   = "."
	Unknown = "?"
)

// Signs returns the signs in the order in which a reader needs them: causes in a pod first.
func Signs() []Sign {
	return []Sign{
		{Routing, "R", "rule, table or link of the pod"},
		{Duplicate, "D", "another host has the address"},
		{Reach, "X", "no packet passes"},
		{MTU, "M", "no packet of the full MTU passes"},
		{GatewayUp, "G", "the gateway does not answer"},
		{GID, "I", "no GID"},
		{Handshake, "C", "RDMA does not connect"},
		{Bandwidth, "B", "RDMA does not transfer"},
	}
}

// rank is the position of a check in Signs. Container, which is no sign of a rail, comes last.
func rank(check string) int {
	if i := slices.IndexFunc(Signs(), func(s Sign) bool { return s.Check == check }); i >= 0 {
		return i
	}
	return len(Signs())
}

// letter is the sign of a check, "" if that is not about a rail.
func letter(check string) string {
	if i := rank(check); i < len(Signs()) {
		return Signs()[i].Letter
	}
	return ""
}

// spot is a rail of a pod; rail -1 is the pod.
type spot struct {
	rail int
	pod  string
}

// place is a test of a rail of a pod.
type place struct {
	check string
	spot
}

// subject is what an answer is about: "rail 3 of gpu-07", or "rail 3 of gpu-07 to gpu-01", or
// "rail 3 of gpu-07 to rail 4 of gpu-01", or a pod.
type subject struct {
	rail, far int // far is rail, but for a test of different rails
	pod, peer string
}

func subjectOf(of string) subject {
	s := subject{rail: -1, pod: of}
	head, rest, found := strings.Cut(of, " of ")
	if found {
		_, _ = fmt.Sscanf(head, "rail %d", &s.rail) // or it is "all rails"
		s.pod, s.peer, _ = strings.Cut(rest, " to ")
	}
	s.far = s.rail
	if head, peer, cross := strings.Cut(s.peer, " of "); cross {
		_, _ = fmt.Sscanf(head, "rail %d", &s.far)
		s.peer = peer
	}
	return s
}

func (s subject) spot() spot { return spot{s.rail, s.pod} }

// ends returns the rails that an answer is about.
func (s subject) ends() []spot {
	if s.peer == "" {
		return []spot{s.spot()}
	}
	return []spot{s.spot(), {s.far, s.peer}}
}

// gatewayOf returns the gateway that an answer is about, or "".
func gatewayOf(a report.Answer) string {
	words := strings.Fields(a.Found)
	switch {
	case a.Check == GatewayUp && a.Verdict == report.OK && len(words) == 2: // "172.16.0.254 answers"
		return words[0]
	case a.Check == GatewayUp && a.Verdict == report.Problem && len(words) > 2: // "the gateway 172.16.0.254 does not answer"
		return words[2]
	}
	return ""
}

// grid is the results of a test of one rail of all pods, by the positions of pods.
type grid struct {
	state         []byte
	tests, failed []int // of each pod
}

const (
	untested byte = iota
	passes
	fails
)

func (g *grid) at(i, j int) byte { return g.state[i*len(g.tests)+j] }

func (g *grid) set(i, j int, state byte) {
	for _, p := range [][2]int{{i, j}, {j, i}} {
		g.state[p[0]*len(g.tests)+p[1]] = state
		g.tests[p[0]]++
		if state == fails {
			g.failed[p[0]]++
		}
	}
}

// groups returns for each pod those that it reaches, also by way of others, with itself; nil if
// it was not tested.
func (g *grid) groups() [][]int {
	out := make([][]int, len(g.tests))
	for i := range out {
		if out[i] != nil || g.tests[i] == 0 {
			continue
		}
		in := map[int]bool{i: true}
		members := []int{i}
		for k := 0; k < len(members); k++ {
			for j := range out {
				if !in[j] && g.at(members[k], j) == passes {
					in[j], members = true, append(members, j)
				}
			}
		}
		slices.Sort(members)
		for _, j := range members {
			out[j] = members
		}
	}
	return out
}

// fewPods is the most pods of a test of which each answer is kept. A thousand nodes with
// eight rails give eight million answers.
const fewPods = 16

// tally counts answers, and keeps those that a reader needs.
type tally struct {
	pods    []string
	at      map[string]int // the positions of pods
	all     bool           // the pods are few
	answers []report.Answer
	ok      map[string]int // by check
	left    int
	cells   map[spot]*Cell
	ailing  map[spot]bool          // the pod itself has a fault
	asked   map[column]int         // how many pods have a gateway
	grids   map[column]*grid       // tests of the same rail of two pods
	first   map[kind]report.Answer // the first one of each kind
}

// kind is a verdict of a place, alone or with others.
type kind struct {
	place
	others  bool
	verdict report.Verdict
}

func newTally(pods []string) *tally {
	t := &tally{
		pods: pods, at: map[string]int{}, all: len(pods) <= fewPods, ok: map[string]int{}, cells: map[spot]*Cell{},
		ailing: map[spot]bool{}, asked: map[column]int{}, grids: map[column]*grid{}, first: map[kind]report.Answer{},
	}
	for i, name := range pods {
		t.at[name] = i
	}
	return t
}

func (t *tally) add(answers []report.Answer) {
	for _, a := range answers {
		s := subjectOf(a.Of)
		a = t.explained(a, s)
		t.note(a, s)
		if a.Verdict == report.OK {
			t.ok[a.Check]++
		}
		switch {
		case t.isFirst(a, s) && a.Verdict != report.OK || t.all:
			t.answers = append(t.answers, a)
		case a.Verdict != report.OK:
			t.left++
		}
	}
}

// explained says of a test of two pods that it has failed for what is wrong in one of them: that
// comes before switches and cables. The pods have tested themselves before.
func (t *tally) explained(a report.Answer, s subject) report.Answer {
	for _, end := range s.ends() {
		if s.peer != "" && a.Verdict == report.Problem && t.ailing[end] {
			return cannotTell(a.Check, a.Of, end.pod+" has a fault of its own on this rail: "+Routing, "a test after its repair")
		}
	}
	return a
}

// note keeps what a fault is told by.
func (t *tally) note(a report.Answer, s subject) {
	if s.rail < 0 {
		return
	}
	for _, end := range s.ends() {
		c := t.cells[end]
		if c == nil {
			c = &Cell{Sign: Works}
			t.cells[end] = c
		}
		if s.peer == "" && a.Verdict == report.CannotTell {
			c.Sign = Unknown
		}
		var gbps float64 // 0 if it says none
		_, _ = fmt.Sscanf(a.Found, transfers+"%f", &gbps)
		c.Gbps = max(c.Gbps, gbps)
	}
	if a.Check == Routing && a.Verdict == report.Problem {
		t.ailing[s.spot()] = true
	}
	if gateway := gatewayOf(a); gateway != "" {
		t.asked[column{a.Check, gateway, s.rail}]++
	}
	if s.peer != "" && s.rail == s.far && a.Verdict != report.CannotTell {
		of := column{check: a.Check, rail: s.rail}
		if t.grids[of] == nil {
			n := len(t.pods)
			t.grids[of] = &grid{make([]byte, n*n), make([]int, n), make([]int, n)}
		}
		t.grids[of].set(t.at[s.pod], t.at[s.peer], map[report.Verdict]byte{report.OK: passes, report.Problem: fails}[a.Verdict])
	}
}

// isFirst says whether there was no answer like this one about one of its ends.
func (t *tally) isFirst(a report.Answer, s subject) (is bool) {
	for _, end := range s.ends() {
		k := kind{place{a.Check, end}, s.peer != "", a.Verdict}
		if _, known := t.first[k]; !known {
			t.first[k], is = a, true
		}
	}
	return is
}

// report returns the faults, and what is kept: problems first, and then in the order of what
// it is about.
func (t *tally) report() Report {
	r := Report{OK: t.ok, Left: t.left}
	for _, f := range t.faults() {
		r.Faults = append(r.Faults, f.Answer)
		line := f.Of + ": " + f.Found
		for _, s := range f.spots {
			c := t.cells[s]
			if c.Sign == Works || c.Sign == Unknown {
				c.Sign = letter(f.Check)
				if f.some {
					c.Sign = strings.ToLower(c.Sign)
				}
			}
			if !slices.Contains(c.Faults, line) {
				c.Faults = append(c.Faults, line)
			}
		}
	}
	r.Pods = t.rows()
	order := []report.Verdict{report.Problem, report.CannotTell, report.OK}
	slices.SortStableFunc(t.answers, func(a, b report.Answer) int {
		return cmp.Or(slices.Index(order, a.Verdict)-slices.Index(order, b.Verdict), strings.Compare(a.Of, b.Of), strings.Compare(a.Check, b.Check))
	})
	r.Answers = t.answers
	return r
}

// rows returns the rails of each pod. All are unknown if the pod has told nothing.
func (t *tally) rows() []Row {
	most := 0
	for s := range t.cells {
		most = max(most, s.rail+1)
	}
	var out []Row
	for _, pod := range t.pods {
		row := make([]Cell, most)
		for i := range row {
			if c := t.cells[spot{i, pod}]; c != nil {
				row[i] = *c
			} else if t.count(func(s spot) bool { return s.pod == pod }) == 0 {
				row[i].Sign = Unknown
			}
		}
		out = append(out, Row{pod, row})
	}
	return out
}
