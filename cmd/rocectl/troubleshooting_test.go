// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/tool/explain"
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
	const begin, end = "<!-- errors: made by make gen from pkg/tool/explain/errors.yaml -->\n", "<!-- end of errors -->\n"
	before, rest, ok := strings.Cut(string(b), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("docs/troubleshooting.md lacks the lines\n%s%s", begin, end)
	}
	var table strings.Builder
	table.WriteString("| from | text | cause | what to do |\n|---|---|---|---|\n")
	for _, e := range explain.Table() {
		row := fmt.Sprintf("%s | %s | %s | %s", e.From, markdown(e.Texts), e.Cause, e.Do)
		fmt.Fprintf(&table, "| %s |\n", strings.ReplaceAll(strings.ReplaceAll(row, "| grep", `\| grep`), "\n", " "))
	}
	equalsFile(t, page, before+begin+table.String()+end+after)
}

// TestChineseTroubleshootingPageIsCurrent compares the table of docs/zh with what
// rocectl explain knows. -update keeps the Chinese of each row, which is found by the
// first text, and writes a new row in English until it is translated.
func TestChineseTroubleshootingPageIsCurrent(t *testing.T) {
	t.Parallel()
	page := filepath.Join("..", "..", "docs", "zh", "troubleshooting.md")
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin = "| 来源 | 报错 | 原因 | 处理 |\n|---|---|---|---|\n"
	before, rest, ok := strings.Cut(string(b), begin)
	rows, after, ok2 := strings.Cut(rest, "\n\n")
	if !ok || !ok2 {
		t.Fatalf("docs/zh/troubleshooting.md lacks the table\n%s", begin)
	}
	chinese := map[string]string{} // cause and remedy, by the first text
	for row := range strings.Lines(rows + "\n") {
		cells := strings.SplitN(row, " | ", 3)
		if len(cells) < 3 {
			t.Fatalf("docs/zh/troubleshooting.md: a row without four columns\n%s", row)
		}
		first, _, _ := strings.Cut(cells[1], "<br>")
		chinese[first] = cells[2]
	}
	var table strings.Builder
	for _, e := range explain.Table() {
		answer, ok := chinese["`"+e.Texts[0]+"`"]
		if !ok {
			answer = strings.ReplaceAll(fmt.Sprintf("%s | %s |\n", e.Cause, e.Do), "| grep", `\| grep`)
		}
		fmt.Fprintf(&table, "| %s | %s | %s", e.From, markdown(e.Texts), answer)
	}
	equalsFile(t, page, before+begin+table.String()+"\n"+after)
}

// markdown returns the texts of an entry as they stand in a table.
func markdown(texts []string) string {
	return "`" + strings.Join(texts, "`<br>`") + "`"
}
