// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package arch

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLinksOfDocumentsLeadSomewhere follows the relative links of all documents to
// their files, and to the headings in them.
func TestLinksOfDocumentsLeadSomewhere(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for _, p := range tracked(t) {
		if !strings.HasSuffix(p, ".md") {
			continue
		}
		for i, line := range prose(read(t, p)) {
			line = regexp.MustCompile("`[^`]*`").ReplaceAllString(line, "")
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
					continue
				}
				file, heading, _ := strings.Cut(m[1], "#")
				at := path.Join(path.Dir(p), file)
				if file == "" {
					at = p
				}
				if _, err := os.Stat(filepath.Join(root, at)); err != nil {
					t.Errorf("%s:%d: %s: there is no %s", p, i+1, m[1], at)
				} else if heading != "" && !anchors(read(t, at))[heading] {
					t.Errorf("%s:%d: %s: %s has no such heading", p, i+1, m[1], at)
				}
			}
		}
	}
}

// anchors returns the names that GitHub gives the headings of a document.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, line := range prose(text) {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		name := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		name = regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(name, "")
		out[strings.ReplaceAll(name, " ", "-")] = true
	}
	return out
}
