// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package arch

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var formatted = regexp.MustCompile(`%[a-z]`)

// wordsOf returns how many arguments of a call come before the words of an error, and
// whether it is one that makes an error: cnierr.New has the operation and the subject there.
func wordsOf(call *ast.CallExpr) (hint int, makes bool) {
	fn, of := "", ""
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		fn = f.Sel.Name
		if x, ok := f.X.(*ast.Ident); ok {
			of = x.Name
		}
	case *ast.Ident:
		fn = f.Name
	}
	switch {
	case fn == "New" && of == "cnierr":
		hint = 3
	case fn == "Add" && len(call.Args) > 0 && isCode(call.Args[0]):
		hint = 2
	case fn == "Fault":
		hint = 1
	case fn == "Bad":
	default:
		return 0, false
	}
	return hint, len(call.Args) > hint+1
}

func isCode(e ast.Expr) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && (x.Name == "cnierr" || s.Sel.Name == "Code")
}

// literal returns the text with which an expression begins, false if it begins with no literal.
func literal(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		return s, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		return literal(e.X)
	}
	return "", false
}

// TestTheWordsOfErrorsAreInTheirPlaces: an error has an operation, a subject, what to do and
// what is wrong, all of them texts. No compiler sees two that are swapped. But no subject begins
// as operations do, and no cause as advice does, and only the cause is a format.
func TestTheWordsOfErrorsAreInTheirPlaces(t *testing.T) {
	t.Parallel()
	type begin struct {
		cause bool // of causes or advice, else of subjects or operations
		word  string
	}
	verbs := map[begin]int{}     // of operations and advice
	others := map[begin]string{} // of subjects and causes, and where
	for _, f := range sources(t) {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			hint, makes := wordsOf(call)
			if !makes {
				return true
			}
			for i, arg := range call.Args {
				s, ok := literal(arg)
				first, _, _ := strings.Cut(s, " ")
				switch cause := hint + 1; {
				case !ok, s == "":
				case i != cause && formatted.MatchString(s):
					t.Errorf("%s: %q is no format", f.at(call), s)
				case i == hint, i == 1 && hint == 3:
					verbs[begin{i == hint, first}]++
				case i == cause, i == hint-1:
					others[begin{i == cause, first}] = f.at(call)
				}
			}
			return true
		})
	}
	for o, at := range others {
		if verbs[o] > 2 && o.word != "the" && o.word != "rocectl" {
			t.Errorf("%s: the subject or the cause begins with %q, as operations or advice do", at, o.word)
		}
	}
}
