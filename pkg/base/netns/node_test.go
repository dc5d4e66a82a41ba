// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package netns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNetnsIsIdentifiedByItsFile(t *testing.T) {
	t.Parallel()
	const self = "/proc/thread-self/ns/net"
	n, err := At(self)
	if err != nil || n.Path != self || n.Ino == 0 {
		t.Fatalf("got %v, %v", n, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"nothing": file + "x", "a file": file, "below a file": file + "/x"} {
		if n, err := At(path); n != (Ref{}) || err != nil {
			t.Errorf("%s: got %v, %v", name, n, err)
		}
	}
	for name, c := range map[string]struct {
		n    Ref
		want bool
	}{
		"itself":         {n, true},
		"another device": {Ref{Path: self, ID: ID{Dev: n.Dev + 1, Ino: n.Ino}}, false},
		"another inode":  {Ref{Path: self, ID: ID{Dev: n.Dev, Ino: n.Ino + 1}}, false},
		"another file":   {Ref{Path: file, ID: ID{Dev: n.Dev, Ino: n.Ino + 1}}, false},
		"nothing":        {Ref{Path: file + "x", ID: ID{Dev: n.Dev, Ino: n.Ino + 1}}, false},
	} {
		if got, err := Alive(c.n); got != c.want || err != nil {
			t.Errorf("%s: got %v, %v; want %v", name, got, err, c.want)
		}
	}
}

