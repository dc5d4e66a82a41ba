// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package arch

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestEveryPackageSaysOnceWhatItIs(t *testing.T) {
	t.Parallel()
	for dir, files := range byDir(goFiles(t)) {
		var docs []file
		for _, f := range files {
			if f.ast.Doc != nil {
				docs = append(docs, f)
			}
		}
		if len(docs) != 1 {
			t.Errorf("%s has %d package comments, want one, in the file to read first", dir, len(docs))
			continue
		}
		text, name := docs[0].ast.Doc.Text(), docs[0].ast.Name.Name
		want := "(?s)^Package " + name + ` \S.*\.\n`
		if name == "main" {
			want = `(?is)^((the )?(command|program) )?` + regexp.QuoteMeta(path.Base(dir)) + ` \S.*\.\n`
		}
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("%s: the package comment starts with %q, want it to start with %q, or the program's name, and to be sentences",
				docs[0].path, firstLine(text), "Package "+name)
		}
	}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

func TestEveryGoFileNamesItsLicence(t *testing.T) {
	t.Parallel()
	const header = "// SPDX-License-Identifier: Apache-2.0\n// SPDX-FileCopyrightText: The roce-cni authors\n\n"
	for _, f := range goFiles(t) {
		if !strings.HasPrefix(f.text, header) {
			t.Errorf("%s: want it to start with these two lines and an empty one, which keeps them out of the package comment:\n%s", f.path, header)
		}
	}
}

// The limits say when to look for a second thing that needs a place of its
// own. Comments count: a reader reads them too. The limits of files and
// functions are enforced. That of packages is advice, which the test logs: a
// limit that shapes names and borders, because a package has reached it,
// measures the wrong thing.
const (
	maxFileLines     = 600
	maxFunctionLines = 60   // without tests
	advisedLines     = 1900 // of a package, without tests
)

// mayBeLong lists functions that are longer than maxFunctionLines, as
// "directory.function", with the reason.
var mayBeLong = map[string]string{
	"pkg/tool/doctor.Checks": "a table: one row for each check",
	"pkg/hwtest.table":       "a table: one row for each behaviour",
}

func TestFilesAreShort(t *testing.T) {
	t.Parallel()
	for _, f := range goFiles(t) {
		if f.lines() > maxFileLines {
			t.Errorf("%s has %d lines, want at most %d: one file for each thing", f.path, f.lines(), maxFileLines)
		}
	}
	for dir, files := range byDir(sources(t)) {
		sum := 0
		for _, f := range files {
			sum += f.lines()
		}
		if sum > advisedLines {
			t.Logf("%s has %d lines without tests, more than %d: is there a second package in it?", dir, sum, advisedLines)
		}
	}
}

func TestFunctionsAreShort(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	for _, f := range sources(t) {
		for _, decl := range f.ast.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			lines := f.fset.Position(fn.End()).Line - f.fset.Position(fn.Pos()).Line + 1
			if lines <= maxFunctionLines {
				continue
			}
			key := f.dir() + "." + fn.Name.Name
			found[key] = true
			if mayBeLong[key] == "" {
				t.Errorf("%s: %s has %d lines, want at most %d: name its parts, or list %q in mayBeLong with the reason",
					f.at(fn), fn.Name.Name, lines, maxFunctionLines, key)
			}
		}
	}
	for key := range mayBeLong {
		if !found[key] {
			t.Errorf("mayBeLong lists %q, which is short or gone: remove it", key)
		}
	}
}

// TestContributingNamesTheLimits keeps the numbers in CONTRIBUTING.md equal to
// those above.
func TestContributingNamesTheLimits(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("Limits: a function %d lines, a file %d. A package above %d lines without tests is a hint",
		maxFunctionLines, maxFileLines, advisedLines)
	if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), want) {
		t.Errorf("CONTRIBUTING.md does not say %q, which is what these tests enforce", want)
	}
}
