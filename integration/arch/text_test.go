// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package arch

import (
	"go/ast"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestTextsNameCommandsThatExist looks at every "rocectl word" in the strings
// of the programs, where hints and remedies are, and in the code of the
// documents.
func TestTextsNameCommandsThatExist(t *testing.T) {
	t.Parallel()
	commands := rocectlCommands(t)
	if len(commands) == 0 {
		t.Skip("cmd/rocectl has no command yet")
	}
	mention := regexp.MustCompile(`\brocectl ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?`)
	check := func(where, text string) {
		for _, m := range mention.FindAllStringSubmatch(text, -1) {
			group, known := commands[m[1]]
			if !known {
				t.Errorf("%s: %q: rocectl has no command %q", where, m[0], m[1])
				continue
			}
			if _, known := commands[m[2]]; group && m[2] != "" && !known {
				t.Errorf("%s: %q: rocectl %s has no command %q", where, m[0], m[1], m[2])
			}
		}
	}
	for _, f := range sources(t) {
		eachString(f, func(n ast.Node, s string) { check(f.at(n), s) })
	}
	for _, p := range tracked(t) {
		if strings.HasSuffix(p, ".md") {
			check(p, markdownCode(read(t, p)))
		}
	}
}

// rocectlCommands returns the names of the commands of rocectl, and whether
// each only groups others.
func rocectlCommands(t *testing.T) map[string]bool {
	t.Helper()
	commands := map[string]bool{}
	for _, f := range sources(t) {
		if !f.under("cmd/rocectl") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			if typ, ok := lit.Type.(*ast.SelectorExpr); ok && typ.Sel.Name == "Command" {
				name, group := command(lit)
				commands[name] = group
			}
			return true
		})
	}
	delete(commands, "rocectl")
	delete(commands, "")
	return commands
}

// command returns the first word of a command's Use, and whether the command
// does nothing itself.
func command(lit *ast.CompositeLit) (name string, group bool) {
	group = true
	for _, e := range lit.Elts {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		key, _ := kv.Key.(*ast.Ident)
		switch {
		case key == nil:
		case key.Name == "Use":
			if v, ok := kv.Value.(*ast.BasicLit); ok {
				name, _, _ = strings.Cut(strings.Trim(v.Value, "\"`"), " ")
			}
		case key.Name == "Run" || key.Name == "RunE":
			group = false
		}
	}
	return name, group
}

// eachString calls do with every string literal of f but import paths.
func eachString(f file, do func(ast.Node, string)) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if _, isImport := n.(*ast.ImportSpec); isImport {
			return false
		}
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil {
				do(n, s)
			}
		}
		return true
	})
}

// markdownCode returns the code of a document: fenced blocks and spans.
func markdownCode(text string) string {
	var code strings.Builder
	for i, part := range strings.Split(text, "```") {
		if i%2 == 1 {
			code.WriteString(part + "\n")
			continue
		}
		for j, span := range strings.Split(part, "`") {
			if j%2 == 1 {
				code.WriteString(span + "\n")
			}
		}
	}
	return code.String()
}

// TestNothingNamesOneMachine: a clone must work anywhere, so no file names the
// hosts that packages came from, nor folders of the machine it was written on.
// The words are put together here, because this file is looked at too.
func TestNothingNamesOneMachine(t *testing.T) {
	t.Parallel()
	hosts := []string{"proxy[.]golang", "sum[.]golang", "goproxy[.]io", "goproxy[.]cn", "registry[.]npmjs", "deb[.]debian[.]org", "pypi[.]org"}
	folders := `(^|[^\w.])/(work|root)(/|\b)`
	banned := regexp.MustCompile(`(?m)` + strings.Join(hosts, "|") + "|" + folders)
	for _, p := range tracked(t) {
		text := read(t, p)
		for _, at := range banned.FindAllStringIndex(text, -1) {
			line := strings.Count(text[:at[0]], "\n") + 1
			t.Errorf("%s:%d: names one machine or registry: %q", p, line, text[at[0]:at[1]])
		}
	}
}

// TestOneFileHasTheNamespaceMode: who follows two texts must not get two files that
// contradict each other.
func TestOneFileHasTheNamespaceMode(t *testing.T) {
	t.Parallel()
	file, named := regexp.MustCompile(`modprobe\.d/[\w-]+\.conf`), 0
	for _, p := range tracked(t) {
		if strings.HasSuffix(p, "_test.go") || strings.HasSuffix(p, "doctor/testdata/faults.txt") { // nodes with another file
			continue
		}
		for _, name := range file.FindAllString(read(t, p), -1) {
			named++
			if name != "modprobe.d/zz-roce.conf" {
				t.Errorf("%s names /etc/%s, and others /etc/modprobe.d/zz-roce.conf", p, name)
			}
		}
	}
	if named == 0 {
		t.Error("no file names it")
	}
}

// tracked returns the files that git tracks or would add.
func tracked(t *testing.T) []string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		t.Skip("not a git checkout")
	}
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

// read returns the text of a file of the project, "" if it was deleted but is
// still tracked.
func read(t *testing.T, p string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, p))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(b)
}
