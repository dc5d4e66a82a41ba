// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package arch

import (
	"flag"
	"fmt"
	"go/doc"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the package map in docs/ARCHITECTURE.md")

// TestPackageMapIsCurrent compares the table in docs/ARCHITECTURE.md with the
// first sentences of the package comments and with importMap.
func TestPackageMapIsCurrent(t *testing.T) {
	t.Parallel()
	page := filepath.Join(root, "docs/ARCHITECTURE.md")
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- package map: made by make gen -->\n", "<!-- end of package map -->\n"
	before, rest, ok := strings.Cut(string(b), begin)
	got, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("docs/ARCHITECTURE.md lacks the lines\n%s%s", begin, end)
	}
	want := packageMap(t)
	if *update {
		if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the package map in docs/ARCHITECTURE.md is old: run make gen (-want +got)\n%s", diff)
	}
}

// packageMap returns the table of all packages in importMap.
func packageMap(t *testing.T) string {
	t.Helper()
	dirs := packages(t)
	var b strings.Builder
	b.WriteString("| package | what it does | may import of ours |\n|---|---|---|\n")
	for _, l := range importMap {
		says := ""
		for _, f := range dirs[l.pkg] {
			if f.ast.Doc != nil {
				says = new(doc.Package).Synopsis(f.ast.Doc.Text())
			}
		}
		says = strings.TrimPrefix(says, "Package "+path.Base(l.pkg)+" ")
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", l.pkg, says, baseNames(l.may))
	}
	return b.String()
}

// baseNames joins the last parts of paths.
func baseNames(paths []string) string {
	if len(paths) == 0 {
		return "nothing"
	}
	names := make([]string, len(paths))
	for i, p := range paths {
		names[i] = path.Base(p)
	}
	return strings.Join(names, ", ")
}
