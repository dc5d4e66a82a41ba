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

// TestTroubleshootingPagesAreCurrent compares the tables of docs and docs/zh with the errors that
// people meet most. rocectl explain knows more.
func TestTroubleshootingPagesAreCurrent(t *testing.T) {
	t.Parallel()
	for dir, c := range map[string]struct{ locale, header string }{
		"docs":    {"en", "| from | text | cause | what to do |\n"},
		"docs/zh": {"zh", "| 来源 | 报错 | 原因 | 处理 |\n"},
	} {
		page := filepath.Join("..", "..", dir, "troubleshooting.md")
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		const begin, end = "<!-- errors: made by make gen from pkg/tool/explain/errors.yaml -->\n", "<!-- end of errors -->\n"
		before, rest, ok := strings.Cut(string(b), begin)
		_, after, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("%s lacks the lines\n%s%s", page, begin, end)
		}
		var table strings.Builder
		table.WriteString(c.header + "|---|---|---|---|\n")
		for _, e := range explain.Load() {
			if e.Often {
				a := e.In(c.locale)
				fmt.Fprintf(&table, "| %s | `%s` | %s | %s |\n", e.From, strings.Join(e.Texts[:min(len(e.Texts), 3)], "`<br>`"), a.Cause, a.Do)
			}
		}
		equalsFile(t, page, before+begin+table.String()+end+after)
	}
}
