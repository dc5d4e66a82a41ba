// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

var update = flag.Bool("update", false, "rewrite the expected outputs in testdata")

// fault is a change of the healthy node and what one check says of it.
type fault struct {
	name    string
	change  func(*world)
	check   string
	verdict report.Verdict
	says    string   // is in what was found, with what it is of
	advice  string   // is in the command, or in what is missing
	also    []string // checks that say something about it, too
	// after puts the node into the state that the commands of a problem, and what their
	// comments tell the reader to do, leave.
	after func(*world)
}

func TestHealthyNodeHasNoProblem(t *testing.T) {
	t.Parallel()
	w := healthy(t)
	w.made(rtnl.Link{Kind: "veth", Name: "veth-of-others", Alias: "of another plugin"})
	answers := w.answers()
	if got := report.Status(answers); got != 0 {
		t.Errorf("status %d, want 0", got)
	}
	golden(t, "healthy", answers, true)
}

// TestEachFaultIsFound changes one thing of a healthy node: its check finds it, and
// no other check says anything. A file has all that is said.
func TestEachFaultIsFound(t *testing.T) {
	t.Parallel()
	said := make([]string, len(faults()))
	t.Run("faults", func(t *testing.T) {
		for i, f := range faults() {
			t.Run(f.name, func(t *testing.T) {
				t.Parallel()
				said[i] = f.answers(t)
			})
		}
	})
	if !t.Failed() {
		same(t, "faults", strings.Join(said, "\n"))
	}
}

// port is where the agent of a test listens.
var port = regexp.MustCompile(`127\.0\.0\.1:[0-9]+`)

// answers returns what is said of a fault, as people see it.
func (f fault) answers(t *testing.T) string {
	t.Helper()
	w := healthy(t)
	f.change(w)
	var all []report.Answer
	var texts []string
	found := false
	for _, a := range w.answers() {
		if a.Check == f.check || a.Verdict != report.OK {
			all = append(all, a)
		}
		if a.Check != f.check {
			if a.Verdict != report.OK && !slices.Contains(f.also, a.Check) {
				t.Errorf("%s says %s: %s", a.Check, a.Verdict, a.Found)
			}
			continue
		}
		text := a.Of + ": " + a.Found
		texts = append(texts, string(a.Verdict)+": "+text)
		found = found || a.Verdict == f.verdict && strings.Contains(text, f.says) && strings.Contains(a.Fix+a.Missing, f.advice)
	}
	if !found {
		t.Errorf("want %s: %s (%s), got %q", f.verdict, f.says, f.advice, texts)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "-- %s --\n", f.name)
	if err := Write(&b, all, true); err != nil {
		t.Fatal(err)
	}
	return port.ReplaceAllString(strings.ReplaceAll(b.String(), w.pools.Dir, "/run/roce"), "127.0.0.1:9482")
}

// A record is there before what it names, but perhaps not before all records were read.
func TestTheLinkOfAPodThatComesOrGoesIsNotLeftBehind(t *testing.T) {
	t.Parallel()
	w := healthy(t)
	w.linked()
	w.forget()
	n := w.node()
	for _, change := range []func(){w.record, w.forget} { // and then it ends
		n.Rules = func(context.Context) ([]rtnl.Rule, error) {
			change()
			return nil, nil
		}
		if got := (&look{Node: n, ctx: t.Context()}).try((*look).leftBehind); len(got) != 1 || got[0].Verdict != report.OK {
			t.Errorf("got %+v", got)
		}
	}
}

// TestEachCheckHasEachVerdict keeps the table of faults complete.
func TestEachCheckHasEachVerdict(t *testing.T) {
	t.Parallel()
	for _, c := range Checks() {
		if len(c.Name) > report.NameWidth {
			t.Errorf("%s is wider than report.NameWidth", c.Name)
		}
		for _, v := range []report.Verdict{report.Problem, report.CannotTell} {
			if !slices.ContainsFunc(faults(), func(f fault) bool { return f.check == c.Name && f.verdict == v }) {
				t.Errorf("no fault makes %s say %q: add one to faults", c.Name, v)
			}
		}
	}
}

