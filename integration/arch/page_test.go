// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package arch

import (
	"cmp"
	"flag"
	"fmt"
	"go/doc"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	diff "github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the package map in docs/ARCHITECTURE.md")

// TestPackageMapIsCurrent compares the table in docs/ARCHITECTURE.md with the
// first sentences of the package comments.
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
	if d := diff.Diff(want, got); d != "" {
		t.Errorf("the package map in docs/ARCHITECTURE.md is old: run make gen (-want +got)\n%s", d)
	}
}

// packageMap returns a table of the packages of each room.
func packageMap(t *testing.T) string {
	t.Helper()
	dirs := packages(t)
	var b strings.Builder
	for _, r := range rooms {
		fmt.Fprintf(&b, "\n**`%s`.** %s\n\n| package | what it does |\n|---|---|\n", r.dir, r.holds)
		for _, dir := range slices.Sorted(maps.Keys(dirs)) {
			if dir != r.dir && !below(dir, r.dir+"/") {
				continue
			}
			says := ""
			for _, f := range dirs[dir] {
				if f.ast.Doc != nil {
					says = new(doc.Package).Synopsis(f.ast.Doc.Text())
				}
			}
			name := cmp.Or(strings.TrimPrefix(dir, r.dir+"/"), dir)
			fmt.Fprintf(&b, "| `%s` | %s |\n", name, strings.TrimPrefix(says, "Package "+path.Base(dir)+" "))
		}
	}
	return b.String() + "\n"
}
