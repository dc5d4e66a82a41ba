// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
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
	alone func(rail int, pod string) []report.Answer // nil: it has no answers
}

func (c crowd) Local() (out []report.Answer, err error) {
	for rail := 0; c.alone != nil && rail < c.rails; rail++ {
		out = append(out, c.alone(rail, c.name)...)
	}
	return out, nil
}

func (c crowd) Test(address string, _ Tests) ([]report.Answer, error) {
	var out []report.Answer
	for rail := range c.rails {
		of := fmt.Sprintf("rail %d of %s to %s", rail, c.name, address)
		if c.fails(rail, c.name, address) {
			out = append(out, problem(Reach, of, fmt.Sprintf("no packet passes from %s to %s", c.name, address), "# do", "why"))
			continue
		}
		out = append(out, good(Reach, of, address+" answers"), good(MTU, of, "packets of 9000 bytes pass"))
	}
	return out, nil
}

func crowds(pods, rails int, fails func(rail int, a, b string) bool) []Seat {
	var out []Seat
	for i := range pods {
		name := fmt.Sprintf("gpu-%04d", i)
		out = append(out, Seat{Member: crowd{name: name, rails: rails, fails: fails}, Name: name, Address: name})
	}
	return out
}

// TestEachFaultIsOneLine: 64 pods with four rails, and one fault.
func TestEachFaultIsOneLine(t *testing.T) {
	t.Parallel()
	among := func(pod string, numbers ...int) bool {
		return slices.ContainsFunc(numbers, func(n int) bool { return pod == fmt.Sprintf("gpu-%04d", n) })
	}
	first := func(pod string) bool { return pod < "gpu-0032" } // half of them
	number := func(pod string) (n int) { _, _ = fmt.Sscanf(pod, "gpu-%d", &n); return n }
	for name, c := range map[string]struct {
		silent  func(rail int, pod string) bool // its gateway
		unruled func(rail int, pod string) bool
		fails   func(rail int, a, b string) bool
		racks   bool // each half has a gateway of its own
		want    string
	}{
		"all pods of a gateway": {
			silent: func(rail int, _ string) bool { return rail == 2 },
			want:   "rail 2: the gateway 172.16.2.254 answers none of 64 pods",
		},
		"some pods of a gateway": {
			silent: func(rail int, pod string) bool { return rail == 2 && among(pod, 7, 9, 30, 31, 32) },
			want:   "rail 2: the gateway 172.16.2.254 does not answer 5 of 64 pods: gpu-0007, gpu-0009, gpu-0030 to gpu-0032",
		},
		"a gateway of a rack": {
			silent: func(rail int, pod string) bool { return rail == 2 && first(pod) }, racks: true,
			want: "rail 2: the gateway 172.17.2.254 answers none of 32 pods",
		},
		"all rails of a pod": {
			unruled: func(_ int, pod string) bool { return among(pod, 23) },
			want:    "all 4 rails of gpu-0023: routing fails; rail 0: no rule",
		},
		"a rail of some pods": {
			unruled: func(rail int, pod string) bool { return rail == 1 && among(pod, 0, 63) },
			want:    "rail 1: routing fails in 2 of 64 pods: gpu-0000, gpu-0063; gpu-0000: no rule",
		},
		"a rail of many pods": {
			unruled: func(rail int, pod string) bool {
				return rail == 1 && among(pod, 0, 1, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 22)
			},
			want: "rail 1: routing fails in 13 of 64 pods: gpu-0000, gpu-0001, gpu-0004 to gpu-0006, gpu-0008, gpu-0010, gpu-0012, gpu-0014, gpu-0016 and 3 more; gpu-0000: no rule",
		},
		"what a rule that is lost explains": {
			unruled: func(rail int, pod string) bool { return rail == 1 && among(pod, 23) },
			fails:   func(rail int, a, b string) bool { return rail == 1 && (among(a, 23) || among(b, 23)) },
			want:    "rail 1 of gpu-0023: no rule",
		},
		"a cable": {
			silent: func(rail int, pod string) bool { return rail == 3 && among(pod, 7) },
			fails:  func(rail int, a, b string) bool { return rail == 3 && (among(a, 7) || among(b, 7)) },
			want:   "rail 3 of gpu-0007: reach fails with all 63 other pods: no packet",
		},
		"the cables of a pod": {
			fails: func(_ int, a, b string) bool { return among(a, 7) || among(b, 7) },
			want:  "all 4 rails of gpu-0007: reach fails; rail 0: no packet",
		},
		"two cables": {
			fails: func(rail int, a, b string) bool { return rail == 3 && (among(a, 7, 40) || among(b, 7, 40)) },
			want:  "rail 3: reach fails with all others in 2 of 64 pods: gpu-0007, gpu-0040; gpu-0007: no packet",
		},
		"a switch": {
			silent: func(rail int, _ string) bool { return rail == 3 },
			fails:  func(rail int, _, _ string) bool { return rail == 3 },
			want:   "rail 3: reach fails with all others in 64 of 64 pods: gpu-0000 to gpu-0063; gpu-0000: no packet",
		},
		"an uplink": {
			fails: func(rail int, a, b string) bool { return rail == 3 && first(a) != first(b) },
			want:  "rail 3: reach fails between 32 pods (gpu-0000 to gpu-0031) and 32 pods (gpu-0032 to gpu-0063): no packet",
		},
		"an uplink of a few pods, which are blamed": {
			fails: func(rail int, a, b string) bool { return rail == 3 && (a < "gpu-0010") != (b < "gpu-0010") },
			want:  "rail 3: reach fails between 54 pods (gpu-0010 to gpu-0063) and 10 pods (gpu-0000 to gpu-0009): no packet",
		},
		"a spine, which takes each fifth pair": {
			fails: func(rail int, a, b string) bool { return rail == 3 && (number(a)+number(b))%5 == 0 },
			want:  "rail 3: reach fails between 403 of 2016 pairs of pods; rail 3 of gpu-0003 to gpu-0062: no packet passes from gpu-0003 to gpu-0062",
		},
		"some pairs of a pod": {
			fails: func(rail int, a, b string) bool { return rail == 3 && among(a, 7) && !first(b) },
			want:  "rail 3 of gpu-0007: reach fails with 32 of 63 other pods: gpu-0032 to gpu-0063; no packet passes from gpu-0007 to gpu-0056",
		},
		"a pair": {
			fails: func(rail int, a, b string) bool { return rail == 3 && among(a, 7) && among(b, 9) },
			want:  "rail 3 of gpu-0007 to gpu-0009: no packet passes from gpu-0007 to gpu-0009",
		},
	} {
		if c.fails == nil {
			c.fails = func(int, string, string) bool { return false }
		}
		alone := func(rail int, pod string) []report.Answer {
			of, gateway := Pod{Name: pod}.Of(Rail{Number: rail}), fmt.Sprintf("172.16.%d.254", rail)
			if c.racks && first(pod) {
				gateway = fmt.Sprintf("172.17.%d.254", rail)
			}
			out := []report.Answer{good(Routing, of, ""), good(GatewayUp, of, gateway+" answers")}
			if c.unruled != nil && c.unruled(rail, pod) {
				out[0] = problem(Routing, of, "no rule", "", "")
			}
			if c.silent != nil && c.silent(rail, pod) {
				out[1] = problem(GatewayUp, of, fmt.Sprintf("the gateway %s does not answer on net%d", gateway, rail+1), "", "")
			}
			return out
		}
		seats := crowds(64, 4, c.fails)
		for i := range seats {
			seats[i].Member = crowd{name: seats[i].Name, rails: 4, fails: c.fails, alone: alone}
		}
		r := All(t.Context(), seats, Tests{}, false, func(int, int) {})
		if diff := cmp.Diff([]string{c.want}, faults(r)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
		for _, a := range r.Untold() {
			if a.Found != "gpu-0023 has a fault of its own on this rail: routing" || !strings.HasSuffix(a.Of, ", and 62 more") {
				t.Errorf("%s: it cannot tell %s: %s", name, a.Of, a.Found)
			}
		}
	}
}

// blameAll names faults from all answers: what blame does without the counts.
func blameAll(pods []string, answers []report.Answer) []string {
	whole := newTally(pods)
	whole.all = true
	whole.add(answers)
	return faults(whole.report())
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
		var names []string
		for _, s := range seats {
			names = append(names, s.Name)
		}
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
		if diff := cmp.Diff(blameAll(names, all), faults(r)); diff != "" {
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
		"healthy": {func(int, string, string) bool { return false }, 0, nil},
		"all is lost": {func(int, string, string) bool { return true }, 2 * pods, []string{
			"rail 0: reach fails with all others in 100 of 100 pods: gpu-0000 to gpu-0099; gpu-0000: no packet",
			"rail 1: reach fails with all others in 100 of 100 pods: gpu-0000 to gpu-0099; gpu-0000: no packet",
		}},
		"one rail of one pod": {
			func(rail int, a, b string) bool { return rail == 1 && (a == "gpu-0007" || b == "gpu-0007") }, pods,
			[]string{"rail 1 of gpu-0007: reach fails with all 99 other pods: no packet"},
		},
	} {
		r := All(t.Context(), crowds(pods, 2, c.fails), Tests{}, false, func(int, int) {})
		if n := len(r.Answers); n > c.answers || c.verdicts != nil && cmp.Diff(c.verdicts, faults(r)) != "" {
			t.Errorf("%s: %d answers, verdicts %q", name, n, faults(r))
		}
		if len(r.Answers) == 2*pods-2 && (r.Left == 0 || !strings.Contains(r.Summary(), fmt.Sprint(r.Left, " more"))) {
			t.Errorf("%s: %d left, %d verdicts: %s", name, r.Left, len(faults(r)), r.Summary())
		}
	}
}

// TestEachAnswerOfFewPodsIsKept, also of as many as are few.
func TestEachAnswerOfFewPodsIsKept(t *testing.T) {
	t.Parallel()
	for pods, want := range map[int]int{fewPods: 2 * fewPods * (fewPods - 1) / 2, fewPods + 1: 0} {
		r := All(t.Context(), crowds(pods, 1, func(int, string, string) bool { return false }), Tests{}, false, func(int, int) {})
		if len(r.Answers) != want {
			t.Errorf("of %d pods: %d answers, want %d", pods, len(r.Answers), want)
		}
	}
	partly := outcome{[]report.Answer{good(Reach, "rail 0 of a to b", "")}, errors.New("refused")}
	want := append(partly.answers[:1:1], cannotTell(Reach, "a", "refused", "rocectl verify serve in the pod, with the same $ROCE_VERIFY_TOKEN"))
	if diff := cmp.Diff(want, told(Seat{Name: "a"}, partly)); diff != "" {
		t.Errorf("answers before an error (-want +got)\n%s", diff)
	}
}

// TestTheFirstAnswerOfEachKindAndEndIsKept of many pods. The last one is about two pods that had one.
func TestTheFirstAnswerOfEachKindAndEndIsKept(t *testing.T) {
	t.Parallel()
	many := newTally(append([]string{"a", "b", "c"}, make([]string, fewPods)...))
	many.add([]report.Answer{
		cannotTell(Reach, "rail 0 of a to b", "not tested", "time"), problem(Reach, "rail 0 of a to b", "silent", "", ""), problem(MTU, "rail 0 of a to b", "1500", "", ""),
		problem(Reach, "rail 0 of a to c", "silent", "", ""), problem(Reach, "rail 0 of b to c", "silent", "", ""),
	})
	var got []string
	r := many.report()
	for _, a := range r.Answers {
		got = append(got, a.Check+" "+a.Of+": "+a.Found)
	}
	want := []string{"mtu rail 0 of a to b: 1500", "reach rail 0 of a to b: silent", "reach rail 0 of a to c: silent", "reach rail 0 of a to b: not tested"}
	if diff := cmp.Diff(want, got); r.Left != 1 || diff != "" {
		t.Errorf("%d are left (-want +got)\n%s", r.Left, diff)
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