// TestEachProblemIsGoneAfterItsCommand puts a node with a problem into the state that its
// command leaves: no check reports a problem, and the one that did says ok.
func TestEachProblemIsGoneAfterItsCommand(t *testing.T) {
	t.Parallel()
	for _, f := range faults() {
		if f.verdict != report.Problem {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			w := healthy(t)
			f.change(w)
			answers := w.answers()
			commands(t, answers)
			of := func(a report.Answer) string {
				what, _, _ := strings.Cut(a.Found, ": ")
				return a.Check + " " + a.Of + " " + what
			}
			for _, a := range answers {
				if a.Verdict == report.OK && slices.ContainsFunc(answers, func(b report.Answer) bool { return b.Verdict == report.Problem && of(b) == of(a) }) {
					t.Errorf("a problem of %q is ok, too: %s", of(a), a.Found)
				}
			}
			f.after(w)
			for _, a := range w.answers() {
				if a.Verdict == report.Problem || a.Verdict == report.CannotTell && a.Check == f.check {
					t.Errorf("%s says %s: %s: %s", a.Check, a.Verdict, a.Of, a.Found)
				}
			}
		})
	}
}

// commands checks that the commands of problems are lines of a shell, each with a program
// of the node. What a reader has to do by hand is in a comment.
func commands(t *testing.T, answers []report.Answer) {
	t.Helper()
	programs := []string{
		"curl", "dcb", "devlink", "dkms", "echo", "ethtool", "ip", "ip6tables-legacy", "iptables-legacy", "jq", "kubectl", "lspci", "make", "mkdir", "mlxconfig", "modprobe", "mv", "nft", "printf",
		"rdma", "rm", "rocectl", "setpci", "sysctl", "systemd-machine-id-setup",
	}
	for _, a := range answers {
		if a.Verdict != report.Problem {
			continue
		}
		if out, err := exec.Command("sh", "-n", "-c", a.Fix).CombinedOutput(); err != nil {
			t.Errorf("%s: %q: %v: %s", a.Check, a.Fix, err, out)
		}
		for line := range strings.Lines(a.Fix) {
			if word := strings.Fields(line)[0]; word != "#" && !slices.Contains(programs, word) {
				t.Errorf("%s: %q is no program: %s", a.Check, word, line)
			}
		}
	}
}

// TestEachAnswerIsComplete: a problem has a reason and a command, and what cannot be
// told has what is missing.
func TestEachAnswerIsComplete(t *testing.T) {
	t.Parallel()
	for _, f := range faults() {
		w := healthy(t)
		f.change(w)
		for _, a := range w.answers() {
			if a.Found == "" || (a.Verdict == report.Problem) != (a.Why != "") || (a.Verdict == report.Problem) != (a.Fix != "") || (a.Verdict == report.CannotTell) != (a.Missing != "") {
				t.Errorf("%s: %+v", f.name, a)
			}
		}
	}
}

// TestAnswersAreInTheWordsOfTheNode: a path has its leading slash, and no answer leaves it to
// its reader to know what an error number of a netlink socket means.
func TestAnswersAreInTheWordsOfTheNode(t *testing.T) {
	t.Parallel()
	strange := regexp.MustCompile(`(^|[^/\w.-])(bin|dev|etc|lib|opt|proc|run|sys|usr|var|class|bus|devices|module)/[\w.-]|protocol not supported`)
	look := func(name string, w *world) {
		for _, a := range w.answers() {
			for _, text := range []string{a.Of + ": " + a.Found, a.Missing} {
				if strange.MatchString(text) {
					t.Errorf("%s: %s says %q", name, a.Check, text)
				}
			}
		}
	}
	for _, f := range faults() {
		w := healthy(t)
		f.change(w)
		look(f.name, w)
	}
	dirs := map[string]bool{}
	for name := range healthy(t).files {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			dirs[dir] = true
		}
	}
	for dir := range dirs {
		w := healthy(t)
		w.gpu()
		w.deny(dir)
		look("without "+dir, w)
	}
}