// One ADD may find many dead leases, and a node has thousands of processes.
func TestAnObservationReadsTheProcessesOnce(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	process := filepath.Join(proc, "7")
	if err := cmp.Or(os.MkdirAll(filepath.Join(process, "ns"), 0o700), os.Symlink("/proc/self/ns/net", filepath.Join(process, "ns", "net")),
		os.Mkdir(filepath.Join(proc, "thread-self"), 0o700), os.WriteFile(filepath.Join(proc, "thread-self", "mountinfo"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	held, err := At("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	alive := Observe()
	held.Path = filepath.Join(proc, "8", "ns", "net") // a process that has ended
	for _, when := range []string{"at first", "after the process has ended"} {
		if got, err := alive(held); !got || err != nil {
			t.Errorf("%s: %v, %v; want it alive", when, got, err)
		}
		if err := os.RemoveAll(process); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := Alive(held); got || err != nil {
		t.Errorf("a new observation: %v, %v; want it gone", got, err)
	}
}

// A process with more rights than ours hides its namespace. The loop of symbolic links
// stands for it: root may read any file.
func TestHiddenProcessesOfTheNodeKeepNoNamespaceAlive(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	write := func(path string) string {
		path = filepath.Join(proc, path)
		if err := cmp.Or(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := func(link func(from, to string) error, from, to string) {
		to = filepath.Join(proc, to)
		if err := cmp.Or(os.MkdirAll(filepath.Dir(to), 0o700), link(from, to)); err != nil {
			t.Fatal(err)
		}
	}
	write("thread-self/mountinfo")
	gone := Ref{Path: filepath.Join(proc, "9", "ns", "net"), ID: ID{Dev: 4, Ino: 99}}
	link(os.Link, write("self/net/dev"), "2/net/dev")
	link(os.Symlink, "net", "2/ns/net")
	link(os.Symlink, "net", "8/ns/net") // it ends meanwhile: nothing else is there
	if alive, err := Alive(gone); alive || err != nil {
		t.Errorf("beside a hidden process of the node: %v, %v; want it gone", alive, err)
	}
	for name, pod := range map[string]func(){
		"of a pod":                      func() { write("7/net/dev") },
		"that shows nothing whatsoever": func() { link(os.Symlink, "net", "7/net") },
	} {
		pod()
		link(os.Symlink, "net", "7/ns/net")
		if alive, err := Alive(gone); alive || err == nil {
			t.Errorf("beside a hidden process %s: %v, %v; want an error", name, alive, err)
		}
		if err := os.RemoveAll(filepath.Join(proc, "7")); err != nil {
			t.Fatal(err)
		}
	}
}

// The loop of symbolic links stands for a folder that may not be read: root may read any.
func TestAPathThatCannotBeLookedAtIsNotTakenForGone(t *testing.T) {
	t.Parallel()
	loop := filepath.Join(t.TempDir(), "netns")
	if err := os.Symlink("netns", loop); err != nil {
		t.Fatal(err)
	}
	if alive, err := Alive(Ref{Path: filepath.Join(loop, "pod"), ID: ID{Dev: 4, Ino: 99}}); alive || err == nil {
		t.Errorf("got %v, %v; want an error", alive, err)
	}
}

// A runtime that removes a pod by force takes its path away, while a process of it does
// not die. When the namespace has really ended, the kernel gives its inode number to the
// next one, which another pod has at a path of its own.
func TestANamespaceLivesInItsProcessesWhenItsPathIsGone(t *testing.T) {
	t.Parallel()
	path, elsewhere := makeOne(t), filepath.Join(t.TempDir(), "elsewhere")
	next := filepath.Join(filepath.Dir(path), "next")
	ns, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	wait, err := ns.Start(exec.CommandContext(ctx, "sleep", "1000"))
	if err == nil {
		err = cmp.Or(os.WriteFile(next, nil, 0o600), os.WriteFile(elsewhere, nil, 0o600), Remove(path))
	}
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string, want bool) {
		t.Helper()
		if got, err := Alive(ns.Ref); got != want || err != nil {
			t.Errorf("%s: alive is %v, %v, want %v", when, got, err, want)
		}
		if got := Find(path, ns.ID); (got != "") != want {
			t.Errorf("%s: found at %q, want a path: %v", when, got, want)
		}
	}
	mount := func(at string) {
		t.Helper()
		if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", ns.FD()), at, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	check("a process has it", true)
	mount(next)
	check("another path of the folder has its number", false)
	mount(elsewhere)
	check("and a path elsewhere, too", false)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Dir(path), link); err != nil {
		t.Fatal(err)
	}
	if alive, err := Alive(Ref{filepath.Join(link, "pod"), ns.ID}); alive || err != nil {
		t.Errorf("by another name of the folder: alive is %v, %v", alive, err)
	}
	if err := Remove(elsewhere); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(elsewhere, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Remove(next); err != nil {
		t.Fatal(err)
	}
	check("a process has it again", true)
	end()
	if err := wait(); err == nil {
		t.Error("a program that was killed has ended well")
	}
	check("nothing has it", false)
	mount(elsewhere)
	check("a mount has it", true)
	if err := Remove(elsewhere); err != nil {
		t.Fatal(err)
	}
	check("nothing has it any more", false)
}

// With endFirstThread in its environment, this program ends its first thread and goes on with
// the others of the runtime. Variables are initialized in the first thread.
const endFirstThread = "NETNS_TEST_END_FIRST_THREAD"

var _ = func() bool {
	if os.Getenv(endFirstThread) != "" {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
	}
	return true
}()

// A program was killed, and one of its threads waits in a driver and does not end. The
// others have ended, and with the first one what procfs says of the process's namespace.
func TestANamespaceLivesInAThreadWhenTheFirstThreadHasEnded(t *testing.T) {
	t.Parallel()
	path := makeOne(t)
	ns, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), endFirstThread+"=1")
	wait, err := ns.Start(cmd)
	if err == nil {
		err = Remove(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	process := fmt.Sprint("/proc/", cmd.Process.Pid)
	for there := (Ref{Path: path}); there != (Ref{}) && t.Context().Err() == nil; {
		if there, err = At(process + "/ns/net"); err != nil {
			t.Fatal(err)
		}
	}
	if alive, err := Alive(ns.Ref); !alive || err != nil {
		t.Errorf("alive: %v, %v; want it alive", alive, err)
	}
	at := Find(path, ns.ID)
	if there, err := At(at); err != nil || there.ID != ns.ID {
		t.Errorf("found at %q, %v, %v", at, there, err)
	}
	if ino, err := Inode(os.DirFS("/proc"), fmt.Sprint(cmd.Process.Pid)); ino != ns.Ino || err != nil {
		t.Errorf("inode: %d, %v; want %d", ino, err, ns.Ino)
	}
	end()
	_ = wait() // it was killed
	if alive, err := Alive(ns.Ref); alive || err != nil {
		t.Errorf("after the last thread: alive %v, %v; want it gone", alive, err)
	}
}

// withoutOverride has the thread obey the mode of files, as a thread that is not root's does.
func withoutOverride() error {
	h, caps := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capget(&h, &caps[0]); err != nil {
		return err
	}
	caps[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	return unix.Capset(&h, &caps[0])
}

// TestEachNamespaceOfANodeIsFoundOnce has a procfs with a namespace that is mounted and three
// that processes have. One folder may not be read by the thread.
func TestEachNamespaceOfANodeIsFoundOnce(t *testing.T) {
	t.Parallel()
	mounted, other, third := makeOne(t), makeOne(t), makeOne(t)
	t.Cleanup(func() { _ = errors.Join(Remove(mounted), Remove(other), Remove(third)) })
	ids := map[string]ID{}
	for _, path := range []string{mounted, other, third} {
		is, err := At(path)
		if err != nil {
			t.Fatal(err)
		}
		ids[path] = is.ID
	}
	if got := Find(mounted, ids[other]); got != other {
		t.Errorf("found at %q, want %q: another namespace is at the path", got, other)
	}
	proc := t.TempDir()
	info := fmt.Sprintf("25 1 0:%d net:[%d] %s rw\n25 1 0:4 net:[1] /run/no-such-folder/pod rw\n", unix.Minor(ids[mounted].Dev), ids[mounted].Ino, mounted)
	if err := cmp.Or(os.Mkdir(filepath.Join(proc, "thread-self"), 0o755), os.WriteFile(filepath.Join(proc, "thread-self", "mountinfo"), []byte(info), 0o644)); err != nil {
		t.Fatal(err)
	}
	for process, at := range map[string]string{"2": third, "3": other, "4": other, "5": mounted, "6": "/none", "7": other} {
		dir := filepath.Join(proc, process, "ns")
		if err := cmp.Or(os.MkdirAll(dir, 0o755), os.Symlink(at, filepath.Join(dir, "net"))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(proc, "7"), 0); err != nil {
		t.Fatal(err)
	}
	var found []Ref
	var errs []error
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := withoutOverride()
		for ns, err := range Each(proc) {
			if err != nil {
				errs = append(errs, err)
			} else {
				found = append(found, ns.Ref)
			}
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	want := []Ref{{mounted, ids[mounted]}, {filepath.Join(proc, "2/ns/net"), ids[third]}, {filepath.Join(proc, "3/ns/net"), ids[other]}}
	if !slices.Equal(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
	for _, err := range Each(proc) {
		if err != nil {
			t.Error(err)
		}
		break // one is enough for this caller
	}
	if len(errs) != 1 || !errors.Is(errs[0], ErrHidden) || !errors.Is(errs[0], fs.ErrPermission) {
		t.Errorf("got %v, want that process 7 may not be inspected", errs)
	}
}

// The kernel writes the characters that would end a word in octal digits.
func TestAMountIsFoundAtAPathWithOddCharacters(t *testing.T) {
	t.Parallel()
	path := makeAt(t, filepath.Join(t.TempDir(), "a pod\\040\tof\\09\\\\ \\1 "))
	t.Cleanup(func() { _ = Remove(path) })
	is, err := At(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := Find("/run/no-such-folder/pod", is.ID); got != path {
		t.Errorf("found at %q, want %q", got, path)
	}
}

// A process that ends while its namespace is looked for is no failure. What procfs says of
// mounts must be known.
func TestAProcfsThatCannotBeReadIsSaid(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	each := func() (n int, err error) {
		for ns, e := range Each(proc) {
			if n++; ns != nil || err != nil {
				t.Errorf("got %v, %v, want one error alone", ns, err)
			}
			err = e
		}
		return n, err
	}
	if n, err := each(); n != 1 || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without mounts: %d, %v", n, err)
	}
	info := filepath.Join(proc, "thread-self", "mountinfo")
	for text, good := range map[string]bool{
		"": true, "25 1 0:4 net:[4026531840]\n": true, "25 1 0:4 mnt:[4026531841] /run/x rw\n": true,
		"25 1 0:4 net:[x] /run/x rw\n": false, "25 1 zero net:[4026531840] /run/x rw\n": false,
	} {
		if err := cmp.Or(os.MkdirAll(filepath.Dir(info), 0o700), os.WriteFile(info, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		if n, err := each(); (err == nil) != good || (n == 0) != good {
			t.Errorf("%q: %d, %v", text, n, err)
		}
		if alive, err := Alive(Ref{filepath.Join(proc, "9", "ns", "net"), ID{4, 99}}); alive || (err == nil) != good {
			t.Errorf("%q: alive %v, %v", text, alive, err)
		}
	}
}

func TestPathsThatNameAProcess(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/proc/7/ns/net": "/proc", "/proc/7/task/8/ns/net": "/proc", "/host/proc/7/task/8/ns/net": "/host/proc",
		"/proc/7/task/x/ns/net": "", "/proc/self/ns/net": "", "/run/netns/7": "", "/proc/x/task/8/ns/net": "",
	} {
		proc, ok := ByProcess(path)
		if ok != (want != "") || ok && proc != want {
			t.Errorf("%s: %q, %v; want %q", path, proc, ok, want)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("without root, processes of others may be in any namespace")
	}
	for _, path := range []string{"/proc/4194305/task/4194305/ns/net", "/proc/4194305/fd/3", "/run/no-such-folder/pod"} {
		alive, err := Alive(Ref{Path: path, ID: ID{Dev: 4, Ino: 1}})
		if alive || err != nil {
			t.Errorf("%s: alive %v, %v; want it gone", path, alive, err)
		}
	}
}
