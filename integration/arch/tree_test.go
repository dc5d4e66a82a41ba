// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package arch tests the shape of the project: which package imports which,
// what the plugins link and how large they are, how long files and functions
// get, and that texts name only commands that exist.
//
// It looks at source and at built programs and runs nothing else. A failure
// says what to do instead. Read imports_test.go first: it holds the rooms.
package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/roce-cni/roce-cni"
)

// file is one Go file of the project.
type file struct {
	path string // relative to the root, with slashes
	text string
	fset *token.FileSet
	ast  *ast.File
}

func (f file) dir() string { return path.Dir(f.path) }
func (f file) under(d string) bool {
	return f.dir() == d || strings.HasPrefix(f.dir(), d+"/")
}

// lines returns the length of the file without the licence.
func (f file) lines() int { return strings.Count(f.text, "\n") - 3 }

// testFile says whether go test alone compiles the file.
func (f file) testFile() bool { return strings.HasSuffix(f.path, "_test.go") }

// test says whether the file is test code: no program has it.
func (f file) test() bool { return f.testFile() || f.under("pkg/plugin/kernel/kerneltest") }

// at returns the place of a node as an editor opens it.
func (f file) at(n ast.Node) string { return f.fset.Position(n.Pos()).String() }

var parseTree = sync.OnceValues(func() ([]file, error) {
	var files []file
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		hidden := strings.HasPrefix(d.Name(), ".") && p != root
		if d.IsDir() && (hidden || d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if d.IsDir() || hidden || !strings.HasSuffix(p, ".go") {
			return nil
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(filepath.ToSlash(p), root+"/")
		tree, err := parser.ParseFile(fset, rel, b, parser.ParseComments)
		files = append(files, file{rel, string(b), fset, tree})
		return err
	})
	return files, err
})

// goFiles returns every Go file of the project, sorted by path.
func goFiles(t *testing.T) []file {
	t.Helper()
	files, err := parseTree()
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatalf("no Go file below %s", root)
	}
	return files
}

// sources returns the Go files that are not test code.
func sources(t *testing.T) []file {
	t.Helper()
	return slices.DeleteFunc(slices.Clone(goFiles(t)), file.test)
}

// byDir groups files by directory.
func byDir(files []file) map[string][]file {
	dirs := map[string][]file{}
	for _, f := range files {
		dirs[f.dir()] = append(dirs[f.dir()], f)
	}
	return dirs
}
