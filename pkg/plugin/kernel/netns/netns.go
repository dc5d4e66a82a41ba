// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package netns opens network namespaces, compares them, and runs functions in them. For
// tests of a node it makes and removes namespaces, and runs programs in them.
//
// It never leaves a thread in the wrong namespace, and nothing else of roce-cni enters
// a namespace. It stands below package kernel. This file has all of that; paths.go finds
// the namespaces of a node.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// ErrGone says that a path has no network namespace: nothing is there, or
// something else. What was in the namespace is gone with it.
var ErrGone = errors.New("no network namespace")

// NeedsRoot is what to do when the kernel does not permit it.
const NeedsRoot = "run the plugin as root, with CAP_NET_ADMIN and CAP_SYS_ADMIN in the host's user namespace"

// threadNS is the namespace of the calling thread. /proc/self/ns/net would be
// that of the process's first thread.
const threadNS = "/proc/thread-self/ns/net"

// Own opens the namespace of the calling thread. The caller must close the file
// descriptor.
func Own() (int, plan.NetnsID, error) {
	fd, err := open(threadNS)
	if err != nil {
		return -1, plan.NetnsID{}, err
	}
	id, err := identity(fd)
	if err != nil {
		_ = unix.Close(fd)
		return -1, plan.NetnsID{}, err
	}
	return fd, id, nil
}

// OwnID returns the identity of the namespace of the calling thread.
func OwnID() (plan.NetnsID, error) {
	var st unix.Stat_t
	if err := unix.Stat(threadNS, &st); err != nil {
		return plan.NetnsID{}, &os.PathError{Op: "stat", Path: threadNS, Err: err}
	}
	return plan.NetnsID{Dev: uint64(st.Dev), Ino: st.Ino}, nil
}

// Open opens a network namespace. It returns ErrGone for everything else, also
// for a missing path: a runtime leaves a plain file behind when it unmounts a
// namespace and cannot remove the mount point. The caller must close the file
// descriptor.
func Open(path string) (int, plan.NetnsID, error) {
	fd, err := open(path)
	if err != nil {
		return -1, plan.NetnsID{}, goneUnless(err)
	}
	id, err := identity(fd)
	if err == nil {
		err = isNetns(fd)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, plan.NetnsID{}, fmt.Errorf("%w: %w", ErrGone, err)
	}
	return fd, id, nil
}

// goneUnless returns why a path could not be opened. It returns ErrGone unless
// we or the node are at fault: then the namespace may still exist.
func goneUnless(err error) error {
	for _, ours := range []unix.Errno{unix.EACCES, unix.EPERM, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EIO} {
		if errors.Is(err, ours) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrGone, err)
}

// open does not block when the path is a FIFO instead of a namespace.
func open(path string) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func isNetns(fd int) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	if int64(st.Type) != unix.NSFS_MAGIC {
		return fmt.Errorf("the file is not in nsfs but in a file system of type %#x", st.Type)
	}
	typ, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil {
		return err
	}
	if typ != unix.CLONE_NEWNET {
		return fmt.Errorf("a namespace of another type, %#x", typ)
	}
	return nil
}

func identity(fd int) (plan.NetnsID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return plan.NetnsID{}, err
	}
	return plan.NetnsID{Dev: uint64(st.Dev), Ino: st.Ino}, nil
}

// Enter runs fn in the namespace of a file descriptor, on a thread of its own,
// and returns fn's error. Errors show path as the name of the namespace. A
// panic of fn reaches the caller. Goroutines that fn starts are not in the
// namespace.
func Enter(fd int, path string, fn func() error) error {
	var panicked any
	err := errors.New("the function ended its goroutine")
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		err = enter(fd, path, fn)
	}()
	<-done
	if panicked != nil {
		panic(panicked)
	}
	return err
}

// Start starts a program in the namespace. It does not outlive this process: the kernel
// kills it when the thread ends that has started it (PR_SET_PDEATHSIG), so a goroutine
// keeps this thread until the program has ended. wait waits for that.
func Start(fd int, path string, cmd *exec.Cmd) (wait func() error, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	started, done := make(chan error, 1), make(chan struct{})
	var ended error
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := enter(fd, path, cmd.Start)
		started <- err
		if err == nil {
			ended = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return func() error { <-done; return ended }, nil
}

// enter runs fn in the namespace.
func enter(fd int, path string, fn func() error) error {
	return apart(func() error {
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return cnierr.New(cnierr.IO, "enter network namespace", path, NeedsRoot, "%w", err)
		}
		return fn()
	})
}

// apart runs fn, which may give the thread another namespace, and returns the thread to
// its own one. If the return fails, the thread stays locked, so that it ends with its
// goroutine. Otherwise the scheduler would run other goroutines on it, in the wrong
// namespace.
//
// It does not leave that to the end of the thread in all cases: the runtime never ends
// the first thread of the process, which would keep the namespace.
func apart(fn func() error) error {
	runtime.LockOSThread()
	former, err := open(threadNS)
	if err != nil {
		runtime.UnlockOSThread()
		return cnierr.New(cnierr.IO, "keep the namespace of", "this thread", "", "%w", err)
	}
	defer func() {
		back := unix.Setns(former, unix.CLONE_NEWNET)
		_ = unix.Close(former)
		if back == nil {
			runtime.UnlockOSThread()
		}
	}()
	return fn()
}

// Make makes a network namespace at a path, where it stays until Remove. EEXIST means
// that something is there.
func Make(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	done := make(chan error)
	go func() {
		done <- apart(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			return unix.Mount(threadNS, path, "", unix.MS_BIND, "")
		})
	}()
	if err := <-done; err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// Remove removes what Make made. The namespace ends when no process and no file uses
// it. It succeeds if nothing is at the path.
func Remove(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
