// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package arch

import (
	"go/ast"
	"go/token"
	"slices"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// TestNoErrorIsRecognisedByItsText finds strings.X(err.Error(), ...), err.Error() ==
// and switch err.Error(): texts change, silently. Tests may look at texts.
func TestNoErrorIsRecognisedByItsText(t *testing.T) {
	t.Parallel()
	for _, f := range sources(t) {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if comparesErrorText(n) {
				t.Errorf("%s: an error is told by its text: use errors.Is or errors.As, and classify it where the fact is known", f.at(n))
			}
			return true
		})
	}
}

func comparesErrorText(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.CallExpr:
		fn, ok := n.Fun.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		x, ok := fn.X.(*ast.Ident)
		matcher := ok && slices.Contains([]string{"strings", "bytes", "regexp"}, x.Name)
		matcher = matcher || fn.Sel.Name == "MatchString"
		return matcher && slices.ContainsFunc(n.Args, isErrorText)
	case *ast.BinaryExpr:
		return (n.Op == token.EQL || n.Op == token.NEQ) && (isErrorText(n.X) || isErrorText(n.Y))
	case *ast.SwitchStmt:
		return n.Tag != nil && isErrorText(n.Tag)
	}
	return false
}

// isErrorText says whether e is x.Error().
func isErrorText(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok || len(call.Args) != 0 {
		return false
	}
	fn, ok := call.Fun.(*ast.SelectorExpr)
	return ok && fn.Sel.Name == "Error"
}

// reservedCodes are for work that is not here yet. A code that is used, or
// that is not in cnierr's table, must not be in the list.
var reservedCodes = map[string]string{}

func TestEveryErrorCodeIsUsed(t *testing.T) {
	t.Parallel()
	declared, used := map[string]bool{}, map[string]bool{}
	for _, f := range sources(t) {
		if f.dir() == "pkg/base/cnierr" {
			declareCodes(f, declared)
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "cnierr" {
					used[s.Sel.Name] = true
				}
			}
			return true
		})
	}
	if table := cnierr.Table(); len(declared) != len(table) {
		t.Errorf("pkg/base/cnierr declares %d codes and explains %d", len(declared), len(table))
	}
	for name := range declared {
		if reserved := reservedCodes[name] != ""; used[name] == reserved {
			t.Errorf("cnierr.%s: used %t, reserved %t: remove the code, or correct reservedCodes in integration/arch/errors_test.go", name, used[name], reserved)
		}
	}
	for name := range reservedCodes {
		if !declared[name] {
			t.Errorf("reservedCodes lists %s, which is no code", name)
		}
	}
}

// declareCodes adds the names of f's constants of type Code.
func declareCodes(f file, names map[string]bool) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == "Code" {
			for _, name := range spec.Names {
				names[name.Name] = true
			}
		}
		return true
	})
}
