// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package netns

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

func TestANamespaceIsNotGoneBecauseWeCannotLook(t *testing.T) {
	t.Parallel()
	for errno, gone := range map[unix.Errno]bool{
		unix.ENOENT: true, unix.ENOTDIR: true, unix.ENAMETOOLONG: true, unix.ELOOP: true,
		unix.EMFILE: false, unix.ENFILE: false, unix.EACCES: false, unix.EPERM: false, unix.ENOMEM: false, unix.EIO: false,
	} {
		if err := goneUnless(errno); errors.Is(err, ErrGone) != gone || !errors.Is(err, errno) {
			t.Errorf("%v: got %v, want gone: %v", errno, err, gone)
		}
	}
}

func TestANamespaceOfAnotherTypeIsNone(t *testing.T) {
	t.Parallel()
	if n, err := Open("/proc/self/ns/uts"); !errors.Is(err, ErrGone) {
		t.Errorf("got %v, %v, want ErrGone", n, err)
	}
}

// A program that opens a FIFO waits for the one that writes into it.
func TestWhatIsNoNamespaceIsNotOpened(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, fifo + "x", filepath.Dir(fifo)} {
		if n, err := Open(path); !errors.Is(err, ErrGone) {
			t.Errorf("%s: got %v, %v, want ErrGone", path, n, err)
		}
	}
	if err := Make(filepath.Join(fifo+"x", "pod")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("made in no folder: %v", err)
	}
}

func TestHowAFunctionEndsInANamespaceIsTold(t *testing.T) {
	t.Parallel()
	path := makeOne(t)
	t.Cleanup(func() { _ = Remove(path) })
	ns, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var in ID
	no := errors.New("no")
	if err := ns.Enter(func() (err error) { in, err = OwnID(); return errors.Join(err, no) }); !errors.Is(err, no) || in != ns.ID {
		t.Errorf("got %v in %v, want %v in %v", err, in, no, ns.ID)
	}
	if err := ns.Enter(func() error { return nil }); err != nil {
		t.Error(err)
	}
	if err := ns.Enter(func() error { runtime.Goexit(); return nil }); err == nil || !strings.Contains(err.Error(), "ended its goroutine") {
		t.Errorf("after Goexit: %v", err)
	}
	panicked := func() (p any) {
		defer func() { p = recover() }()
		return ns.Enter(func() error { panic("here") })
	}()
	if panicked != "here" {
		t.Errorf("the panic that reached the caller is %v", panicked)
	}
	ns.Close()
	if err := ns.Enter(func() error { t.Error("it ran nowhere"); return nil }); cnierr.CodeOf(err) != cnierr.IO || !strings.Contains(err.Error(), path) {
		t.Errorf("of a namespace that is closed: %v", err)
	}
}

// TestANamespaceIsMadeWhereOneIsHidden has what "ip netns add" does with a folder that is not
// mounted yet: it mounts the folder on itself, above the namespaces in it.
func TestANamespaceIsMadeWhereOneIsHidden(t *testing.T) {
	path := makeOne(t)
	dir := filepath.Dir(path)
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(dir, unix.MNT_DETACH), Remove(path)); err != nil {
			t.Error(err)
		}
	})
	if at, err := At(path); err != nil || at != (Ref{}) {
		t.Fatalf("%v is not hidden, error %v", at, err)
	}
	for range 2 { // Remove takes away what Make mounted, and then finds nothing to do
		if err := Make(path); err != nil {
			t.Fatal(err)
		}
		if at, err := At(path); err != nil || at == (Ref{}) {
			t.Errorf("there is %v, error %v", at, err)
		}
		for range 2 {
			if err := Remove(path); err != nil {
				t.Error(err)
			}
		}
	}
}

// makeOne makes a namespace, and returns its path. The caller removes it.
func makeOne(t *testing.T) string {
	t.Helper()
	return makeAt(t, filepath.Join(t.TempDir(), "pod"))
}

