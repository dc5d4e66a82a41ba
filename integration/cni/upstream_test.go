// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// upstreamVersion is the version of containernetworking/plugins of which the plugins
// are run here.
const upstreamVersion = "v1.9.1"

// upstream returns the folder that has the real plugins. They are built once and kept,
// because a build needs their modules from the internet.
func upstream(t testing.TB) string {
	t.Helper()
	dir, err := upstreamPlugins()
	switch {
	case err == nil:
	case os.Getenv("REQUIRE_UPSTREAM") == "1":
		t.Fatalf("REQUIRE_UPSTREAM=1, but %v", err)
	default:
		t.Skipf("without the plugins of containernetworking: %v", err)
	}
	return dir
}

var upstreamPlugins = sync.OnceValues(func() (string, error) {
	cache, err := filepath.Abs(filepath.Join("..", "..", ".cache", "plugins-"+upstreamVersion))
	if err != nil {
		return "", err
	}
	var missing []string
	for _, plugin := range []string{"ipam/host-local", "ipam/static", "ipam/dhcp", "main/macvlan", "main/host-device", "main/ptp", "main/bridge", "meta/tuning", "meta/sbr", "meta/bandwidth"} {
		if _, err := os.Stat(filepath.Join(cache, filepath.Base(plugin))); err != nil {
			missing = append(missing, plugin)
		}
	}
	if len(missing) == 0 {
		return cache, nil
	}
	return cache, buildUpstream(cache, missing)
})

// buildUpstream builds plugins beside their folder and moves them in, so that
// no test runs a plugin that is half written.
func buildUpstream(cache string, plugins []string) error {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(cache), "plugins")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	args := []string{filepath.Join("..", "again.sh"), "go", "install", "-trimpath", "-ldflags=-s -w"}
	for _, plugin := range plugins {
		args = append(args, "github.com/containernetworking/plugins/plugins/"+plugin+"@"+upstreamVersion)
	}
	cmd := exec.Command("bash", args...)
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go install %s: %w\n%s", strings.Join(plugins, " "), err, out)
	}
	for _, plugin := range plugins {
		name := filepath.Base(plugin)
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(cache, name)); err != nil {
			return err
		}
	}
	return nil
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
	if err != nil {
		t.Fatal(err)
	}
	b = bytes.ReplaceAll(b, []byte("172.16.11."), []byte("172.16.10."))
	var c network
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	return c.With("master", "rail0").With("stateDir", n.state)
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
