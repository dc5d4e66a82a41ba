// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plan"
)

// threadNS is the namespace of the calling thread. /proc/self/ns/net is that
// of the thread that the process started with.
const threadNS = "/proc/thread-self/ns/net"

// openHost keeps the namespace of the calling thread.
func (k *Kernel) openHost() (plan.NetnsID, error) {
	var err error
	if k.hostNS, err = open(threadNS, unix.O_RDONLY); err != nil {
		return plan.NetnsID{}, err
	}
	return netnsID(k.hostNS)
}

// openNetns opens a network namespace. Everything that is not one, missing
// paths included, is ErrNetnsGone: a runtime leaves plain files behind when it
// unmounts a namespace and cannot remove the mount point.
func openNetns(path string) (int, plan.NetnsID, error) {
	fd, err := open(path, unix.O_RDONLY)
	if err != nil {
		return -1, plan.NetnsID{}, goneUnless(err)
	}
	id, err := netnsID(fd)
	if err == nil {
		err = isNetns(fd)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, plan.NetnsID{}, fmt.Errorf("%w: %w", ErrNetnsGone, err)
	}
	return fd, id, nil
}

// goneUnless returns why a path could not be opened, as ErrNetnsGone unless the
// fault is ours or the node's: then the namespace may well be there.
func goneUnless(err error) error {
	for _, ours := range []unix.Errno{unix.EACCES, unix.EPERM, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EIO} {
		if errors.Is(err, ours) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrNetnsGone, err)
}

// open does not block on a FIFO that lies where a namespace should be.
func open(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
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

func netnsID(fd int) (plan.NetnsID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return plan.NetnsID{}, err
	}
	return plan.NetnsID{Dev: uint64(st.Dev), Ino: st.Ino}, nil
}

// Enter runs fn in the pod's namespace, on a thread of its own, and returns
// fn's error; a panic of fn reaches the caller. Goroutines that fn starts are
// not in the namespace. It is the only function of roce-cni that enters one.
func (k *Kernel) Enter(fn func() error) error {
	var panicked any
	err := errors.New("the function ended its goroutine")
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		err = k.enter(fn)
	}()
	<-done
	if panicked != nil {
		panic(panicked)
	}
	return err
}

// enter runs fn in the pod's namespace and returns to where the thread came
// from. When that fails the thread stays locked, so that it ends with its
// goroutine: the scheduler would run anything on it, in the wrong namespace.
func (k *Kernel) enter(fn func() error) error {
	runtime.LockOSThread()
	former, err := open(threadNS, unix.O_RDONLY)
	if err != nil {
		return classify("keep the namespace of", "this thread", err)
	}
	defer func() {
		back := unix.Setns(former, unix.CLONE_NEWNET)
		_ = unix.Close(former)
		if back == nil {
			runtime.UnlockOSThread()
		}
	}()
	if err := unix.Setns(k.podNS, unix.CLONE_NEWNET); err != nil {
		return cnierr.New(cnierr.IO, "enter network namespace", k.path, needsRoot, "%w", err)
	}
	return fn()
}
