// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cnitest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Patience is how long a test waits for what must come. It costs nothing when
// that comes. In a virtual machine the processor is emulated, and the kernel of a
// busy machine removes a namespace late: one work queue does it for all
// (cleanup_net).
const Patience = 2 * time.Minute

// UniqueName returns a name for namespaces that no other process of this machine
// uses: the prefix, the number of this process, and chance.
func UniqueName(prefix string) string {
	return fmt.Sprintf("%s%d-%s", prefix, os.Getpid(), strings.ToLower(rand.Text()[:8]))
}

// RemoveLeft removes the namespaces with names from UniqueName and a process that has
// ended: a test that is killed leaves them.
func RemoveLeft(prefix string) error {
	left, err := filepath.Glob("/run/netns/" + prefix + "*")
	if err != nil {
		return err
	}
	for _, path := range left {
		name := filepath.Base(path)
		pid, _, _ := strings.Cut(strings.TrimPrefix(name, prefix), "-")
		if _, err := os.Stat("/proc/" + pid); err == nil {
			continue
		}
		if err := deleteNetns(name); err != nil {
			return err
		}
	}
	return nil
}

// Netns is a network namespace with a name in /run/netns, as runtimes make them.
type Netns struct {
	Name string
	Path string
	file *os.File
}

// MakeNetns makes a namespace with nothing but lo, which is down. Delete removes it.
func MakeNetns(name string) (*Netns, error) {
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("ip netns add %s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	ns := &Netns{Name: name, Path: "/run/netns/" + name}
	var err error
	if ns.file, err = os.Open(ns.Path); err != nil {
		return nil, errors.Join(err, deleteNetns(name))
	}
	return ns, nil
}

// NewNetns makes a namespace that the test removes when it is over.
func NewNetns(t testing.TB, name string) *Netns {
	t.Helper()
	ns, err := MakeNetns(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Remove(t) })
	return ns
}

// Delete removes the namespace. One that is gone is success.
func (ns *Netns) Delete() error {
	if ns.file != nil {
		_ = ns.file.Close() // it was opened for reading
		ns.file = nil
	}
	return deleteNetns(ns.Name)
}

func deleteNetns(name string) error {
	out, err := exec.Command("ip", "netns", "del", name).CombinedOutput()
	if _, gone := os.Lstat("/run/netns/" + name); err == nil || errors.Is(gone, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("ip netns del %s: %w: %s", name, err, bytes.TrimSpace(out))
}

// Remove is Delete for a test.
func (ns *Netns) Remove(t testing.TB) {
	t.Helper()
	if err := ns.Delete(); err != nil {
		t.Error(err)
	}
}

// Enter runs fn in the namespace, on a thread that ends with it. The first
// thread of the process never ends, and would keep the namespace after the test
// has removed it: while it waits here, another one takes its place.
func (ns *Netns) Enter(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- ns.Enter(fn)
			return
		}
		if err := ns.SetThread(); err != nil {
			done <- err
			return
		}
		done <- fn()
	}()
	return <-done
}

// SetThread puts the calling thread, and the processes that it starts, into the
// namespace. The caller has locked the thread.
func (ns *Netns) SetThread() error {
	if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter namespace %s: %w", ns.Name, err)
	}
	return nil
}

// Batch does what the lines say, each of them arguments of ip(8).
func (ns *Netns) Batch(script string) error {
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.TrimSpace(script) + "\n")
	if out, err := ns.Output(cmd); err != nil {
		return fmt.Errorf("ip in %s: %w\n%s\n%s", ns.Name, err, script, out)
	}
	return nil
}

// IP is Batch for a test, which ends if it fails.
func (ns *Netns) IP(t testing.TB, script string) {
	t.Helper()
	if err := ns.Batch(script); err != nil {
		t.Fatal(err)
	}
}

// Run runs a program in the namespace and returns what Output returns.
func (ns *Netns) Run(name string, args ...string) (string, error) {
	return ns.Output(exec.Command(name, args...))
}

// MustRun is Run for a program that must succeed.
func (ns *Netns) MustRun(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := ns.Run(name, args...)
	if err != nil {
		t.Fatalf("%s %s in %s: %v\n%s", name, strings.Join(args, " "), ns.Name, err, out)
	}
	return out
}

// Output returns the standard output, and the standard error of a program that
// fails. One that succeeds may complain: ip does when a namespace of another
// test vanishes while it looks for the names of namespaces.
func (ns *Netns) Output(cmd *exec.Cmd) (string, error) {
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	err := ns.Enter(cmd.Run)
	if err != nil {
		return out.String() + complaints.String(), err
	}
	return out.String(), nil
}

// Await waits until something is so, which the kernel does in its own time. It
// waits in a cleanup, too.
func Await(t testing.TB, what string, is func() bool) {
	t.Helper()
	if err := wait(context.WithoutCancel(t.Context()), is); err != nil {
		t.Fatalf("waited in vain: %s", what)
	}
}

func wait(ctx context.Context, is func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// AwaitCarrier waits until the kernel has noticed that the other ends of the
// links are up, which may take a second (linkwatch_event).
func (ns *Netns) AwaitCarrier(t testing.TB) {
	t.Helper()
	Await(t, "every link of "+ns.Name+" has a carrier", func() bool {
		return !strings.Contains(ns.MustRun(t, "ip", "-oneline", "link", "show", "up"), "NO-CARRIER")
	})
}

// Ready waits until every link that is up has a carrier, and every IPv6 address
// can be used.
func (ns *Netns) Ready(ctx context.Context) error {
	var links, tentative string
	var err error
	waited := wait(ctx, func() bool {
		if links, err = ns.Run("ip", "-oneline", "link", "show", "up"); err != nil {
			return true
		}
		tentative, err = ns.Run("ip", "-oneline", "addr", "show", "tentative")
		return err != nil || !strings.Contains(links, "NO-CARRIER") && tentative == ""
	})
	if err = errors.Join(err, waited); err != nil {
		return fmt.Errorf("namespace %s is not ready: %w\n%s%s", ns.Name, err, links, tentative)
	}
	return nil
}

// Set sets a kernel parameter, named by its path below /proc/sys.
func (ns *Netns) Set(t testing.TB, path, value string) {
	t.Helper()
	err := ns.Enter(func() error { return os.WriteFile("/proc/sys/"+path, []byte(value), 0) })
	if err != nil {
		t.Fatal(err)
	}
}