func makeAt(t *testing.T, path string) string {
	t.Helper()
	err := Make(path)
	if errors.Is(err, unix.EPERM) && os.Getenv("REQUIRE_NETNS") != "1" {
		t.Skip("only root can make namespaces")
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestANamespaceStaysUntilItIsRemoved(t *testing.T) {
	t.Parallel()
	path := makeOne(t)
	if err := Make(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made again: %v", err)
	}
	host, err := Own()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	ns, err := Open(path)
	if err != nil || ns.ID == host.ID {
		t.Fatalf("the namespace is %v, the host's %v, %v", ns, host, err)
	}
	if _, err := ns.Start(exec.CommandContext(t.Context(), filepath.Join(path, "no-such-program"))); err == nil {
		t.Error("a program that is not there was started")
	}
	ns.Close()
	if err := Make(filepath.Join(path, "below")); err == nil {
		t.Error("one was made below a file")
	}
	for range 2 { // the second time there is none
		if err := Remove(path); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the file is still there")
	}
	// What is no namespace is not taken for one that is to be made.
	if err := Make(filepath.Dir(path)); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made at a folder: %v", err)
	}
	if err := os.Symlink("nothing", path); err != nil {
		t.Fatal(err)
	}
	if err := Make(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made at a link: %v", err)
	}
	if err := Remove(path); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the link is still there: %v", err)
	}
	// What a process leaves that is killed between file and namespace.
	if err := os.WriteFile(path, nil, 0o400); err != nil {
		t.Fatal(err)
	}
	if err := Remove(path); err != nil {
		t.Error(err)
	}
}

// A second mount is not ours: while it is there, the namespace is not removed.
func TestANamespaceThatIsMountedTwiceIsNotRemoved(t *testing.T) {
	t.Parallel()
	path := makeOne(t)
	t.Cleanup(func() { _ = Remove(path) })
	if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	was, err := At(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := Remove(path); !errors.Is(err, unix.EBUSY) {
		t.Errorf("removed: %v", err)
	}
	if is, err := At(path); is != was || err != nil {
		t.Errorf("there is %v, %v, want %v", is, err, was)
	}
}

// No other test runs at the same time, so that the number of open files is theirs.
func TestWhatIsLookedAtIsClosed(t *testing.T) { //nolint:paralleltest // see above
	own, err := Own()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	const times = 50
	before := cnitest.OpenFiles(t)
	for range times {
		_, _ = Open("/proc/self/ns/uts")
		_ = own.Enter(func() error { return nil })
		for _, err := range Each("/proc") {
			_ = err // a process may be hidden
		}
		_ = Find("/proc/self/ns/net", ID{})
	}
	if after := cnitest.OpenFiles(t); after > before+times/2 {
		t.Errorf("%d files are open, %d were", after, before)
	}
}

// TestNoThreadStaysInANamespaceThatWasMade: the first thread of a process never ends, so
// a namespace that it stays in could not end either.
func TestNoThreadStaysInANamespaceThatWasMade(t *testing.T) {
	t.Parallel()
	for range 20 {
		path := makeOne(t)
		made, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if in := threadsIn(t, made); len(in) > 0 {
			t.Errorf("in the new namespace are %q", in)
		}
		if err := Remove(path); err != nil {
			t.Error(err)
		}
	}
}

// threadsIn returns the threads of this process that are in a namespace.
func threadsIn(t *testing.T, ns fs.FileInfo) (in []string) {
	t.Helper()
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil || len(threads) == 0 {
		t.Fatalf("the threads of this process: %q, %v", threads, err)
	}
	for _, thread := range threads {
		if has, err := os.Stat(thread); err == nil && os.SameFile(has, ns) { // else it has ended
			in = append(in, thread)
		}
	}
	return in
}

// TestAThreadThatCannotReturnEnds: without capabilities it cannot go back, and the scheduler must
// not run anything else on it. The first thread of the process cannot end, and is not asked.
func TestAThreadThatCannotReturnEnds(t *testing.T) {
	t.Parallel()
	path := makeOne(t)
	t.Cleanup(func() { _ = Remove(path) })
	made, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.Enter(func() error {
		if unix.Gettid() == os.Getpid() {
			return nil
		}
		var none [2]unix.CapUserData // of this thread alone
		return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0])
	}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); len(threadsIn(t, made)) > 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("in the namespace are %q", threadsIn(t, made))
		}
	}
}

