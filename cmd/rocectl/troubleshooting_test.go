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
		row := fmt.Sprintf("%s | %s | %s | %s", e.From, markdown(e.Texts), e.Cause, e.Do)
		fmt.Fprintf(&table, "| %s |\n", strings.ReplaceAll(strings.ReplaceAll(row, "| grep", `\| grep`), "\n", " "))
	}
	equalsFile(t, page, before+begin+table.String()+end+after)
}

// TestChineseTroubleshootingPageHasEachError compares the first columns of the table
// in docs/zh with what rocectl explain knows, in the same order.
func TestChineseTroubleshootingPageHasEachError(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "zh", "troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, page, ok := strings.Cut(string(b), "| 来源 | 报错 | 原因 | 处理 |\n|---|---|---|---|\n")
	if !ok {
		t.Fatal("docs/zh/troubleshooting.md has no table of errors")
	}
	rows := strings.Split(page[:strings.Index(page, "\n\n")], "\n")
	for i, e := range foreign.Table() {
		want := fmt.Sprintf("| %s | %s | ", e.From, markdown(e.Texts))
		if i >= len(rows) || !strings.HasPrefix(rows[i], want) {
			t.Fatalf("row %d of the table in docs/zh/troubleshooting.md does not begin with\n%s\nwrite it, with its cause and remedy in Chinese", i+1, want)
		}
	}
	if n := len(foreign.Table()); len(rows) > n {
		t.Errorf("docs/zh/troubleshooting.md has a row that rocectl explain does not know:\n%s", rows[n])
	}
}

// markdown returns the texts of an entry as they stand in a table.
func markdown(texts []string) string {
	return "`" + strings.Join(texts, "`<br>`") + "`"
}
