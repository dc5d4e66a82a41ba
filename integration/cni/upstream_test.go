// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// upstreamVersion is the version of containernetworking/plugins of which the plugins
// are run here.
const upstreamVersion = "v1.9.1"

// upstream returns the folder that has the real plugins, which the Makefile builds.
func upstream(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", "..", ".cache", "plugins-"+upstreamVersion))
	if err == nil {
		_, err = os.Stat(dir)
	}
	if err != nil && os.Getenv("REQUIRE_UPSTREAM") == "1" {
		t.Fatalf("REQUIRE_UPSTREAM=1, but the plugins of containernetworking are not there: %v", err)
	}
	if err != nil {
		t.Skipf("the plugins of containernetworking are not there: make test builds them: %v", err)
	}
	return dir
}

// from returns an attachment to rail 0 with another IPAM plugin: its
// configuration, and the folder that it is in.
func (w *world) from(p *pod, dir string, ipam map[string]any) attachment {
	a := w.attach(w.rail(0).With("ipam", ipam), p, "net1")
	a.path = append(a.path, dir)
	return a
}

// example returns a network of conf-examples on rail 0, in its subnet.
func (n *node) example(t testing.TB, name string) network {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "conf-examples", name))
	must(t, err)
	b = bytes.ReplaceAll(b, []byte("172.16.11."), []byte("172.16.10."))
	var c network
	must(t, json.Unmarshal(b, &c))
	return c.With("master", "rail0")
}

// all fails the test for each of the lines that is not among the others.
func all(t testing.TB, what string, got, want []string) {
	t.Helper()
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("%s: %q is not among %q", what, line, got)
		}
	}
}
