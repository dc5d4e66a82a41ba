// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
)

// TestPlansOfTheExamples compares what rocectl plan --offline prints for each
// file in conf-examples, errors included, with testdata/examples.
func TestPlansOfTheExamples(t *testing.T) {
	goldens, err := filepath.Abs(filepath.Join("testdata", "examples"))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join("..", "..")) // so that messages name the files as users do
	const dir = "conf-examples"
	left := names(t, goldens)
	for name := range names(t, dir) {
		golden := name + ".txt"
		delete(left, golden)
		args := append([]string{"plan", "--offline"}, onANode()[name]...)
		equalsFile(t, filepath.Join(goldens, golden), call(append(args, filepath.Join(dir, name))...))
	}
	for golden := range left {
		t.Errorf("%s: there is no such file in %s: remove the golden", golden, dir)
	}
}

// onANode returns what has to be told of a node to plan an example.
func onANode() map[string][]string {
	return map[string][]string{
		"rails-per-rack.json":       {"--nic-addrs", "10.1.0.5/25,10.1.0.133/25,10.1.1.5/25,10.1.1.133/25,10.1.2.5/25,10.1.2.133/25,10.1.3.5/25,10.1.3.133/25"},
		"rails-point-to-point.yaml": {"--node", "gpu-01", "--table", "conf-examples/node-tables/rails.json"},
		"rails-routed.yaml":         {"--node", "gpu-02", "--table", "conf-examples/node-tables/routed.json"},
	}
}

// names returns the names of the files in a folder.
func names(t *testing.T, dir string) map[string]bool {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, e := range entries {
		if !e.IsDir() {
			out[e.Name()] = true
		}
	}
	return out
}

// call returns what rocectl prints, as a terminal shows it.
func call(args ...string) string {
	var out bytes.Buffer
	cmd := root(&out, &out)
	cmd.SetArgs(args)
	if called, err := cmd.ExecuteC(); err != nil {
		cli.PrintError(&out, called, err)
	}
	return out.String()
}

// equalsFile compares a text with a file, or writes it with -update.
func equalsFile(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Errorf("%v: run make golden", err)
		return
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs; if it should, run make golden (-want +got)\n%s", filepath.Base(path), diff)
	}
}
