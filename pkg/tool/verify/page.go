// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

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

// Verdict says in one sentence whether the rails work.
func (r Report) Verdict() string {
	rails, bad := 0, 0
	for _, pod := range r.Pods {
		for _, c := range pod.Rails {
			if c.Sign != "" {
				rails++
			}
			if len(c.Faults) > 0 {
				bad++
			}
		}
	}
	tested := fmt.Sprintf("%s of %s", report.Count(rails, "rail"), report.Count(len(r.Pods), "pod"))
	switch untold := len(r.Untold()); {
	case len(r.Faults) > 0:
		return fmt.Sprintf("%s on %d of %s", report.Count(len(r.Faults), "fault"), bad, tested)
	case untold > 0:
		return fmt.Sprintf("no fault on %s, and %s without an answer", tested, report.Count(untold, "question"))
	}
	return "no fault on " + tested
}

// Untold returns what the tests could not tell, once for all pods with the same reason.
func (r Report) Untold() []report.Answer {
	untold := slices.DeleteFunc(slices.Clone(r.Answers), func(a report.Answer) bool { return a.Verdict != report.CannotTell })
	var out []report.Answer
	for _, as := range grouped(untold, func(a report.Answer) [3]string { return [3]string{a.Check, a.Found, a.Missing} }) {
		a := as[0]
		if len(as) > 1 {
			a.Of += fmt.Sprintf(", and %d more", len(as)-1)
		}
		out = append(out, a)
	}
	return out
}

// Miss adds a pod that could not be tested to a report of pods in the order of their names.
func (r *Report) Miss(pod string, why report.Answer) {
	row := make([]Cell, r.columns())
	for i := range row {
		row[i].Sign = Unknown
	}
	at, _ := slices.BinarySearchFunc(r.Pods, pod, func(r Row, name string) int { return strings.Compare(r.Name, name) })
	r.Pods = slices.Insert(r.Pods, at, Row{pod, row})
	r.Answers = append(r.Answers, why)
}

// Fastest is the rate of the fastest rail, 0 if none was measured.
func (r Report) Fastest() float64 {
	fastest := 0.0
	for _, pod := range r.Pods {
		for _, c := range pod.Rails {
			fastest = max(fastest, c.Gbps)
		}
	}
	return fastest
}

// slow is the part of the fastest rate below which the text has the rate of a rail.
const slow = 0.9

// WriteText writes the faults, what could not be told, and the matrix of pods and rails, in
// which neighbours that are alike share a line.
func (r Report) WriteText(w io.Writer) error {
	for _, a := range slices.Concat(r.Faults, r.Untold()) {
		if err := report.WriteText(w, a); err != nil {
			return err
		}
	}
	fastest := r.Fastest()
	type line struct{ name, cells string }
	head := line{name: "rail"}
	for i := range r.columns() {
		head.cells += fmt.Sprintf("%4d", i)
	}
	lines := []line{head}
	for _, pod := range r.Pods {
		cells := ""
		for _, c := range pod.Rails {
			shown, verdict := c.Sign, report.OK
			switch slowly := c.Gbps > 0 && c.Gbps < slow*fastest; {
			case c.Sign == Works && slowly:
				shown, verdict = fmt.Sprintf("%.0f", c.Gbps), report.CannotTell
			case c.Sign == "": // the pod does not have this rail
				verdict = ""
			case c.Sign == Unknown:
				verdict = report.CannotTell
			case c.Sign != Works:
				verdict = report.Problem
			}
			cells += verdict.Colour(w, fmt.Sprintf("%4s", report.Printable(shown)))
		}
		lines = append(lines, line{pod.Name, cells})
	}
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 1, ' ', 0)
	for i := 0; i < len(lines); {
		first, name := i, report.Printable(lines[i].name)
		for i++; i < len(lines) && lines[i].cells == lines[first].cells; i++ {
			name = report.Printable(lines[first].name + " to " + lines[i].name)
		}
		fmt.Fprintf(table, "%s\t%s\n", name, strings.TrimRight(lines[first].cells, " "))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, s := range r.Legend() {
		fmt.Fprintf(&b, "  %s  %s\n", s.Letter, s.Means)
	}
	if fastest > 0 {
		fmt.Fprintf(&b, "  a number  Gb/s; the fastest rail has %.0f\n", fastest)
	}
	_, err := fmt.Fprintf(w, "\n%s\n# %s\n# %s\n", b.String(), r.Summary(), r.Verdict())
	return err
}

func (r Report) columns() int {
	most := 0
	for _, pod := range r.Pods {
		most = max(most, len(pod.Rails))
	}
	return most
}

// Legend returns the signs that the cells have.
func (r Report) Legend() []Sign {
	used := map[string]bool{}
	for _, pod := range r.Pods {
		for _, c := range pod.Rails {
			used[c.Sign] = true
		}
	}
	all := []Sign{{Letter: Works, Means: "ok"}}
	for _, s := range Signs() {
		all = append(all, s, Sign{s.Check, strings.ToLower(s.Letter), s.Means + ", between some pods"})
	}
	all = append(all, Sign{Letter: Unknown, Means: "not tested"})
	return slices.DeleteFunc(all, func(s Sign) bool { return !used[s.Letter] })
}

// page is one file without references, so that a browser opens it without a network.
//
//go:embed page.html
var page string

// rowsOfBlock is how many pods stand below each other on the page.
const rowsOfBlock = 32

// WritePage writes a report as one HTML page.
func (r Report) WritePage(w io.Writer) error {
	of := map[report.Verdict][]report.Answer{}
	for _, a := range r.Answers {
		of[a.Verdict] = append(of[a.Verdict], a)
	}
	t, err := template.New("page").Funcs(template.FuncMap{"letter": letter, "number": report.Count, "colour": r.colour}).Parse(page)
	if err != nil {
		return err
	}
	return t.Execute(w, struct {
		Report
		Took      time.Duration
		Columns   int
		Blocks    [][]Row
		Good, Bad []report.Answer
	}{r, time.Duration(r.Seconds * float64(time.Second)).Round(time.Second), r.columns(), slices.Collect(slices.Chunk(r.Pods, rowsOfBlock)), of[report.OK], of[report.Problem]})
}

// colour is the rate of a rail that works: from yellow for half of the fastest one to green.
func (r Report) colour(c Cell) template.CSS {
	if c.Gbps == 0 || c.Sign != Works {
		return ""
	}
	return template.CSS(fmt.Sprintf("background: hsl(%.0f 65%% 70%%)", 45+170*max(0, c.Gbps/r.Fastest()-0.5))) //nolint:gosec // a number
}
