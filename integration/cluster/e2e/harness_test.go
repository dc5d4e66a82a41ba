// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package e2e tests roce as pods get it: Multus reads a pod's annotation from a
// real API server, calls the plugin, and writes the pod's network-status.
//
// The test process is the node: it runs in network, mount and process namespaces of
// its own, with folders that no other process sees, and everything ends with it.
// There is RDMA only in rdma_test.go, which boots a machine of integration/vm. Read
// this file first, then node_test.go for what a node has, multus_test.go for Multus
// called as a runtime does, and kubelet_test.go for pods that kubelet and containerd
// run.
package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
	"github.com/roce-cni/roce-cni/integration/vm"
)

// bin is where build.sh puts the programs of others, kernels where integration/vm
// puts kernels.
const (
	bin     = "../../../.cache/cluster/bin"
	kernels = "../../../.cache/vm"
)

// others are the programs of others that the tests run.
var others = []string{"etcd", "kube-apiserver", "kubectl", "helm", "kubelet", "containerd", "ctr", "runc", "busybox", "multus", "bridge", "host-local", "loopback", "macvlan", "sbr", "tuning", "whereabouts", "whereabouts-controlloop"}

// The environment: what make test-cluster sets, and for the process that is the
// node where our programs are, which process waits for it, and the kernel of virtual
// machines; a test that runs in one has another, beside the first two.
const (
	asked   = "REQUIRE_CLUSTER"
	inside  = "ROCE_E2E_PROGRAMS"
	outside = "ROCE_E2E_OUTSIDE"
	booted  = "ROCE_E2E_KERNEL"
	machine = "ROCE_E2E_MACHINE"
	thick   = "MULTUS_THICK" // Multus is a daemon, and multus-shim in its place
)

// plugins is where a runtime looks for plugins.
const plugins = "/opt/cni/bin"

// programs is the folder of our own programs. TestMain sets it.
var programs string

func TestMain(m *testing.M) {
	code, err := tests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func tests(m *testing.M) (code int, err error) {
	if os.Getenv(asked) == "" {
		return m.Run(), nil
	}
	if programs = os.Getenv(inside); programs != "" {
		if os.Getenv(machine) != "" {
			return m.Run(), nil
		}
		if err := hide(); err != nil {
			return 1, err
		}
		return m.Run(), nil
	}
	wanted := others
	if os.Getenv(thick) != "" {
		wanted = slices.Concat(others, []string{"multus-daemon", "multus-shim"})
	}
	if missing := ground.Missing(bin, wanted...); len(missing) > 0 {
		return 1, fmt.Errorf("there is no %v: make test-cluster builds them", missing)
	}
	kernel, err := vm.Fetch(context.Background(), kernels, series, os.Stderr) // while there are Debian's packages
	if err != nil {
		return 1, err
	}
	described, err := json.Marshal(kernel)
	if err != nil {
		return 1, err
	}
	runtime.LockOSThread() // PR_SET_PDEATHSIG is about the thread
	dir, err := os.MkdirTemp("", "roce-cni-e2e")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir), removeCgroups()) }()
	if err := build(dir); err != nil {
		return 1, err
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"="+dir, fmt.Sprintf("%s=%d", outside, os.Getpid()), fmt.Sprintf("%s=%s", booted, described),
		"KUBECACHEDIR="+filepath.Join(dir, "kubectl")) // of each kubectl, which otherwise writes to the home
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	err = cmd.Run()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return max(1, failed.ExitCode()), nil
	}
	return 0, err
}

// hide puts empty folders over those that the machine and the node would share,
// and the other programs where runtimes look for plugins.
func hide() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("e2e", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc of this process namespace: %w", err)
	}
	// containerd looks for mounts by their paths, and would find the hidden one.
	if err := syscall.Unmount("/run/netns", syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("remove /run/netns of the machine: %w", err)
	}
	for _, dir := range []string{"/opt", "/run", "/var/lib", "/var/log"} {
		if err := syscall.Mount("e2e", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("hide %s: %w", dir, err)
		}
	}
	// As systemd has it: containers may see namespaces that appear there while they run.
	if err := syscall.Mount("", "/run", "", syscall.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share /run: %w", err)
	}
	if err := os.MkdirAll(plugins, 0o755); err != nil {
		return err
	}
	for _, program := range []string{"multus", "bridge", "host-local", "loopback", "macvlan", "sbr", "tuning", "whereabouts"} {
		from, err := filepath.Abs(filepath.Join(bin, program))
		if err != nil {
			return err
		}
		if err := os.Symlink(from, filepath.Join(plugins, program)); err != nil {
			return err
		}
	}
	return exec.Command("ip", "link", "set", "dev", "lo", "up").Run()
}

// build builds our programs as the Makefile does.
func build(dir string) error {
	for _, name := range []string{"roce", "roce-ipam", "rocectl"} {
		cmd := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, name), "./cmd/"+name)
		cmd.Dir = filepath.Join("..", "..", "..")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	return nil
}

// theKernel returns the kernel of virtual machines, which the process outside has fetched.
func theKernel(t *testing.T) (k vm.Kernel) {
	t.Helper()
	must(t, json.Unmarshal([]byte(os.Getenv(booted)), &k))
	return k
}

// need skips the test if no node was requested.
func need(t *testing.T) {
	t.Helper()
	if os.Getenv(asked) == "" {
		t.Skip("starts a cluster only with REQUIRE_CLUSTER=1, as make test-cluster sets it")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
