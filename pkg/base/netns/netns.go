// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package netns opens network namespaces, compares them, runs functions in them, and finds
// all that a node has. For tests of a node it makes and removes namespaces, and runs
// programs in them.
//
// It never leaves a thread in the wrong namespace, and nothing else of roce-cni enters
// a namespace. It stands on vishvananda/netns, and below everything that names a
// namespace. This file has one namespace; node.go has all of a node, and says whether one
// still exists.
package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// ErrGone says that a path has no network namespace: nothing is there, or
// something else. What was in the namespace is gone with it.
var ErrGone = errors.New("no network namespace")

// NeedsRoot is what to do when the kernel does not permit it.
const NeedsRoot = "run the plugin as root, with CAP_NET_ADMIN and CAP_SYS_ADMIN in the host's user namespace"

// threadNS is the namespace of the calling thread. /proc/self/ns/net would be that of the
// process's first thread. netns.Get would name the thread by numbers of this PID
// namespace, which are those of another thread where procfs is of another PID namespace.
const threadNS = "/proc/thread-self/ns/net"

// ID identifies a network namespace among all that exist at the same time: the device
// and inode numbers of its file in nsfs. The kernel may reuse an inode number at once
// after the namespace is gone. netns.NsHandle compares only namespaces that are open.
type ID struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

// Ref is a namespace and the path at which it was found. Path "" means that nothing is
// known of the namespace.
type Ref struct {
	Path string
	ID
}

// Namespace is an open network namespace. While it is open it does not end.
type Namespace struct {
	Ref
	handle netns.NsHandle
}

// Own opens the namespace of the calling thread. The caller must Close it.
func Own() (*Namespace, error) {
	h, err := netns.GetFromPath(threadNS)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: threadNS, Err: err}
	}
	return opened(threadNS, h)
}

// OwnID returns the identity of the namespace of the calling thread.
func OwnID() (ID, error) {
	there, err := At(threadNS)
	return there.ID, err
}

// Open opens a network namespace. It returns ErrGone for everything else, also
// for a missing path: a runtime leaves a plain file behind when it unmounts a
// namespace and cannot remove the mount point. The caller must Close the namespace.
func Open(path string) (*Namespace, error) {
	if _, err := stat(path); err != nil {
		return nil, goneUnless(err)
	}
	h, err := netns.GetFromPath(path)
	if err != nil {
		return nil, goneUnless(err)
	}
	n, err := opened(path, h)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	return n, nil
}

// opened takes a handle over. It returns an error if it is not of a network namespace.
func opened(path string, h netns.NsHandle) (*Namespace, error) {
	n := &Namespace{Ref: Ref{Path: path}, handle: h}
	var st unix.Stat_t
	err := unix.Fstat(int(h), &st)
	if err == nil {
		n.ID = ID{Dev: st.Dev, Ino: st.Ino}
		err = isNetns(int(h))
	}
	if err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

func isNetns(fd int) error {
	typ, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil {
		return err
	}
	if typ != unix.CLONE_NEWNET {
		return fmt.Errorf("a namespace of another type, %#x", typ)
	}
	return nil
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

// At returns the namespace at a path. It returns the zero Ref if nothing is there, or
// something that is not on nsfs. It does not open the path.
func At(path string) (Ref, error) {
	id, err := stat(path)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ESRCH), errors.Is(err, errOther): // ESRCH: the process ends
		return Ref{}, nil
	case err != nil:
		return Ref{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return Ref{path, id}, nil
}

var errOther = errors.New("the file is not in nsfs")

// stat looks at a path without opening it, because opening a FIFO can block.
func stat(path string) (ID, error) {
	var on unix.Statfs_t
	if err := unix.Statfs(path, &on); err != nil {
		return ID{}, err
	}
	if on.Type != unix.NSFS_MAGIC {
		return ID{}, fmt.Errorf("%w but in a file system of type %#x", errOther, on.Type)
	}
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	return ID{Dev: st.Dev, Ino: st.Ino}, err
}

// FD returns the file descriptor, for messages to the kernel that name a namespace by it.
func (n *Namespace) FD() int { return int(n.handle) }

// Close closes the namespace. It does nothing without one.
func (n *Namespace) Close() {
	if n != nil && n.handle.IsOpen() {
		_ = n.handle.Close() // nothing was written to it
	}
}

// Enter runs fn in the namespace, on a thread of its own, and returns fn's error. A
// panic of fn reaches the caller. Goroutines that fn starts are not in the namespace.
func (n *Namespace) Enter(fn func() error) error {
	var panicked any
	err := errors.New("the function ended its goroutine")
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		err = n.enter(fn)
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
func (n *Namespace) Start(cmd *exec.Cmd) (wait func() error, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	started, done := make(chan error, 1), make(chan struct{})
	var ended error
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := n.enter(cmd.Start)
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
func (n *Namespace) enter(fn func() error) error {
	return apart(func() error {
		if err := netns.Set(n.handle); err != nil {
			return cnierr.New(cnierr.IO, "enter network namespace", n.Path, NeedsRoot, "%w", err)
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
	former, err := netns.GetFromPath(threadNS)
	if err != nil {
		runtime.UnlockOSThread()
		return cnierr.New(cnierr.IO, "keep the namespace of", "this thread", "", "%w", err)
	}
	defer func() {
		back := netns.Set(former)
		_ = former.Close()
		if back == nil {
			runtime.UnlockOSThread()
		}
	}()
	return fn()
}

// Make makes a network namespace at a path, where it stays until Remove. EEXIST means
// that another namespace is there. netns.NewNamed knows one folder, and leaves the thread in
// the new namespace.
func Make(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0)
	switch {
	case errors.Is(err, fs.ErrExist) && vacant(path):
	case err != nil:
		return err
	default:
		if err := f.Close(); err != nil {
			return err
		}
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

// vacant says whether a file is at a path that no namespace is mounted on: a process that
// was killed has left it, or the mount is below one that came later, such as that of the
// first "ip netns add".
func vacant(path string) bool {
	_, err := stat(path)
	info, lerr := os.Lstat(path)
	return errors.Is(err, errOther) && lerr == nil && info.Mode().IsRegular()
}

// Remove removes what Make made. The namespace ends when no process and no file uses
// it. It succeeds if no namespace is at the path: a file with a mount below one that came
// later cannot be removed, and stays. Nothing at the path needs no privilege.
func Remove(path string) error {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return err
	}
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EBUSY) && vacant(path) {
		return nil
	}
	return err
}
