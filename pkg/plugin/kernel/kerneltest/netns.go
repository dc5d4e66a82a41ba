// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Netns is a network namespace that lives as long as its test.
type Netns struct {
	t  testing.TB
	fd int
	// Path is the value for CNI_NETNS.
	Path string
}

// Node is a machine: one namespace for the host, and one for the network to
// which its NICs are connected.
type Node struct {
	*Netns
	Wire *Netns
}

// Container returns the ID of the container of a test: no other test on the machine has it.
// DEL and Undo look for the links of an attachment in the namespaces of all processes, so
// tests that run at the same time with one ID remove the links of each other.
func Container(t testing.TB) conf.ContainerID {
	return conf.ContainerID(fmt.Sprintf("%d-%s", os.Getpid(), t.Name()))
}

const threadNS = "/proc/thread-self/ns/net"

// NewNode makes a machine. It moves the calling goroutine into the host namespace of
// the machine for the rest of the test. The goroutine must be that of a test, subtest
// or benchmark. The thread ends with the test. Goroutines that the test starts,
// subtests included, are not in the namespace.
//
// Where namespaces cannot be made, NewNode skips the test. It fails the test instead
// when the environment variable REQUIRE_NETNS is 1. With -short it makes no namespace.
func NewNode(t testing.TB) *Node {
	t.Helper()
	wire := newNetns(t)
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("unshare: %v", err)
	}
	fd, err := unix.Open(threadNS, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("open %s: %v", threadNS, err)
	}
	host := keep(t, fd)
	host.IP("link set lo up")
	return &Node{host, wire}
}

// NIC connects a new NIC to the network and brings both ends up. It suppresses
// the link-local address that the kernel would add some time later. The other
// end has the same name.
func (n *Node) NIC(name string) {
	n.t.Helper()
	n.IP(fmt.Sprintf("link add %s type veth peer name %s netns %s", name, name, n.Wire.Path))
	for _, end := range []*Netns{n.Wire, n.Netns} {
		end.IP("link set " + name + " addrgenmode none")
		end.IP("link set " + name + " up")
	}
}

// Pod makes an empty namespace with a loopback interface.
func (n *Node) Pod() *Netns {
	n.t.Helper()
	pod := newNetns(n.t)
	pod.IP("link set lo up")
	return pod
}

// PodAt makes a namespace like Pod, bound to a path as a runtime does it.
func (n *Node) PodAt(path string) *Netns {
	n.t.Helper()
	pod := n.Pod()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = os.Remove(path) })
	if err := unix.Mount(pod.Path, path, "", unix.MS_BIND, ""); err != nil {
		n.t.Fatalf("bind namespace to %s: %v", path, err)
	}
	n.t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	pod.Path = path
	return pod
}

// newNetns makes a namespace on a thread that then ends. A file descriptor
// keeps the namespace, so that nothing of it is left, however the test ends.
func newNetns(t testing.TB) *Netns {
	t.Helper()
	if testing.Short() {
		t.Skip("makes network namespaces, which -short excludes")
	}
	fd := -1
	err := onThread(func() (err error) {
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			fd, err = unix.Open(threadNS, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		return err
	})
	if err != nil {
		unable(t, err)
	}
	return keep(t, fd)
}

func keep(t testing.TB, fd int) *Netns {
	t.Cleanup(func() { _ = unix.Close(fd) })
	return &Netns{t, fd, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)}
}

func unable(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("REQUIRE_NETNS") == "1" {
		t.Fatalf("REQUIRE_NETNS=1, but no network namespace can be made: %v", err)
	}
	t.Skipf("no network namespace can be made: %v", err)
}

// onThread runs fn on a thread that ends afterwards, whatever fn did to it. It never
// uses the first thread of the process: /proc would show that thread's namespace as the
// namespace of the process.
func onThread(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			defer runtime.UnlockOSThread()
			done <- onThread(fn) // cannot be on this thread, which is locked
			return
		}
		done <- fn() // never unlocked: the thread ends with the goroutine
	}()
	return <-done
}

// IP runs ip(8) with the words of a command in the namespace and returns its
// output. The word "" is an empty argument. A failure ends the test.
func (n *Netns) IP(command string) string {
	n.t.Helper()
	words := strings.Fields(command)
	for i, w := range words {
		if w == `""` {
			words[i] = ""
		}
	}
	return n.Exec("ip", words...)
}

// Exec runs a program in the namespace and returns its standard output. A
// failure ends the test.
func (n *Netns) Exec(program string, args ...string) string {
	n.t.Helper()
	var out, complaints strings.Builder
	err := n.Do(func() error {
		cmd := exec.CommandContext(n.t.Context(), program, args...)
		cmd.Stdout, cmd.Stderr = &out, &complaints
		return cmd.Run()
	})
	if err != nil {
		n.t.Fatalf("%s %s: %v: %s%s", program, strings.Join(args, " "), err, &out, &complaints)
	}
	return out.String()
}

// Do runs fn in the namespace, on a thread that ends afterwards.
func (n *Netns) Do(fn func() error) error {
	return onThread(func() error {
		if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
			return err
		}
		return fn()
	})
}