func TestNamesAreKebabCase(t *testing.T) {
	t.Parallel()
	for _, c := range Checks() {
		if !regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`).MatchString(c.Name) || c.Asks == "" || c.Why == "" || strings.HasSuffix(c.Why, ".") {
			t.Errorf("%+v", c)
		}
	}
}

func TestOneCheckThatFailsDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	broken := Check{Name: "broken", look: func(*look) []report.Finding { panic("index out of range") }}
	got := slices.Collect(Run(t.Context(), healthy(t).node(), []Check{broken, Checks()[2]}))
	want := []report.Answer{
		{Check: "broken", Finding: cannotTell("the check itself failed: index out of range", "a bug report with this line")},
		{Check: "rdma-modules", Finding: ok("ib_uverbs, rdma_ucm and ib_umad are loaded")},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		verdicts []report.Verdict
		want     int
	}{
		{nil, 0},
		{[]report.Verdict{report.OK, report.OK}, 0},
		{[]report.Verdict{report.OK, report.CannotTell}, 2},
		{[]report.Verdict{report.CannotTell, report.Problem, report.OK}, 1},
	} {
		var answers []report.Answer
		for _, v := range c.verdicts {
			answers = append(answers, report.Answer{Finding: report.Finding{Verdict: v}})
		}
		if got := report.Status(answers); got != c.want {
			t.Errorf("%q: status %d, want %d", c.verdicts, got, c.want)
		}
	}
}

// sick are faults that a node may have at the same time, some for each verdict.
func sick() []string {
	return []string{
		"a module is absent", "exclusive until the next boot", "a cable is out", "MTU 1500", "a table is full", "a file is absent",
		"systemd's default limit", "the kernel's release cannot be read", "half the lanes", "a VF of the node is not trusted",
		"two NICs in one subnet", "two programs manage a NIC", "the neighbour table was full", "no nft", "an old plugin", "another plugin comes first",
		"a pool is nearly empty", "the agent waits for something", "slaves keep their devices", "which NVIDIA driver cannot be told",
	}
}

// TestSickNodeAsText shows problems, and what cannot be told, as people see them.
func TestSickNodeAsText(t *testing.T) {
	t.Parallel()
	w := healthy(t)
	for _, f := range faults() {
		if slices.Contains(sick(), f.name) {
			f.change(w)
		}
	}
	golden(t, "sick", w.answers(), false)
}

// TestNodeWithoutRDMAAsText shows what a machine without ib_core says first.
func TestNodeWithoutRDMAAsText(t *testing.T) {
	t.Parallel()
	w := healthy(t)
	w.rdmaErr = unix.EPROTONOSUPPORT
	w.deny("sys/module")
	golden(t, "nordma", w.answers(), false)
}

// TestLiveNodeAnswers asks the machine of the test, whatever it is: each check has
// an answer.
func TestLiveNodeAnswers(t *testing.T) {
	t.Parallel()
	asked, w := map[string]bool{}, healthy(t)
	n := Live(w.pools, w.leases, w.listen())
	if n.Records != w.records() {
		t.Errorf("its records are %+v", n.Records)
	}
	if _, err := n.VFs(t.Context(), "none"); err == nil {
		t.Error("an interface that is not there has VFs")
	}
	for a := range Run(t.Context(), n, Checks()) {
		asked[a.Check] = true
		if strings.Contains(a.Found, "the check itself failed") {
			t.Errorf("%s: %s", a.Check, a.Found)
		}
	}
	for _, c := range Checks() {
		if !asked[c.Name] {
			t.Errorf("%s does not answer", c.Name)
		}
	}
}

// golden compares the answers as text with a file.
func golden(t *testing.T, name string, answers []report.Answer, all bool) {
	t.Helper()
	var b strings.Builder
	if err := Write(&b, answers, all); err != nil {
		t.Fatal(err)
	}
	same(t, name, b.String())
}

// same compares a text with a file.
func same(t *testing.T, name, got string) {
	t.Helper()
	file := "testdata/" + name + ".txt"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s (-want +got); make golden rewrites it\n%s", file, diff)
	}
}
