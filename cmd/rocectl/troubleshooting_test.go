// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/cmd/rocectl/foreign"
)

// TestTroubleshootingPageIsCurrent compares the tables of docs/troubleshooting.md
// with what rocectl explain knows.
func TestTroubleshootingPageIsCurrent(t *testing.T) {
	t.Parallel()
	page := filepath.Join("..", "..", "docs", "troubleshooting.md")
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- errors: made by make gen from cmd/rocectl/foreign -->\n", "<!-- end of errors -->\n"
	before, rest, ok := strings.Cut(string(b), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("docs/troubleshooting.md lacks the lines\n%s%s", begin, end)
	}
	var table strings.Builder
	table.WriteString("| from | text | cause | what to do |\n|---|---|---|---|\n")
	for _, e := range foreign.Table() {
		texts := make([]string, len(e.Texts))
		for i, text := range e.Texts {
			texts[i] = "`" + text + "`"
		}
		row := fmt.Sprintf("%s | %s | %s | %s", e.From, strings.Join(texts, "<br>"), e.Cause, e.Do)
		fmt.Fprintf(&table, "| %s |\n", strings.ReplaceAll(strings.ReplaceAll(row, "| grep", `\| grep`), "\n", " "))
	}
	equalsFile(t, page, before+begin+table.String()+end+after)
}
