// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package api holds what is API against a list in testdata, so that a change of it is seen
// in the diff of a commit. The lists are derived from the code. docs/adr/0038 says what is
// API and how it may change.
package api

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"
	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
)

var update = flag.Bool("update", false, "rewrite the lists in testdata")

const root = "../.."

func TestTheAPIIsAsListed(t *testing.T) {
	t.Parallel()
	for name, lines := range map[string]func(t *testing.T) []string{
		"configuration": func(t *testing.T) []string { return append(keys(t, "pkg/plugin/conf"), cniArgs(t)...) },
		"settings":      func(t *testing.T) []string { return keys(t, "pkg/plugin/settings") },
		"crds":          crds,
		"names": func(t *testing.T) []string {
			return constants(t, "pkg/cluster/kube/types.go", "pkg/cluster/kube/nodes.go", "pkg/cluster/kube/objects.go")
		},
		"metrics": metrics,
		"errors":  codes,
		"records": records,
		"leases":  leases,
		"rocectl": func(t *testing.T) []string {
			return append(constants(t, "pkg/tool/report/"), fields(t, "cmd/rocectl/", "pkg/tool/report/", "pkg/tool/gids/", "pkg/tool/advice/", "pkg/tool/nic/", "pkg/tool/lldp/",
				"pkg/tool/netconf/", "pkg/tool/verify/verify.go", "pkg/tool/verify/tally.go", "pkg/tool/usage/", "pkg/plugin/rdma/users.go", "pkg/cluster/fleet/", "pkg/plugin/calls/",
				"pkg/cluster/kube/types.go", "pkg/cluster/block/block.go")...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, path := lines(t), filepath.Join("testdata", name+".txt")
			if len(got) == 0 {
				t.Fatal("the list is empty")
			}
			text := strings.Join(got, "\n") + "\n"
			if *update {
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), text); diff != "" {
				t.Errorf("(-listed +is)\n%s\nIf docs/adr/0038 allows the change: go test ./integration/api -update", diff)
			}
		})
	}
}

// files parses Go files, but no tests: a prefix is a file or a folder with all below it.
func files(t *testing.T, prefixes ...string) map[string]*ast.File {
	t.Helper()
	out := map[string]*ast.File{}
	for _, prefix := range prefixes {
		before := len(out)
		err := filepath.WalkDir(filepath.Join(root, prefix), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			out[path], err = parser.ParseFile(token.NewFileSet(), path, nil, 0)
			return err
		})
		if err != nil || len(out) == before {
			t.Fatalf("%s: %v", prefix, err)
		}
	}
	return out
}

// source returns the text of a piece of code.
func source(t *testing.T, n ast.Node) string {
	t.Helper()
	var b bytes.Buffer
	if err := printer.Fprint(&b, token.NewFileSet(), n); err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// fields lists the JSON fields of structs.
func fields(t *testing.T, prefixes ...string) []string {
	t.Helper()
	lines := map[string]bool{}
	for _, f := range files(t, prefixes...) {
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			ast.Inspect(s.Type, func(n ast.Node) bool {
				if field, ok := n.(*ast.Field); ok && field.Tag != nil {
					lines[fmt.Sprintf("%s.%s %s %s", f.Name, s.Name, source(t, field.Type), source(t, field.Tag))] = true
				}
				return true
			})
			return false
		})
	}
	return slices.Sorted(maps.Keys(lines))
}

// records lists the format of a record: its version, the kinds of operations, and the JSON
// fields.
func records(t *testing.T) []string {
	t.Helper()
	lines := fields(t, "pkg/plugin/record/", "pkg/plugin/plan/", "pkg/plugin/conf/request.go", "pkg/base/netns/")
	for _, f := range files(t, "pkg/plugin/record/record.go", "pkg/plugin/plan/kinds.go") {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				if n.Names[0].Name == "version" {
					lines = append(lines, "version "+source(t, n.Values[0]))
				}
			case *ast.KeyValueExpr:
				if name, ok := n.Value.(*ast.BasicLit); ok && source(t, n.Key) == "name" {
					lines = append(lines, "kind "+name.Value)
				}
			}
			return true
		})
	}
	slices.Sort(lines)
	return lines
}

// keys lists the keys that the strict reader asks for: others are refused.
func keys(t *testing.T, dir string) []string {
	t.Helper()
	lines := map[string]bool{}
	for _, f := range files(t, dir) {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			for _, args := range calls(fn, "At") {
				if key, ok := args[0].(*ast.BasicLit); ok && len(args) == 1 {
					lines[fmt.Sprintf("%s.%s %s", f.Name, fn.Name, key.Value)] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(lines))
}

// cniArgs lists the keys of CNI_ARGS.
func cniArgs(t *testing.T) (lines []string) {
	t.Helper()
	for _, f := range files(t, "pkg/plugin/conf/env.go") {
		ast.Inspect(f, func(n ast.Node) bool {
			if pair, ok := n.(*ast.KeyValueExpr); ok {
				if key, ok := pair.Key.(*ast.BasicLit); ok {
					lines = append(lines, "CNI_ARGS "+key.Value)
				}
			}
			return true
		})
	}
	return lines
}

// constants lists the exported constants that are texts.
func constants(t *testing.T, prefixes ...string) (lines []string) {
	t.Helper()
	for _, f := range files(t, prefixes...) {
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, value := range s.Values {
				if text, ok := value.(*ast.BasicLit); ok && text.Kind == token.STRING && s.Names[i].IsExported() {
					lines = append(lines, fmt.Sprintf("%s.%s %s", f.Name, s.Names[i], text.Value))
				}
			}
			return true
		})
	}
	slices.Sort(lines)
	return lines
}

