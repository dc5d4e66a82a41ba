// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestPlansOfWhatIsGenerated plans what rocectl generate has made of other network
// stacks and of a node. The rules, the tables and their gateways are those that pods of
// those stacks have.
func TestPlansOfWhatIsGenerated(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../pkg/tool/generate/testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	for _, f := range files {
		name := filepath.Base(f)
		if strings.Contains(name, ".in.") || name == "device-plugin.out.yaml" { // it has no network
			continue
		}
		golden := filepath.Join("testdata", "generated", strings.TrimSuffix(name, ".yaml")+".txt")
		equalsFile(t, golden, call("plan", "--offline", f))
	}
}

func TestGenerateAndRailsSayWhatTheyCannotRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, want string }{
		{"generate --from nosuch.yaml", `read objects "nosuch.yaml"`},
		{"generate --from main.go", "document 1"},
		{"generate --from testdata/nothing.yaml", "there is no object in it"},
		{"generate --from - --subnet x", "if any flags in the group"},
		{"generate --from - --gateway x", "if any flags in the group"},
		{"generate --from - --cluster", "if any flags in the group"},
		{"generate --nodes gpu-0", "hint: add --cluster"},
		{"generate --kubeconfig nosuch.yaml", "hint: add --cluster"},
		{"rails --differences", "hint: add --cluster"},
		{"rails --context here", "hint: add --cluster"},
		{"generate --cluster --kubeconfig nosuch.yaml", "nosuch.yaml"},
	} {
		if got := call(strings.Fields(c.args)...); !strings.Contains(got, c.want) {
			t.Errorf("%s: got %s, want %q", c.args, got, c.want)
		}
	}
}
