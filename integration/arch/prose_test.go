// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxProseLine is the length of a line of prose in a document, in characters.
const maxProseLine = 119

// hardWord is a word that makes a sentence hard to read, and what to write instead.
type hardWord struct {
	word, instead string
}

// hardWords are not used in documents, help texts and package comments. Words in
// code spans and code blocks may stay, because they are names.
func hardWords() []hardWord {
	return []hardWord{
		{`nobody`, `make the thing that is missing the subject: "no process uses it", "it is unused"`},
		{`somebody|someone|anybody`, `name who it is: another host, another pod, an operator`},
		{`whose`, `use "of" or "with": "the pod with this address"`},
		{`whoever|whomever`, `name who it is, and make it the subject`},
		{`rests|resting`, `"in quarantine"`},
		{`anew`, `"again", "recreate", "from the start"`},
		{`strays?`, `"orphan"`},
		{`mend|mends|mended`, `"correct", "repair"`},
	}
}

// TestDocumentsAreEasyToRead looks at the length of lines and for hard words.
func TestDocumentsAreEasyToRead(t *testing.T) {
	t.Parallel()
	for _, p := range tracked(t) {
		if !strings.HasSuffix(p, ".md") {
			continue
		}
		for i, line := range prose(read(t, p)) {
			where := fmt.Sprintf("%s:%d", p, i+1)
			if n := utf8.RuneCountInString(line); n > maxProseLine && !strings.HasPrefix(strings.TrimSpace(line), "|") {
				t.Errorf("%s: %d characters, want at most %d: break the line", where, n, maxProseLine)
			}
			easyToRead(t, where, line)
		}
	}
}

// TestHelpAndPackageCommentsAreEasyToRead looks for hard words where programs and
// packages say what they do.
func TestHelpAndPackageCommentsAreEasyToRead(t *testing.T) {
	t.Parallel()
	for _, p := range tracked(t) {
		if strings.Contains(p, "/help/") && strings.HasSuffix(p, ".txt") {
			easyToRead(t, p, read(t, p))
		}
	}
	for _, f := range sources(t) {
		if f.ast.Doc != nil {
			easyToRead(t, f.at(f.ast), f.ast.Doc.Text())
		}
		if !f.under("cmd") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			kv, ok := n.(*ast.KeyValueExpr)
			if !ok {
				return true
			}
			key, isName := kv.Key.(*ast.Ident)
			text, isText := kv.Value.(*ast.BasicLit)
			if isName && isText && slices.Contains([]string{"Short", "Long"}, key.Name) {
				if s, err := strconv.Unquote(text.Value); err == nil {
					easyToRead(t, f.at(n), s)
				}
			}
			return true
		})
	}
}

// TestMessagesAreEasyToRead looks for hard words in the texts of programs: errors,
// hints, log lines and outputs.
func TestMessagesAreEasyToRead(t *testing.T) {
	t.Parallel()
	for _, f := range sources(t) {
		if f.test() || !f.under("cmd") && !f.under("pkg") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
				if s, err := strconv.Unquote(text.Value); err == nil && strings.Contains(s, " ") {
					easyToRead(t, f.at(n), s)
				}
			}
			return true
		})
	}
}

// TestCommentsAreEasyToRead looks for hard words in the comments of all Go files, tests
// included, and for long lines.
func TestCommentsAreEasyToRead(t *testing.T) {
	t.Parallel()
	for _, f := range goFiles(t) {
		for _, group := range f.ast.Comments {
			easyToRead(t, f.at(group), group.Text())
			for _, c := range group.List {
				if n := utf8.RuneCountInString(c.Text); n > maxProseLine && !strings.HasPrefix(c.Text, "//nolint") && !strings.HasPrefix(c.Text, "//go:") {
					t.Errorf("%s: %d characters, want at most %d: break the line", f.at(c), n, maxProseLine)
				}
			}
		}
	}
}

// TestExamplesAreEasyToRead looks for hard words in the comments, descriptions and
// messages of the YAML files that users apply.
func TestExamplesAreEasyToRead(t *testing.T) {
	t.Parallel()
	for _, p := range tracked(t) {
		if !strings.HasPrefix(p, "conf-examples/") || !strings.HasSuffix(p, ".yaml") {
			continue
		}
		for i, line := range strings.Split(read(t, p), "\n") {
			easyToRead(t, fmt.Sprintf("%s:%d", p, i+1), line)
		}
	}
}

// easyToRead reports hard words outside of code spans.
func easyToRead(t *testing.T, where, text string) {
	t.Helper()
	text = regexp.MustCompile("`[^`]*`").ReplaceAllString(text, "")
	for _, h := range hardWords() {
		if word := regexp.MustCompile(`(?i)\b(` + h.word + `)\b`).FindString(text); word != "" {
			t.Errorf("%s: %q is hard to read: write %s", where, word, h.instead)
		}
	}
}

// prose returns the lines of a Markdown text. Those of code blocks are empty.
func prose(text string) []string {
	lines := strings.Split(text, "\n")
	fenced, item := false, false
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		indented := strings.HasPrefix(line, "    ") && !item
		switch {
		case fence:
			fenced = !fenced
		case strings.TrimSpace(line) == "":
			item = false
		case !strings.HasPrefix(line, " "):
			item = strings.HasPrefix(line, "- ") || regexp.MustCompile(`^\d+\. `).MatchString(line)
		}
		if fence || fenced || indented {
			lines[i] = ""
		}
	}
	return lines
}
