// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package trusted

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// All files that have a name before they are complete are made here: under a name that
// cannot be guessed, and never through a link.

// mark is between the name of a file and 16 random digits.
const mark = ".new-"

// Replace writes a file in one step, in a folder that is there and that Folder has
// checked: a reader finds the old file or the new one. What is at the path, also a
// link, is replaced and never written to. Replace does not sync. If the process is
// killed, a file remains for which IsFresh is true.
func Replace(path string, content []byte, mode fs.FileMode) error {
	fd, name, err := fresh(path, unix.O_WRONLY, mode)
	if err != nil {
		return &fs.PathError{Op: "create", Path: name, Err: err}
	}
	for len(content) > 0 && err == nil {
		var n int
		n, err = uninterrupted(func() (int, error) { return unix.Write(fd, content) })
		content = content[max(0, n):]
	}
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return errors.Join(&fs.PathError{Op: "write", Path: name, Err: err}, os.Remove(name))
	}
	if err := os.Rename(name, path); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}

// Fresh makes a file beside path, in the same kind of folder, and opens it to read and
// write. The caller renames it to path, or removes it.
func Fresh(path string, mode fs.FileMode) (*os.File, error) {
	fd, name, err := fresh(path, unix.O_RDWR, mode)
	if err != nil {
		return nil, &fs.PathError{Op: "create", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func fresh(path string, flags int, mode fs.FileMode) (fd int, name string, err error) {
	for {
		name = fmt.Sprintf("%s%s%016x", path, mark, rand.Uint64()) //nolint:gosec // the kernel seeds it for each process (math/rand/v2)
		fd, err = uninterrupted(func() (int, error) {
			return unix.Open(name, flags|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(mode.Perm()))
		})
		if !errors.Is(err, unix.EEXIST) {
			return fd, name, err
		}
	}
}

// IsFresh says whether Replace or Fresh gives such names to files that are not complete.
func IsFresh(name string) bool {
	at := len(name) - len(mark) - 16
	return at >= 0 && strings.HasPrefix(name[at:], mark) && strings.Trim(name[at+len(mark):], "0123456789abcdef") == ""
}

// Sweep removes the files that killed processes have left beside path. The caller
// knows that no process is about to write path.
func Sweep(path string) error {
	entries, err := os.ReadDir(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if len(e.Name()) == len(filepath.Base(path))+len(mark)+16 && strings.HasPrefix(e.Name(), filepath.Base(path)) && IsFresh(e.Name()) {
			err = errors.Join(err, os.Remove(filepath.Join(filepath.Dir(path), e.Name())))
		}
	}
	return err
}

// MakeFolder makes a folder with this mode if it is not there, and the folders above
// it, and checks it as Folder does.
func MakeFolder(path string, mode fs.FileMode) error {
	fd, err := walk(path, mode)
	if err != nil {
		return &fs.PathError{Op: "create", Path: path, Err: err}
	}
	return unix.Close(fd)
}
