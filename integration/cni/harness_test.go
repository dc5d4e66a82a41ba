// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package cni tests the built programs roce and roce-ipam as a container
// runtime uses them: called through libcni, in real network namespaces.
//
// It looks at nothing but what is outside: results, kernel state as ip(8)
// prints it, frames on the wire, files in the state folder. Each test has a
// world of its own and may run beside all others. Read world_test.go first for
// what there is in a world, runtime_test.go for the calls, state_test.go and
// wire_test.go for what can be looked at.
package cni

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// programs is the folder of the built programs. TestMain sets it.
var programs string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	// The tests wait for processes and for the wire more than they compute.
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(max(6, runtime.GOMAXPROCS(0)))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "roce-cni")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	programs = dir
	// repair looks into every namespace of the machine, and would find the addresses
	// of a run that was killed.
	if err := cnitest.RemoveLeft(prefix); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// build builds the programs as the Makefile does, but for the path of the settings: each
// node of a test has its own, in the working directory of what runs there.
func build(dir string) error {
	for _, name := range []string{"roce", "roce-ipam", "rocectl"} {
		cmd := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-X main.settingsFile=/proc/self/cwd/node.json", "-o", filepath.Join(dir, name), "./cmd/"+name)
		cmd.Dir = filepath.Join("..", "..")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return nil
}

// mayMakeNamespaces returns why no network namespace can be made here, nil if
// one can.
var mayMakeNamespaces = sync.OnceValue(func() error {
	name := cnitest.UniqueName(prefix)
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		return fmt.Errorf("ip netns add: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return exec.Command("ip", "netns", "del", name).Run()
})

// needNamespaces skips the test where namespaces cannot be made, and fails it
// where they must be.
func needNamespaces(t testing.TB) {
	t.Helper()
	err := mayMakeNamespaces()
	switch {
	case err == nil:
	case os.Getenv("REQUIRE_NETNS") == "1":
		t.Fatalf("REQUIRE_NETNS=1, but no network namespace can be made: %v", err)
	default:
		t.Skipf("no network namespace can be made: %v", err)
	}
}