// calls returns the arguments of the calls of a function or method.
func calls(in ast.Node, name string) (out [][]ast.Expr) {
	ast.Inspect(in, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		switch fn := call.Fun.(type) {
		case *ast.Ident:
			ok = fn.Name == name
		case *ast.SelectorExpr:
			ok = fn.Sel.Name == name
		default:
			ok = false
		}
		if ok {
			out = append(out, call.Args)
		}
		return true
	})
	return out
}

// metrics lists the metrics of the agent with their labels.
func metrics(t *testing.T) []string {
	t.Helper()
	var lines []string
	for _, f := range files(t, "pkg/cluster/agent/metrics.go", "pkg/cluster/agent/requests.go", "pkg/cluster/agent/calls.go") {
		for _, kind := range []string{"counter", "histogram", "desc"} {
			for _, args := range calls(f, kind) {
				line := kind + " " + source(t, args[0])
				for _, label := range args[2:] {
					line += " " + source(t, label)
				}
				lines = append(lines, line)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if text, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(text.Value, `"roce_cni`) {
				lines = append(lines, "each name begins with "+text.Value)
			}
			return true
		})
	}
	slices.Sort(lines)
	lines = slices.Compact(lines)
	return lines
}

func codes(*testing.T) (lines []string) {
	for _, e := range cnierr.Table() {
		lines = append(lines, fmt.Sprint(uint(e.Code), " ", e.Summary))
	}
	return lines
}

// crd is what the list says of a CustomResourceDefinition.
type crd struct {
	Spec struct {
		Group, Scope string
		Names        struct {
			Kind, Plural string
			ShortNames   []string
		}
		Versions []struct {
			Name   string
			Served bool
			Schema struct {
				OpenAPIV3Schema schema `json:"openAPIV3Schema"`
			}
		}
	}
}

type schema struct {
	Type                 string
	Default              json.RawMessage
	Enum                 []string
	Required             []string
	Properties           map[string]schema
	Items                *schema
	AdditionalProperties *schema
}

// crds lists the names of the API objects and their fields: type, default, values, and
// whether one is required.
func crds(t *testing.T) (lines []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "conf-examples/deploy/crds/rail*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		var c crd
		if err == nil {
			err = yaml.Unmarshal(b, &c)
		}
		if err != nil {
			t.Fatal(err)
		}
		names := c.Spec.Names
		lines = append(lines, fmt.Sprint(names.Kind, " ", c.Spec.Group, " ", c.Spec.Scope, " ", names.Plural, " ", names.ShortNames))
		for _, v := range c.Spec.Versions {
			if !v.Served {
				t.Errorf("%s: the version %s is not served", path, v.Name)
			}
			lines = append(lines, v.Schema.OpenAPIV3Schema.lines(c.Spec.Names.Kind+" "+v.Name, "")...)
		}
	}
	slices.Sort(lines)
	return lines
}

func (s schema) lines(path, more string) []string {
	if s.Default != nil {
		more += " default " + string(s.Default)
	}
	if s.Enum != nil {
		more += fmt.Sprint(" enum ", s.Enum)
	}
	out := []string{path + " " + s.Type + more}
	for name, p := range s.Properties {
		required := ""
		if slices.Contains(s.Required, name) {
			required = " required"
		}
		out = append(out, p.lines(path+"."+name, required)...)
	}
	if s.Items != nil {
		out = append(out, s.Items.lines(path+"[]", "")...)
	}
	if s.AdditionalProperties != nil {
		out = append(out, s.AdditionalProperties.lines(path+".*", "")...)
	}
	return out
}

// leases lists what a lease database has on disk, with one address in each state.
func leases(t *testing.T) (lines []string) {
	t.Helper()
	at := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, n}) }
	owner := ledger.Owner{
		ContainerID: "c1", IfName: "net1", Network: "rails", Program: "roce", PodNamespace: "ml", PodName: "trainer-0", PodUID: "uid",
		Netns: netns.Ref{Path: "/run/netns/c1", ID: netns.ID{Dev: 4, Ino: 7}},
	}
	s := ledger.Store{Dir: t.TempDir(), BootID: "5f0c2d1e-8a3b-4c6d-9e7f-000000000001", Now: func() time.Duration { return time.Hour }}
	err := s.Update(t.Context(), func(l *ledger.Ledger) error {
		for _, n := range []byte{1, 3, 4} {
			l.Give(owner, ledger.Spot{Pool: "rail:compute", Addr: at(n)})
		}
		ended := map[netip.Addr]ledger.State{at(3): ledger.Released, at(4): ledger.Conflicted}
		l.Retire(l.Holding(owner.Key()), func(p ledger.Place) ledger.State { return ended[p.Addr] })
		l.SetAside(ledger.Aside{Addr: at(9), Owner: owner})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(filepath.Join(s.Dir, "leases.db"), 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(table []byte, b *bolt.Bucket) error {
			return b.ForEach(func(k, v []byte) error {
				lines = append(lines, fmt.Sprintf("%s %s %s", table, hex.EncodeToString(k), hex.EncodeToString(v)))
				return nil
			})
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}