// TestAProgramDoesNotOutliveTheProcessThatStartedIt starts itself once more, which starts a
// program in a namespace and ends threads of its own, and kills it.
func TestAProgramDoesNotOutliveTheProcessThatStartedIt(t *testing.T) {
	const variable = "NETNS_TEST_STARTS_IN"
	if path := os.Getenv(variable); path != "" {
		startAndBlock(path)
	}
	t.Parallel()
	path := makeOne(t)
	t.Cleanup(func() { _ = Remove(path) })
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), variable+"="+path)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	var pid int
	if _, err := fmt.Sscanf(lines.Text(), "program %d runs", &pid); err != nil {
		t.Fatalf("%q: %v", lines.Text(), err)
	}
	ns, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &st); err != nil || st.Ino != ns.Ino {
		t.Errorf("the program is in namespace %d (%v), want %d", st.Ino, err, ns.Ino)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for tick := time.NewTicker(10 * time.Millisecond); runs(pid); {
		select {
		case <-ctx.Done():
			_ = unix.Kill(pid, unix.SIGKILL)
			t.Fatal("the program goes on")
		case <-tick.C:
		}
	}
}

// startAndBlock starts a program that ignores signals, says so if it goes on when threads end, and blocks.
func startAndBlock(path string) {
	ns, err := Open(path)
	if err != nil {
		panic(err)
	}
	cmd := exec.CommandContext(context.Background(), "sh", "-c", "trap '' TERM HUP INT; exec sleep 1000")
	if _, err := ns.Start(cmd); err != nil {
		panic(err)
	}
	for range 100 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // the thread ends with the goroutine
		}()
		<-done
	}
	time.Sleep(100 * time.Millisecond)
	if !runs(cmd.Process.Pid) {
		panic("the program ended")
	}
	fmt.Printf("program %d runs\n", cmd.Process.Pid)
	select {}
}

// runs says whether a process runs: it is there, and has not ended.
func runs(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}

// TestOwnIsTheThreadsWhereProcfsIsOfAnotherPIDNamespace starts itself once more in a
// network namespace and a PID namespace of its own, with the procfs of the machine. There
// it is process 1, and /proc/1 is the first process of the machine.
func TestOwnIsTheThreadsWhereProcfsIsOfAnotherPIDNamespace(t *testing.T) {
	const variable = "NETNS_TEST_PRINTS_OWN"
	if other := os.Getenv(variable); other != "" {
		printOwn(other)
	}
	t.Parallel()
	path, other := makeOne(t), makeOne(t)
	t.Cleanup(func() { _ = errors.Join(Remove(path), Remove(other)) })
	ns, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), variable+"="+other)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	var out []byte
	err = ns.Enter(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	want := fmt.Sprintf("process 1: %d, entered and back %d\n", ns.Ino, ns.Ino)
	if err != nil || string(out) != want {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
}

// printOwn prints the namespace of this thread, before and after it was in another.
func printOwn(path string) {
	runtime.LockOSThread()
	own, err := Own()
	if err != nil {
		panic(err)
	}
	other, err := Open(path)
	if err != nil {
		panic(err)
	}
	if err := other.enter(func() error { return nil }); err != nil {
		panic(err)
	}
	after, err := OwnID()
	if err != nil {
		panic(err)
	}
	fmt.Printf("process %d: %d, entered and back %d\n", os.Getpid(), own.Ino, after.Ino)
	os.Exit(0)
}
