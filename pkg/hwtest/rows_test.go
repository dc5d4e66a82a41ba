// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// TestRowsAreThoseOfTheTable compares the rows with docs/tested.md.
func TestRowsAreThoseOfTheTable(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/tested.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "| behaviour |")
	text, _, _ = strings.Cut(text, "\n\n") // the end of the table
	rows := table()
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if !strings.HasPrefix(line, "|") || len(cells) < 3 {
			continue
		}
		behaviour := strings.TrimSpace(cells[1])
		if strings.HasPrefix(behaviour, "**") || strings.HasPrefix(behaviour, "--") {
			continue
		}
		i := slices.IndexFunc(rows, func(r [3]string) bool { return strings.HasPrefix(behaviour, r[0]) })
		if i < 0 {
			t.Errorf("docs/tested.md has the row %q: add it to rows.go, with the steps of hwtest that tell, or what is needed", behaviour)
			continue
		}
		rows = slices.Delete(rows, i, i+1)
	}
	for _, r := range rows {
		t.Errorf("docs/tested.md has no row %q: remove it from rows.go", r[0])
	}
	var names []string
	for _, s := range slices.Concat(Steps(), Changing(), Disrupting(), Between()) {
		names = append(names, s.Name)
	}
	for _, r := range Rows(nil) {
		for _, step := range r.By {
			if !slices.Contains(names, step) {
				t.Errorf("%s: there is no step %q", r.Behaviour, step)
			}
		}
		if r.Verdict != report.CannotTell || r.Needs == "" {
			t.Errorf("%s: %s without any answer, needs %q", r.Behaviour, r.Verdict, r.Needs)
		}
	}
}

func TestTheWorstAnswerOfARowCounts(t *testing.T) {
	t.Parallel()
	of := func(step string, v report.Verdict) Answer {
		return Answer{Answer: report.Answer{Check: step, Finding: report.Finding{Verdict: v}}}
	}
	for _, c := range []struct {
		answers []Answer
		want    report.Verdict
	}{
		{[]Answer{of("exclusive", report.OK), of("pod-del", report.OK)}, report.OK},
		{[]Answer{of("exclusive", report.OK)}, report.CannotTell},
		{[]Answer{of("exclusive", report.CannotTell), of("pod-del", report.OK)}, report.CannotTell},
		{[]Answer{of("exclusive", report.Problem), of("exclusive", report.OK), of("pod-del", report.CannotTell)}, report.Problem},
		{[]Answer{of("exclusive", report.CannotTell), of("pod-del", report.Problem)}, report.Problem},
	} {
		if got := together(c.answers, []string{"exclusive", "pod-del"}); got != c.want {
			t.Errorf("%v: got %s, want %s", c.answers, got, c.want)
		}
	}
}
