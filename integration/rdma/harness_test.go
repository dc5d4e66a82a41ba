// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package rdma tests the built programs on RDMA devices, as a container runtime
// uses them: called through libcni, in the virtual machines of integration/vm.
// Their NICs r0 and r1 have the Soft-RoCE devices rxe0 and rxe1. The tests of
// all rails in one attachment use those of a machine that has more, too.
//
// The node is the machine itself, so its tests run one after another, and each
// finds the machine as it was at the start and leaves it so: node's cleanup
// looks. Read node_test.go first for what there is, then a test. What a test is
// called tells where it can run: TestExclusive and TestStock where Soft-RoCE can
// and cannot move, TestNodes and TestReaders in each of two machines. make test-vm starts each
// where it belongs, and make test-verify TestFourNodes in each of four.
package rdma

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// programs is the folder of the built programs; make build fills it.
var programs = flag.String("programs", "bin", "folder of roce and rocectl")

// needDevice skips the test on a machine without an RDMA device, and fails it
// where that must be.
func needDevice(t *testing.T, name string) {
	t.Helper()
	_, err := os.Stat("/sys/class/infiniband/" + name)
	if err == nil {
		_, err = os.Stat(filepath.Join(*programs, "roce"))
	}
	switch {
	case err == nil:
	case os.Getenv("REQUIRE_RDMA") == "1":
		t.Fatalf("REQUIRE_RDMA=1, but %v", err)
	default:
		t.Skipf("not a machine of integration/vm: %v", err)
	}
}

// run runs a program that must succeed and returns what it prints.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := try(name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// try runs a program and returns what it prints.
func try(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// shell runs lines of a script, which ends at the first failure.
func shell(t *testing.T, script string) string {
	t.Helper()
	return run(t, "sh", "-ec", script)
}

// finally runs lines of a script when the test is over; they may find nothing
// to do.
func finally(t *testing.T, script string) {
	t.Helper()
	t.Cleanup(func() { _, _ = try("sh", "-c", script) })
}

// background starts a program that runs until stop is called, or the test is
// over.
func background(t *testing.T, name string, args ...string) (pid int, stop func()) {
	t.Helper()
	cmd := exec.Command(name, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if !stopped {
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()         // with whatever status
		}
		stopped = true
	}
	t.Cleanup(stop)
	return cmd.Process.Pid, stop
}

// contains fails the test if a text lacks something.
func contains(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, w := range wants {
		if !strings.Contains(text, w) {
			t.Errorf("lacks %q:\n%s", w, text)
		}
	}
}
