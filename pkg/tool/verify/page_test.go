// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

var update = flag.Bool("update", false, "rewrite the reports in testdata")

// simulated is a node of a cluster of 64 with eight rails, in which there are these faults: the
// gateway of rail 4 is silent, gpu-23 has no rules, the cable of rail 3 of gpu-07 is broken, so is
// the uplink of rail 6 between gpu-01 to gpu-32 and the others, and the switch port of rail 1 of
// gpu-41 has a small MTU. Rail 2 of gpu-12 is slow.
type simulated struct{ number int }

const simulatedNodes, simulatedRails = 64, 8

func (s simulated) name() string { return fmt.Sprintf("gpu-%02d", s.number) }

// rate is that of the rail with one that is as fast.
func (s simulated) rate(rail int) float64 { return 393 - float64((s.number*13+rail*29)%31)/3 }

func (s simulated) Local() ([]report.Answer, error) {
	var out []report.Answer
	p := Pod{Name: s.name()}
	for i := range simulatedRails {
		of := p.Of(Rail{Number: i})
		ok := func(check, found string) {
			out = append(out, good(check, of, found))
		}
		if s.number == 23 {
			out = append(out, problem(Routing, of, fmt.Sprintf("no rule sends packets from 172.16.%d.23 to table %d", i+10, 100+i), restore, "packets of this rail leave through another interface, or not at all"))
		} else {
			ok(Routing, fmt.Sprintf("net1-%d 172.16.%d.%d has table %d", i+1, i+10, s.number, 100+i))
		}
		gateway := fmt.Sprintf("172.16.%d.254", i+10)
		if i == 4 {
			out = append(out, problem(GatewayUp, of, fmt.Sprintf("the gateway %s does not answer on net1-%d", gateway, i+1),
				fmt.Sprintf("arping -I net1-%d -s 172.16.%d.%d %s  # then check VLAN and switch port of the NIC, and the gateway", i+1, i+10, s.number, gateway), "pods reach nothing outside of the rail's subnet"))
		} else {
			ok(GatewayUp, gateway+" answers")
		}
		ok(Duplicate, fmt.Sprintf("no other host has 172.16.%d.%d", i+10, s.number))
	}
	return out, nil
}

func (s simulated) Test(address string, _ Tests) ([]report.Answer, error) {
	var other simulated
	if _, err := fmt.Sscanf(address, "gpu-%d", &other.number); err != nil {
		return nil, err
	}
	between := func(n int) bool { return s.number == n || other.number == n }
	var out []report.Answer
	for i := range simulatedRails {
		of := fmt.Sprintf("rail %d of %s to %s", i, s.name(), other.name())
		ok := func(check, found string) {
			out = append(out, good(check, of, found))
		}
		switch {
		case between(23):
			out = append(out, problem(Reach, of, fmt.Sprintf("frames are lost in one direction: from %s to %s", s.name(), other.name()), "ethtool -S NIC", whyReach))
			continue
		case i == 3 && between(7), i == 6 && (s.number <= 32) != (other.number <= 32):
			out = append(out, problem(Reach, of, fmt.Sprintf("no frame passes between 172.16.%d.%d and 172.16.%d.%d in either direction", i+10, s.number, i+10, other.number),
				"# the VLAN of both switch ports, and the connection between the switches", whyReach))
			continue
		}
		ok(Reach, fmt.Sprintf("172.16.%d.%d answers", i+10, other.number))
		if i == 1 && between(41) {
			out = append(out, problem(MTU, of, fmt.Sprintf("no packet with more than 1500 bytes passes from %s to %s, and the MTU is 9000", s.name(), other.name()),
				"# the MTU of the switch ports and of the connections between the switches: at least 9000 and their headers", "large messages hang or are slow, although small ones pass"))
		} else {
			ok(MTU, "packets of 9000 bytes pass")
		}
		rate := min(s.rate(i), other.rate(i))
		if i == 2 && between(12) {
			rate /= 2
		}
		ok(Bandwidth, fmt.Sprintf("ib_write_bw transfers %.2f Gb/s", rate))
	}
	return out, nil
}

