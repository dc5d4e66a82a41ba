// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package arch

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestChinesePagesHaveTheCodeOfTheEnglish compares the fenced code of each page in
// docs/zh with that of the English page. Pictures have words, so they differ.
func TestChinesePagesHaveTheCodeOfTheEnglish(t *testing.T) {
	t.Parallel()
	pages := 0
	for _, p := range tracked(t) {
		if !strings.HasPrefix(p, "docs/zh/") {
			continue
		}
		pages++
		english := "docs/" + path.Base(p)
		if path.Base(p) == "README.md" {
			english = "README.md"
		}
		want := fences(read(t, english))
		if page := read(t, p); path.Base(p) == "configuration.md" { // the main keys only
			want = slices.DeleteFunc(want, func(code string) bool { return !strings.Contains(page, code) })
		}
		if diff := cmp.Diff(want, fences(read(t, p))); diff != "" {
			t.Errorf("the code of %s and %s differs (-English +Chinese)\n%s", english, p, diff)
		}
	}
	if pages == 0 {
		t.Error("there are no Chinese pages")
	}
}

// fences returns the fenced code of a document, but for pictures.
func fences(text string) []string {
	var out []string
	for i, part := range strings.Split(text, "```") {
		if i%2 == 1 && !strings.HasPrefix(part, "mermaid") {
			out = append(out, part)
		}
	}
	return out
}
