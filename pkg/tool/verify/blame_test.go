// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// member answers as a pod of a cluster with faults.
type member struct {
	name   string
	faults func(a, b string) string // what reach finds, "" if all is well
	mu     *sync.Mutex
	busy   map[string]bool
}

func (m member) Local() ([]report.Answer, error) {
	if m.name == "dead" {
		return nil, fmt.Errorf("%w: EOF", ErrGone)
	}
	return nil, nil
}

func (m member) Test(address string, with Tests) ([]report.Answer, error) {
	switch {
	case with.Peer != address:
		return nil, fmt.Errorf("%s is called %s", address, with.Peer)
	case m.name == "gone":
		return nil, fmt.Errorf("%w: EOF", ErrGone)
	case address == "gone", address == "shy", address == "flaky" && m.odd():
		return nil, errors.New("connection refused")
	}
	m.mu.Lock()
	twice := m.busy[m.name] || m.busy[address]
	m.busy[m.name], m.busy[address] = true, true
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.busy[m.name], m.busy[address] = false, false
	}()
	if twice {
		return nil, errors.New("two tests on one NIC")
	}
	of := fmt.Sprintf("rail 3 of %s to %s", m.name, address)
	if found := m.faults(m.name, address); found != "" {
		return []report.Answer{problem(Reach, of, found, "# do", "why")}, nil
	}
	return []report.Answer{good(Reach, of, "all is well")}, nil
}

// odd returns true at every second call.
func (m member) odd() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy["odd"] = !m.busy["odd"]
	return m.busy["odd"]
}

func seats(faults func(a, b string) string, names ...string) []Seat {
	mu, busy := &sync.Mutex{}, map[string]bool{}
	var out []Seat
	for _, n := range names {
		out = append(out, Seat{Member: member{n, faults, mu, busy}, Name: n, Address: n})
	}
	return out
}

func TestAFaultIsThatOfARailIfAllItsTestsFail(t *testing.T) {
	t.Parallel()
	const large = "no packet with more than 1500 bytes passes from %s to %s, and the MTU is 9000"
	for _, c := range []struct {
		name   string
		faults func(a, b string) string
		pods   []string
		want   []string
	}{
		{"healthy", func(string, string) string { return "" }, []string{"a", "b", "c"}, nil},
		{
			"one rail", func(a, b string) string {
				if a == "gpu-07" || b == "gpu-07" {
					return fmt.Sprintf(large, a, b)
				}
				return ""
			},
			[]string{"gpu-01", "gpu-02", "gpu-07", "gpu-08"},
			[]string{"rail 3 of gpu-07: reach fails with all 3 other pods: no packet with more than 1500 bytes"},
		},
		{
			"loss to one rail", func(a, b string) string {
				switch "gpu-07" {
				case a:
					return fmt.Sprintf("frames are lost in one direction: from %s to %s", b, a)
				case b:
					return fmt.Sprintf("frames are lost in one direction: from %s to %s", a, b)
				}
				return ""
			},
			[]string{"gpu-01", "gpu-02", "gpu-07", "gpu-08"},
			[]string{"rail 3 of gpu-07: reach fails with all 3 other pods: frames are lost in one direction: to gpu-07"},
		},
		{
			"loss from one rail", func(a, b string) string {
				switch "gpu-07" {
				case a:
					return fmt.Sprintf("frames are lost in one direction: from %s to %s", a, b)
				case b:
					return fmt.Sprintf("frames are lost in one direction: from %s to %s", b, a)
				}
				return ""
			},
			[]string{"gpu-01", "gpu-02", "gpu-07", "gpu-08"},
			[]string{"rail 3 of gpu-07: reach fails with all 3 other pods: frames are lost in one direction: from gpu-07"},
		},
		{
			"loss to the first rail", func(a, b string) string {
				if a == "gpu-01" {
					return fmt.Sprintf("frames are lost in one direction: from %s to %s", b, a)
				}
				return ""
			},
			[]string{"gpu-01", "gpu-02", "gpu-07", "gpu-08"},
			[]string{"rail 3 of gpu-01: reach fails with all 3 other pods: frames are lost in one direction: to gpu-01"},
		},
		{
			"one pair", func(a, b string) string {
				if a == "a" && b == "b" {
					return "no frame passes between 10.0.0.1 and 10.0.0.2 in either direction"
				}
				return ""
			},
			[]string{"a", "b", "c"},
			[]string{"rail 3 of a to b: no frame passes between 10.0.0.1 and 10.0.0.2 in either direction"},
		},
		{
			"two pods", func(a, b string) string { return fmt.Sprintf(large, a, b) },
			[]string{"a", "b"},
			[]string{"rail 3 of a to b: " + fmt.Sprintf(large, "a", "b")},
		},
	} {
		r := All(t.Context(), seats(c.faults, c.pods...), Tests{}, false, func(int, int) {})
		if diff := cmp.Diff(c.want, faults(r)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.name, diff)
		}
		if n := len(c.pods); len(r.Answers) != n*(n-1)/2 {
			t.Errorf("%s: %d answers of %d pods", c.name, len(r.Answers), n)
		}
	}
}