func simulate(t *testing.T) Report {
	t.Helper()
	var seats []Seat
	for n := 1; n <= simulatedNodes; n++ {
		s := simulated{n}
		seats = append(seats, Seat{Member: s, Name: s.name(), Address: s.name()})
	}
	seats[49].Member, seats[49].Absent = nil, errors.New("connect to 10.244.49.7:9483: connection refused")
	r := All(t.Context(), seats, Tests{RDMA: true}, false, func(int, int) {})
	r.Cluster, r.Version, r.Began, r.Seconds = "gpu-east", "0.1.0", time.Date(2026, 11, 25, 9, 30, 0, 0, time.UTC), 1311
	return r
}

// golden compares with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if diff := cmp.Diff(string(want), got); err != nil || diff != "" {
		t.Errorf("%v; if it should differ, run it with -update (-want +got)\n%s", err, diff)
	}
}

// TestTheReportOf64NodesFitsOnAScreen: one line for each fault, and a matrix in which nodes that
// are alike share a line. go test -artifacts keeps the page, of which docs/verify.md has a picture.
func TestTheReportOf64NodesFitsOnAScreen(t *testing.T) {
	t.Parallel()
	r := simulate(t)
	var out bytes.Buffer
	if err := r.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	golden(t, "64.txt", out.String())
	_, table, _ := strings.Cut(out.String(), "\n\n")
	doc, err := os.ReadFile("../../../docs/verify.md")
	for line := range strings.Lines(table) {
		if line = strings.TrimSpace(line); err != nil || !strings.Contains(string(doc), line) {
			t.Errorf("docs/verify.md lacks %q: %v", line, err)
		}
	}
	var page bytes.Buffer
	if err := r.WritePage(&page); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(t.ArtifactDir(), "verify.html"), page.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"<h1>Rails of gpu-east</h1>", "2026-11-25 09:30 UTC, took 21m51s · rocectl 0.1.0 · 64 pods with 8 rails",
		"5 faults on 103 of 512 rails of 64 pods", `<td data-is="X" title="rail 3 of gpu-07&#10;rail 3 of gpu-07: reach fails with all 61 other pods`,
		`title="rail 2 of gpu-12, 192 Gb/s" style="background: hsl(`, `title="rail 0 of gpu-50">?</td>`,
	} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

func TestTheVerdictSaysWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	fault := report.Answer{Check: GatewayUp, Finding: report.Finding{Verdict: report.Problem}}
	untold := report.Answer{Check: GatewayUp, Finding: report.Finding{Verdict: report.CannotTell, Missing: "run it as root"}}
	pods := []Row{{"ml/a", []Cell{{Sign: Works}, {Sign: Works}}}}
	for want, r := range map[string]Report{
		"no fault on 2 rails of 1 pod":                                   {Pods: pods},
		"no fault on 2 rails of 1 pod, and 1 question without an answer": {Pods: pods, Answers: []report.Answer{untold, untold}},
		"1 fault on 1 of 1 rail of 1 pod": {
			Pods: []Row{{"ml/a", []Cell{{Sign: "X", Faults: []string{"f"}}, {}}}}, Faults: []report.Answer{fault}, Answers: []report.Answer{fault, untold},
		},
	} {
		if got := r.Verdict(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestWhatIsNotKnownIsToldOnceForEachReason(t *testing.T) {
	t.Parallel()
	r := Report{Answers: []report.Answer{
		cannotTell(GatewayUp, "rail 0 of a", "no right", "root"), good(Reach, "rail 0 of a to b", ""), cannotTell(GatewayUp, "rail 1 of a", "no time", "root"),
		cannotTell(GatewayUp, "rail 0 of b", "no right", "root"), cannotTell(Duplicate, "rail 0 of b", "no right", "root"), problem(Reach, "rail 0 of a to c", "silent", "", ""),
	}}
	var got []string
	for _, a := range r.Untold() {
		got = append(got, a.Check+" "+a.Of+": "+a.Found)
	}
	want := []string{"gateway rail 0 of a, and 1 more: no right", "gateway rail 1 of a: no time", "address-conflict rail 0 of b: no right"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestAPodThatIsMissingHasARow among the others, in their order.
func TestAPodThatIsMissingHasARow(t *testing.T) {
	t.Parallel()
	r := Report{Pods: []Row{{"a", []Cell{{Sign: Works}, {Sign: Works}}}, {"c", []Cell{{Sign: Works}}}}}
	r.Miss("b", cannotTell(Reach, "b", "it does not run", "a pod that runs"))
	if diff := cmp.Diff([]string{"a: .,.", "b: ?,?", "c: ."}, matrix(r)); diff != "" || len(r.Untold()) != 1 {
		t.Errorf("untold %v, (-want +got)\n%s", r.Untold(), diff)
	}
}

// TestARateIsShownOfARailThatWorksAndIsSlow, which is one with less than nine tenths of the
// fastest rate. On the page, rates have colours.
func TestARateIsShownOfARailThatWorksAndIsSlow(t *testing.T) {
	t.Parallel()
	r := Report{Pods: []Row{{"a", []Cell{{Sign: Works, Gbps: 400}, {Sign: Works, Gbps: 200}, {Sign: Works}, {Sign: "M", Gbps: 200}, {Sign: Works, Gbps: 361}, {Sign: Works, Gbps: 360}}}}}
	var out bytes.Buffer
	if err := r.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	if want := "\na       . 200   .   M   .   .\n"; !strings.Contains(out.String(), want) {
		t.Errorf("no %q in\n%s", want, out.String())
	}
	for i, want := range []template.CSS{"background: hsl(130 65% 70%)", "background: hsl(45 65% 70%)", "", ""} {
		if got := r.colour(r.Pods[0].Rails[i]); got != want {
			t.Errorf("rail %d: %q, want %q", i, got, want)
		}
	}
}

// TestThePageOfFewPodsIsWhole has a fault, a rail that a pod lacks, a rate, and a question without an answer.
func TestThePageOfFewPodsIsWhole(t *testing.T) {
	t.Parallel()
	all := newTally([]string{"a", "b", "c"})
	all.add([]report.Answer{
		good(Routing, "rail 0 of a", "it has table 100"), cannotTell(GatewayUp, "rail 1 of a", "no <right>", "root"), cannotTell(Duplicate, "rail 1 of a", "no <right>", "root"),
		problem(GatewayUp, "rail 0 of b", "the gateway 10.0.0.254 does not answer on net1", "arping", "pods reach nothing"),
		good(Bandwidth, "rail 0 of a to b", transfers+"392.60 Gb/s"), good(Bandwidth, "rail 1 of a to b", transfers+"290.4 Gb/s"),
		problem(Reach, "rail 0 of a to c", "silent", "", whyReach), problem(Container, "c", "it cannot lock memory", "", whyInside),
	})
	r := all.report()
	r.Began, r.Seconds, r.Left = time.Date(2026, 11, 25, 9, 30, 0, 0, time.UTC), 61.5, 3
	var page, text, quiet bytes.Buffer
	for _, err := range []error{r.WritePage(&page), r.WriteText(&text), Report{Pods: []Row{{"a", []Cell{{Sign: Works}}}}}.WriteText(&quiet)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	_, body, _ := strings.Cut(page.String(), "</style></head>")
	golden(t, "few.txt", text.String()+"\n"+quiet.String()+body)
}

func TestTheNamesOfTestsFitTheirColumn(t *testing.T) {
	t.Parallel()
	for _, s := range Signs() {
		if len(s.Check) > report.NameWidth {
			t.Errorf("%s is wider than report.NameWidth", s.Check)
		}
	}
}

// faults returns a line for each fault.
func faults(r Report) []string {
	var out []string
	for _, f := range r.Faults {
		out = append(out, f.Of+": "+f.Found)
	}
	return out
}
