// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package trusted

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is how many links are followed on the way to a folder.
const maxLinks = 8

// walk opens a folder, which it makes with the mode if that is not 0, and checks
// the way to it. The caller closes the descriptor. Errors: ErrOthers, and the
// kernel's errno.
func walk(path string, mode fs.FileMode) (int, error) {
	if !filepath.IsAbs(path) {
		return -1, unix.EINVAL
	}
	for range maxLinks {
		fd, target, err := descend(filepath.Clean(path), mode)
		if err != nil || target == "" {
			return fd, err
		}
		path = target
	}
	return -1, unix.ELOOP
}

// descend walks to a folder, or to the first link on the way: it returns then
// where the path leads with the link followed.
func descend(path string, mode fs.FileMode) (fd int, target string, err error) {
	const how = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err = unix.Open("/", how|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, "", err
	}
	var here unix.Stat_t
	if err := unix.Fstat(fd, &here); err != nil {
		return -1, "", errors.Join(err, unix.Close(fd))
	}
	at, rest := "/", strings.TrimPrefix(path, "/")
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		next, err := enter(fd, name, mode)
		if errors.Is(err, unix.ENOENT) && here.Mode&0o022 != 0 {
			err = fmt.Errorf("%s: %w, and %w", filepath.Join(at, name), err, others(at, here))
		}
		if err = errors.Join(err, unix.Close(fd)); err != nil {
			return -1, "", err
		}
		fd = next
		var child unix.Stat_t
		if err := unix.Fstat(fd, &child); err != nil {
			return -1, "", errors.Join(err, unix.Close(fd))
		}
		there := filepath.Join(at, name)
		if err := passable(at, here, there, child); err != nil {
			return -1, "", errors.Join(err, unix.Close(fd))
		}
		if child.Mode&unix.S_IFMT == unix.S_IFLNK {
			to, err := readlink(fd)
			if !filepath.IsAbs(to) {
				to = filepath.Join(at, to)
			}
			return -1, filepath.Join(to, rest), errors.Join(err, unix.Close(fd))
		}
		at, here = there, child
	}
	if here.Mode&0o022 != 0 {
		return -1, "", errors.Join(others(at, here), unix.Close(fd))
	}
	return fd, "", nil
}

// enter opens what has a name in a folder, without following it, and makes a
// folder of that name if the mode is not 0.
func enter(folder int, name string, mode fs.FileMode) (int, error) {
	const how = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(folder, name, how, 0)
	if !errors.Is(err, unix.ENOENT) || mode == 0 {
		return fd, err
	}
	if err := unix.Mkdirat(folder, name, uint32(mode.Perm())); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	return unix.Openat(folder, name, how, 0)
}

// passable says whether a name in a folder may be followed: whether only root
// can have chosen what it names.
func passable(at string, folder unix.Stat_t, there string, child unix.Stat_t) error {
	link := child.Mode&unix.S_IFMT == unix.S_IFLNK
	switch {
	case folder.Mode&0o002 != 0 && folder.Mode&unix.S_ISVTX == 0:
		return others(at, folder)
	case folder.Mode&0o022 != 0 && link:
		return fmt.Errorf("%s is a symbolic link in a folder where users other than root can create one: %w", there, ErrOthers)
	case !roots(child):
		return others(there, child)
	case !link && child.Mode&unix.S_IFMT != unix.S_IFDIR:
		return unix.ENOTDIR
	}
	return nil
}

// roots says whether root owns something, or who runs the program, which is root but
// in tests.
func roots(s unix.Stat_t) bool { return s.Uid == 0 || int(s.Uid) == os.Geteuid() }

func others(path string, s unix.Stat_t) error {
	return fmt.Errorf("%s is of user %d and has mode %04o: %w", path, s.Uid, s.Mode&0o7777, ErrOthers)
}

func readlink(fd int) (string, error) {
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", b)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

// uninterrupted does a system call again that a signal has ended: the Go runtime
// sends some to preempt goroutines.
func uninterrupted(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
