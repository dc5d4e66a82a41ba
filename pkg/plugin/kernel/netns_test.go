// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
)

func TestNamespacesThatAreNone(t *testing.T) {
	t.Parallel()
	machine(t)
	dir := t.TempDir()
	file, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "fifo")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", dir, file, fifo, file + "/below", "/proc/self/ns/uts"} {
		_, err := kernel.Open(path, fstest.MapFS{})
		wantCode(t, err, cnierr.BadNetns)
		if !errors.Is(err, kernel.ErrNetnsGone) {
			t.Errorf("open %q: %v, want ErrNetnsGone", path, err)
		}
	}
}

func TestEnterIsInThePodAndComesBack(t *testing.T) {
	t.Parallel()
	node, pod, k := machine(t)
	before := here(t)
	var inside unix.Stat_t
	err := k.Enter(func() error { return unix.Stat("/proc/thread-self/ns/net", &inside) })
	if err != nil || inside.Ino != k.ID().Ino {
		t.Errorf("inside it was namespace %d, %v, want %d of %s", inside.Ino, err, k.ID().Ino, pod.Path)
	}
	for in, run := range map[uint64]func(*exec.Cmd) (func() error, error){
		k.ID().Ino: k.Start, before: func(cmd *exec.Cmd) (func() error, error) { return func() error { return nil }, k.EnterHost(cmd.Run) },
	} {
		var out strings.Builder
		cmd := exec.CommandContext(t.Context(), "readlink", "/proc/self/ns/net")
		cmd.Stdout = &out
		wait, err := run(cmd)
		if err == nil {
			err = wait()
		}
		if want := fmt.Sprintf("net:[%d]\n", in); err != nil || out.String() != want {
			t.Errorf("a program is in %q, %v, want %q", out.String(), err, want)
		}
	}
	if after := here(t); after != before {
		t.Errorf("the caller went from namespace %d to %d", before, after)
	}
	if _, err := kernel.Open(node.Path, fstest.MapFS{}); !errors.Is(err, kernel.ErrHostNetns) {
		t.Errorf("opening the node's namespace: %v, want ErrHostNetns", err)
	}
}

func here(t *testing.T) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func TestEnterHandsPanicsToItsCaller(t *testing.T) {
	t.Parallel()
	_, _, k := machine(t)
	defer func() {
		if got := recover(); got != "help" {
			t.Errorf("recovered %v, want the function's panic", got)
		}
	}()
	_ = k.Enter(func() error { panic("help") })
	t.Error("Enter returned")
}

func TestEnterReportsThatItsFunctionEndedTheGoroutine(t *testing.T) {
	t.Parallel()
	_, _, k := machine(t)
	err := k.Enter(func() error {
		runtime.Goexit()
		return nil
	})
	if err == nil {
		t.Error("a function that never returned is success")
	}
}

// A thread without capabilities cannot go back to where it came from: then it
// must end, or the scheduler runs anything on it in the pod's namespace.
func TestThreadThatCannotReturnEnds(t *testing.T) {
	t.Parallel()
	_, _, k := machine(t)
	err := k.Enter(func() error {
		var none [2]unix.CapUserData // of this thread alone
		return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0])
	})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); threadsIn(t, k.ID().Ino) > 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("a thread of this process is still in the pod")
		}
	}
}

// threadsIn counts the threads of this process that are in a namespace. It
// leaves out the first thread, which cannot end: the runtime parks it.
func threadsIn(t *testing.T, ino uint64) int {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, task := range tasks {
		var st unix.Stat_t
		first := filepath.Base(task) == strconv.Itoa(os.Getpid())
		if err := unix.Stat(task+"/ns/net", &st); err == nil && st.Ino == ino && !first {
			n++
		}
	}
	return n
}
