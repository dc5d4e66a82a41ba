// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// crowd is a member of a large cluster: with each other one it tests so many rails.
type crowd struct {
	name  string
	rails int
	fails func(rail int, a, b string) bool
}

func (c crowd) Local() ([]report.Answer, error) { return nil, nil }

func (c crowd) Test(address string, _ Tests) ([]report.Answer, error) {
	var out []report.Answer
	for rail := range c.rails {
		of := fmt.Sprintf("rail %d of %s to %s", rail, c.name, address)
		if c.fails(rail, c.name, address) {
			out = append(out, problem(Reach, of, fmt.Sprintf("no packet passes from %s to %s", c.name, address), "# do", "why"))
			continue
		}
		out = append(out, answer(Reach, of, report.Finding{Verdict: report.OK, Found: address + " answers"}), answer(MTU, of, report.Finding{Verdict: report.OK, Found: "packets of 9000 bytes pass"}))
	}
	return out, nil
}

func crowds(pods, rails int, fails func(rail int, a, b string) bool) []Seat {
	var out []Seat
	for i := range pods {
		name := fmt.Sprintf("gpu-%04d", i)
		out = append(out, Seat{Member: crowd{name, rails, fails}, Name: name, Address: name})
	}
	return out
}

// blameAll names faults from all answers: what blame does without the counts.
func blameAll(answers []report.Answer) []string {
	whole := newTally(0)
	for _, a := range answers {
		rail, x, y := between(a.Of)
		whole.vote(a, rail, x, y)
	}
	whole.answers = slices.Clone(answers)
	return whole.report(nil).Verdicts
}

// TestVerdictsOfManyPodsAreThoseOfAllAnswers compares with a report that keeps each answer, for
// random faults: of a rail with all others, and of single pairs.
func TestVerdictsOfManyPodsAreThoseOfAllAnswers(t *testing.T) {
	t.Parallel()
	for seed := range uint64(15) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		pods := fewPods + 1 + rnd.IntN(20)
		broken, pairs := map[string]bool{}, map[string]bool{}
		for range rnd.IntN(4) {
			broken[fmt.Sprintf("%d gpu-%04d", rnd.IntN(3), rnd.IntN(pods))] = true
		}
		for range rnd.IntN(4) {
			a := rnd.IntN(pods - 1)
			pairs[fmt.Sprintf("%d gpu-%04d gpu-%04d", rnd.IntN(3), a, a+1+rnd.IntN(pods-a-1))] = true
		}
		seats := crowds(pods, 3, func(rail int, a, b string) bool {
			return broken[fmt.Sprint(rail, " ", a)] || broken[fmt.Sprint(rail, " ", b)] || pairs[fmt.Sprint(rail, " ", a, " ", b)]
		})
		r := All(t.Context(), seats, Tests{}, false, func(int, int) {})
		var all []report.Answer
		bad := 0
		for _, p := range slices.Concat(Schedule(pods)...) {
			answers, _ := seats[p.A].Test(seats[p.B].Address, Tests{})
			for _, a := range answers {
				if a.Verdict != report.OK {
					bad++
				}
			}
			all = append(all, answers...)
		}
		if diff := cmp.Diff(blameAll(all), r.Verdicts); diff != "" {
			t.Errorf("seed %d (-all answers +report)\n%s", seed, diff)
		}
		if good := r.OK[Reach] + r.OK[MTU]; good != len(all)-bad || len(r.Answers)+r.Left != bad {
			t.Errorf("seed %d: %d ok, %d kept and %d left, want %d and %d", seed, good, len(r.Answers), r.Left, len(all)-bad, bad)
		}
	}
}

// TestAReportOfManyPodsIsShort: also if all tests fail.
func TestAReportOfManyPodsIsShort(t *testing.T) {
	t.Parallel()
	const pods = 100
	for name, c := range map[string]struct {
		fails    func(rail int, a, b string) bool
		answers  int // at most
		verdicts []string
	}{
		"healthy":     {func(int, string, string) bool { return false }, 0, nil},
		"all is lost": {func(int, string, string) bool { return true }, pods * mostOfOne, nil},
		"one rail of one pod": {
			func(rail int, a, b string) bool { return rail == 1 && (a == "gpu-0007" || b == "gpu-0007") }, pods,
			[]string{"rail 1 of gpu-0007: reach fails with all 99 other pods: no packet"},
		},
	} {
		r := All(t.Context(), crowds(pods, 2, c.fails), Tests{}, false, func(int, int) {})
		if n := len(r.Answers); n > c.answers || c.verdicts != nil && cmp.Diff(c.verdicts, r.Verdicts) != "" {
			t.Errorf("%s: %d answers, verdicts %q", name, n, r.Verdicts)
		}
		if c.answers == pods*mostOfOne && (r.Left == 0 || len(r.Verdicts) < pods || !strings.Contains(r.Summary(), fmt.Sprint(r.Left, " more"))) {
			t.Errorf("%s: %d left, %d verdicts: %s", name, r.Left, len(r.Verdicts), r.Summary())
		}
	}
}

// BenchmarkAThousandPods tests a thousand pods with eight rails each, of which one has a
// fault, and reports what stays in memory.
func BenchmarkAThousandPods(b *testing.B) {
	for name, few := range map[string]bool{"counted": false, "kept": true} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				seats := crowds(1000, 8, func(rail int, x, y string) bool { return rail == 3 && (x == "gpu-0007" || y == "gpu-0007") })
				m := meeting{seats: seats, tally: newTally(len(seats)), strikes: make([]int, len(seats)), gone: make([]bool, len(seats))}
				m.tally.all = few
				for _, round := range Schedule(len(seats)) {
					m.round(round, Tests{})
				}
				r := m.tally.report(nil)
				var after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapAlloc)/1e6, "MB")
				b.ReportMetric(float64(len(r.Answers)), "answers")
			}
		})
	}
}

// TestInviteKeepsTheOrderAndItsLimit: as many dials as the limit are made at the same time,
// and no more.
func TestInviteKeepsTheOrderAndItsLimit(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	now, most := 0, 0
	full := make(chan struct{})
	fill := sync.OnceFunc(func() { close(full) })
	p := Pod{Enter: func(func() error) error {
		mu.Lock()
		now++
		most = max(most, now)
		if now == dials {
			fill()
		}
		mu.Unlock()
		<-full
		mu.Lock()
		defer mu.Unlock()
		now--
		return errors.New("refused")
	}}
	guests := make([]Guest, 2*dials)
	for i := range guests {
		guests[i] = Guest{Address: fmt.Sprint("10.0.0.", i)}
	}
	guests[3].Name = "gpu-03"
	for i, s := range p.Invite(t.Context(), guests, testKey) {
		if s.Address != guests[i].Address || s.Absent == nil || s.Member != nil || (s.Name == "gpu-03") != (i == 3) {
			t.Errorf("seat %d: %+v", i, s)
		}
	}
	if most != dials {
		t.Errorf("%d dials at the same time, want %d", most, dials)
	}
}

func TestLeaveEndsEachConnection(t *testing.T) {
	t.Parallel()
	var seats []Seat
	var ends []net.Conn
	for range 3 {
		near, far := net.Pipe()
		seats, ends = append(seats, Seat{Member: &Peer{wire: newWire(near)}}, Seat{Absent: errors.New("refused")}, Seat{Member: crowd{}}), append(ends, far)
	}
	Leave(seats)
	for _, far := range ends {
		if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("got %v, want the end", err)
		}
	}
}