// The plan need not connect a rail with other rails.
func TestTestsOfDifferentRailsBlameNoRail(t *testing.T) {
	t.Parallel()
	all := newTally([]string{"a", "b", "c"})
	all.add([]report.Answer{problem(Reach, "rail 3 of a to rail 4 of b", "silent", "", ""), problem(Reach, "rail 3 of a to rail 4 of c", "silent", "", "")})
	want := []string{"rail 3 of a to rail 4 of b and 1 more: silent"}
	r := all.report()
	if diff := cmp.Diff(want, faults(r)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a: -,-,-,x,-", "b: -,-,-,-,x", "c: -,-,-,-,."}, matrix(r)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// matrix returns a line for each pod: the signs of its rails, - for one that it does not have.
func matrix(r Report) []string {
	var out []string
	for _, pod := range r.Pods {
		var signs []string
		for _, c := range pod.Rails {
			if c.Sign == "" {
				c.Sign = "-"
			}
			signs = append(signs, c.Sign)
		}
		out = append(out, pod.Name+": "+strings.Join(signs, ","))
	}
	return out
}

// TestEachFaultHasItsRailsAndNoOther has three pods with two rails or one, and a fault or two.
func TestEachFaultHasItsRailsAndNoOther(t *testing.T) {
	t.Parallel()
	pods := []string{"a", "b", "c"}
	for name, tt := range map[string]struct {
		bad  []report.Answer
		want []string
		rows string
	}{
		"nothing": {nil, nil, "a: .,. b: .,. c: .,-"},
		"no GID in a pod": {
			[]report.Answer{problem(GID, "all rails of a", "none", "", "")},
			[]string{"all rails of a: none"},
			"a: I,I b: .,. c: .,-",
		},
		"a gateway, and a rail that is silent": {
			[]report.Answer{
				problem(GatewayUp, "rail 1 of b", "the gateway 10.1.0.254 does not answer on net2", "", ""),
				problem(Reach, "rail 0 of a to b", "silent", "", ""), problem(Reach, "rail 0 of a to c", "silent", "", ""),
			},
			[]string{"rail 0 of a: reach fails with all 2 other pods: silent", "rail 1 of b: the gateway 10.1.0.254 does not answer on net2"},
			"a: X,. b: .,G c: .,-",
		},
		"a gateway, also of a rail that is silent": {
			[]report.Answer{
				problem(GatewayUp, "rail 0 of a", "the gateway 10.0.0.254 does not answer on net1", "", ""), problem(GatewayUp, "rail 0 of b", "the gateway 10.0.0.254 does not answer on net1", "", ""),
				problem(Reach, "rail 0 of a to b", "silent", "", ""), problem(Reach, "rail 0 of a to c", "silent", "", ""),
			},
			[]string{"rail 0 of a: reach fails with all 2 other pods: silent", "rail 0: the gateway 10.0.0.254 answers none of 2 pods"},
			"a: X,. b: G,. c: .,-",
		},
		"a pod that was tested with one other": {
			[]report.Answer{problem(Reach, "rail 0 of a to c", "silent", "", ""), good(Reach, "rail 0 of a to b", "")},
			[]string{"rail 0 of a to c: silent"},
			"a: x,. b: .,. c: x,-",
		},
		"the first pod was tested with one other": {
			[]report.Answer{problem(Reach, "rail 0 of a to c", "silent", "", ""), good(Reach, "rail 0 of b to c", "")},
			[]string{"rail 0 of a to c: silent"},
			"a: x,. b: .,. c: x,-",
		},
		"different rails, one of which is lost": {
			[]report.Answer{
				problem(Reach, "rail 0 of a to b", "silent", "", ""), problem(Reach, "rail 0 of a to c", "silent", "", ""),
				problem(Reach, "rail 1 of b to rail 0 of a", "silent", "", ""),
			},
			[]string{"rail 0 of a: reach fails with all 2 other pods: silent"},
			"a: X,. b: .,. c: .,-",
		},
		"a rail of which one test could not run": {
			[]report.Answer{cannotTell(GatewayUp, "rail 1 of b", "no right", "root"), problem(Routing, "rail 1 of b", "down", "", "")},
			[]string{"rail 1 of b: down"},
			"a: .,. b: .,R c: .,-",
		},
		"rails of different pods": {
			[]report.Answer{problem(Routing, "rail 1 of b", "down", "", ""), problem(Routing, "rail 0 of a", "no rule", "", "")},
			[]string{"rail 0 of a: no rule", "rail 1 of b: down"},
			"a: R,. b: .,R c: .,-",
		},
		"the last rail, of all pods that have it": {
			[]report.Answer{problem(Routing, "rail 1 of a", "no rule", "", ""), problem(Routing, "rail 1 of b", "down", "", "")},
			[]string{"rail 1: routing fails in 2 of 2 pods: a, b; a: no rule"},
			"a: .,R b: .,R c: .,-",
		},
		"a pair that fails in a later test": {
			[]report.Answer{
				good(Reach, "rail 0 of a to b", "it answers"), problem(Handshake, "rail 0 of a to b", "refused", "# do", "why"), problem(Bandwidth, "rail 0 of a to b", "no memory", "", ""),
				good(Handshake, "rail 0 of a to c", ""), good(Bandwidth, "rail 0 of a to c", ""), good(Handshake, "rail 0 of b to c", ""), good(Bandwidth, "rail 0 of b to c", ""),
			},
			[]string{"rail 0 of a to b: refused", "rail 0 of a to b: no memory"},
			"a: c,. b: c,. c: .,-",
		},
		"a pair, also with another rail": {
			[]report.Answer{problem(Reach, "rail 0 of a to rail 1 of b", "lost", "", ""), problem(Reach, "rail 0 of a to b", "silent", "", ""), good(Reach, "rail 0 of a to c", ""), good(Reach, "rail 0 of b to c", "")},
			[]string{"rail 0 of a to b: silent", "rail 0 of a to rail 1 of b: lost"},
			"a: x,. b: x,x c: .,-",
		},
		"different tests of all rails of a pod": {
			[]report.Answer{problem(Routing, "rail 0 of a", "down", "", ""), problem(Duplicate, "rail 1 of a", "taken", "", "")},
			[]string{"rail 0 of a: down", "rail 1 of a: taken"},
			"a: R,D b: .,. c: .,-",
		},
		"a gateway, also of a rail without large packets": {
			[]report.Answer{
				problem(GatewayUp, "rail 0 of a", "the gateway 10.0.0.254 does not answer on net1", "", ""), problem(MTU, "rail 0 of a to b", "1500", "", ""), problem(MTU, "rail 0 of a to c", "1500", "", ""),
			},
			[]string{"rail 0 of a: mtu fails with all 2 other pods: 1500", "rail 0 of a: the gateway 10.0.0.254 does not answer on net1"},
			"a: M,. b: .,. c: .,-",
		},
		"different rails in two tests": {
			[]report.Answer{problem(Reach, "rail 1 of a to rail 0 of b", "lost", "", ""), problem(MTU, "rail 1 of a to rail 0 of b", "1500", "", "")},
			[]string{"rail 1 of a to rail 0 of b: lost", "rail 1 of a to rail 0 of b: 1500"},
			"a: .,x b: x,. c: .,-",
		},
		"different rails": {
			[]report.Answer{problem(Reach, "rail 1 of a to rail 0 of b", "lost", "", ""), problem(Reach, "rail 0 of a to rail 1 of b", "silent", "", "")},
			[]string{"rail 0 of a to rail 1 of b: silent", "rail 1 of a to rail 0 of b: lost"},
			"a: x,x b: x,x c: .,-",
		},
		"a test that could not run": {
			[]report.Answer{cannotTell(GatewayUp, "rail 1 of b", "no right", "root"), cannotTell(Handshake, "rail 0 of a to b", "not tested", "rping")},
			nil, "a: .,. b: .,? c: .,-",
		},
	} {
		all := newTally(pods)
		for _, of := range []string{"rail 0 of a", "rail 1 of a", "rail 0 of b", "rail 1 of b", "rail 0 of c"} {
			all.add([]report.Answer{good(Duplicate, of, "")})
		}
		all.add(tt.bad)
		r := all.report()
		if diff := cmp.Diff(tt.want, faults(r)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
		if got := strings.Join(matrix(r), " "); got != tt.rows {
			t.Errorf("%s: got %s, want %s", name, got, tt.rows)
		}
		if len(r.Answers) != len(tt.bad)+5 || len(tt.bad) > 0 && r.Answers[0].Verdict == report.OK {
			t.Errorf("%s: the answers begin with %+v", name, r.Answers[0])
		}
	}
}

// TestSomeRailsOfAPodAreNotAll: two of three.
func TestSomeRailsOfAPodAreNotAll(t *testing.T) {
	t.Parallel()
	all := newTally([]string{"a", "b"})
	all.add([]report.Answer{
		problem(Routing, "rail 0 of a", "down", "", ""), problem(Routing, "rail 1 of a", "no rule", "", ""), good(Routing, "rail 2 of a", ""),
		good(Routing, "rail 0 of b", ""), good(Routing, "rail 1 of b", ""),
	})
	if diff := cmp.Diff([]string{"rail 0 of a: down", "rail 1 of a: no rule"}, faults(all.report())); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestAPodThatToldNothingIsNoneOfThoseThatAreCounted: each of the others fails on rail 0.
func TestAPodThatToldNothingIsNoneOfThoseThatAreCounted(t *testing.T) {
	t.Parallel()
	all := newTally([]string{"a", "b", "absent"})
	for _, pod := range []string{"a", "b"} {
		all.add([]report.Answer{problem(Duplicate, "rail 0 of "+pod, "taken", "", ""), good(Duplicate, "rail 1 of "+pod, "")})
	}
	all.add([]report.Answer{problem(Container, "a", "no memory", "", "")}) // not of a rail, so among all
	r := all.report()
	want := []string{"rail 0: address-conflict fails in 2 of 2 pods: a, b; a: taken", "a: no memory"}
	if diff := cmp.Diff(want, faults(r)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a: D,.", "b: D,.", "absent: ?,?"}, matrix(r)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestAFaultOfPodsAsAWholeIsCountedAmongAll(t *testing.T) {
	t.Parallel()
	all := newTally([]string{"a", "b", "c"})
	all.add([]report.Answer{problem(Container, "a", "no memory", "", ""), problem(Container, "c", "no device", "", "")})
	if diff := cmp.Diff([]string{"pods: container fails in 2 of 3 pods: a, c; a: no memory"}, faults(all.report())); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestALaterPodMayTellOfAnEarlierOne: the words are those about this pair, and not about one of another fault.
func TestALaterPodMayTellOfAnEarlierOne(t *testing.T) {
	t.Parallel()
	all := newTally([]string{"a", "b", "c", "d"})
	for _, of := range []string{"a to c", "c to b", "d to c", "b to d"} {
		all.add([]report.Answer{good(Reach, "rail 3 of "+of, "all is well")})
	}
	all.add([]report.Answer{problem(Reach, "rail 3 of a to rail 4 of b", "no way", "", ""), problem(Reach, "rail 3 of d to a", "silent", "", "")})
	want := []string{"rail 3 of d to a: silent", "rail 3 of a to rail 4 of b: no way"}
	if diff := cmp.Diff(want, faults(all.report())); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// The pods that have no such rail are none of those that a fault is counted among.
func TestAFaultIsCountedAmongTestedPods(t *testing.T) {
	t.Parallel()
	all := newTally([]string{"a", "b", "c", "d"})
	for _, of := range []string{"rail 3 of a to b", "rail 3 of a to c", "rail 3 of b to c"} {
		all.add([]report.Answer{problem(Reach, of, "silent", "", "")})
	}
	want := []string{"rail 3: reach fails with all others in 3 of 3 pods: a to c; a: silent"}
	if diff := cmp.Diff(want, faults(all.report())); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func noFaults(string, string) string { return "" }

// TestAPodThatDoesNotAnswerStopsNothing: it gives one answer if it is absent or its
// connection ends, and one more for each of the three others that tried to reach it.
func TestAPodThatDoesNotAnswerStopsNothing(t *testing.T) {
	t.Parallel()
	var rounds []string
	absent := seats(noFaults, "a", "gone", "c")
	absent[1].Member, absent[1].Absent = nil, errors.New("connection refused")
	r := All(t.Context(), absent, Tests{}, false, func(i, of int) { rounds = append(rounds, fmt.Sprintf("%d/%d", i, of)) })
	if diff := cmp.Diff([]string{"0/3", "1/3", "2/3", "3/3"}, rounds); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	want := cannotTell(Reach, "gone", "connection refused", "rocectl verify serve in the pod, with the same $ROCE_VERIFY_TOKEN")
	if diff := cmp.Diff(want, r.Answers[0]); diff != "" {
		t.Errorf("absent (-want +got)\n%s", diff)
	}
	if got := r.Summary(); got != "1 ok, 0 problems, 1 cannot tell" {
		t.Errorf("absent: got %s: %+v", got, r.Answers)
	}
	// It is A in all pairs, so its connection ends in the first round.
	r = All(t.Context(), seats(noFaults, "gone", "b", "c", "d", "e"), Tests{}, false, func(int, int) {})
	if got := r.Summary(); got != "6 ok, 0 problems, 1 cannot tell" {
		t.Errorf("its connection has ended: got %s: %+v", got, r.Answers)
	}
	// It is B in all pairs.
	names := []string{"a", "b", "c", "d", "e", "f", "g", "gone"}
	r = All(t.Context(), seats(noFaults, names...), Tests{}, false, func(int, int) {})
	if got := r.Summary(); got != "21 ok, 0 problems, 4 cannot tell" || !slices.ContainsFunc(r.Answers, func(a report.Answer) bool {
		return a.Of == "gone" && strings.HasPrefix(a.Found, "3 pods, one after another, could not reach it")
	}) {
		t.Errorf("three cannot reach it: got %s: %+v", got, r.Answers)
	}
	if a := r.Answers[0]; a.Of != "a" || a.Found != "test a with gone: connection refused" {
		t.Errorf("three cannot reach it: it begins with %s: %s", a.Of, a.Found)
	}
	names[len(names)-1] = "flaky"
	r = All(t.Context(), seats(noFaults, names...), Tests{}, false, func(int, int) {})
	if got := r.Summary(); got != "24 ok, 0 problems, 4 cannot tell" {
		t.Errorf("every second one cannot reach it: got %s", got)
	}
	r = All(t.Context(), seats(noFaults, "a", "b", "c", "d", "shy", "f", "g", "h"), Tests{}, false, func(int, int) {})
	if got := r.Summary(); got != "24 ok, 0 problems, 4 cannot tell" {
		t.Errorf("four cannot reach it, and it reaches others meanwhile: got %s", got)
	}
	r = All(t.Context(), seats(noFaults, "dead", "b", "c"), Tests{}, false, func(int, int) {})
	if got := r.Summary(); got != "1 ok, 0 problems, 1 cannot tell" {
		t.Errorf("it has gone before the first round: got %s: %+v", got, r.Answers)
	}
	r = All(t.Context(), seats(noFaults, "a", "b", "c"), Tests{}, true, func(int, int) {})
	if got := r.Summary(); got != "2 ok, 0 problems, 0 cannot tell" {
		t.Errorf("the first pod with the others: got %s", got)
	}
}

// TestAReportSaysHowLongItTook, and no round begins after its end.
func TestAReportSaysHowLongItTook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		pods, began := seats(noFaults, "a", "b", "c", "d"), time.Now()
		for i := range pods {
			pods[i].Member = sluggish{pods[i].Member}
		}
		r := All(ctx, pods, Tests{}, false, func(round, _ int) {
			if round == 2 {
				cancel()
			}
		})
		if !r.Began.Equal(began) || r.Seconds != 3*60 || r.OK[Reach] != 4 { // each pod alone, and two rounds of two pairs
			t.Errorf("it began at %s, took %v s, and had %d pairs", r.Began, r.Seconds, r.OK[Reach])
		}
	})
}

// sluggish is a member that takes a minute for each answer.
type sluggish struct{ Member }

func (s sluggish) Local() ([]report.Answer, error) {
	time.Sleep(time.Minute)
	return s.Member.Local()
}

func (s sluggish) Test(address string, tests Tests) ([]report.Answer, error) {
	time.Sleep(time.Minute)
	return s.Member.Test(address, tests)
}

func TestThePageNeedsNoNetwork(t *testing.T) {
	t.Parallel()
	r := All(t.Context(), seats(func(a, _ string) string { return "<b>" + a }, "a", "b"), Tests{}, false, func(int, int) {})
	var out bytes.Buffer
	if err := r.WritePage(&out); err != nil {
		t.Fatal(err)
	}
	for _, not := range []string{"http:", "https:", "src=", "href=", "<b>", "url("} {
		if strings.Contains(out.String(), not) {
			t.Errorf("the page has %q", not)
		}
	}
	for _, want := range []string{"2 pods with 4 rails", "rail 3 of a to b: &lt;b&gt;a", `<td data-is="x" title="rail 3 of a&#10;rail 3 of a to b: &lt;b&gt;a"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, &out)
		}
	}
}
