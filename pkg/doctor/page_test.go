// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestFaultsPageIsCurrent compares docs/doctor.md with the checks and the faults of the
// tests.
func TestFaultsPageIsCurrent(t *testing.T) {
	t.Parallel()
	const file = "../../docs/doctor.md"
	got := page()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is old: run make gen (-want +got)\n%s", file, diff)
	}
}

func page() string {
	var b strings.Builder
	b.WriteString(`# What rocectl doctor finds

<!-- made by make gen from pkg/doctor -->

Each fault in these tables is injected in a test: "TestEachFaultIsFound/NAME" in "pkg/doctor" changes one thing of a
recorded node that is healthy. The check that is named finds it, says what is in the table, and names the command that
corrects it or what it needs to tell. All other checks stay as they were. "TestHealthyNodeHasNoProblem" has the node
without the fault: no check reports a problem.
`)
	for _, c := range Checks() {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", c.Name, lines(fmt.Sprintf("%s%s Why a problem matters: %s.", strings.ToUpper(c.Asks[:1]), c.Asks[1:], c.Why)))
		b.WriteString("| fault | answer | it says | command, or what it needs |\n|---|---|---|---|\n")
		for _, f := range faults() {
			if f.check == c.Name && f.verdict != OK {
				fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", f.name, f.verdict, code(f.says), code(f.advice))
			}
		}
	}
	return b.String()
}

// lines breaks a paragraph into lines.
func lines(s string) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(s) {
		switch {
		case i == 0:
		case column+1+len(word) > 115:
			b.WriteString("\n")
			column = 0
		default:
			b.WriteString(" ")
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}

// code prints a part of an answer in a table.
func code(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	if s == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(s, "|", "\\|") + "`"
}
