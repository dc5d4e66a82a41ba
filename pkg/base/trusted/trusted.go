// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package trusted opens files for root, and only in folders where other users cannot choose
// which file is opened.
//
// Every path is walked from the root, one name at a time. A folder on the way must
// belong to root. A folder that others can write too, such as /tmp or /var/log, is
// passed only if it is sticky or if only its group may write. In such a folder no link
// is followed, and no folder of another user is entered. Only root can write the last
// folder. Links that root made, such as /var/run, are followed. sshd's StrictModes has
// the same rules for a home directory (sshd_config(5)).
//
// It knows no policy: pkg/plugin/settings says which files root names. This
// file opens and reads files, walk.go walks the path, and replace.go writes files.
package trusted

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// MaxSize is how many bytes of a file are read at most.
const MaxSize = 1 << 20

var (
	// ErrOthers says that others than root can change a path. It is returned by
	// all functions.
	ErrOthers = errors.New("users other than root can change it")
	// ErrIrregular says that there is something else than a regular file. It is
	// returned by Read and Append.
	ErrIrregular = errors.New("it is not a regular file")
	// ErrLink says that the last name of a path is a symbolic link. It is an
	// ErrIrregular.
	ErrLink = fmt.Errorf("%w but a symbolic link, which is followed only in the folders above the file: name the file that it leads to, or copy it", ErrIrregular)
	// ErrTooLong says that a file has more than MaxSize bytes.
	ErrTooLong = fmt.Errorf("it has more than %d bytes", MaxSize)
)

// Advice says what to do after an ErrOthers of Read.
const Advice = "make it a file that root alone can write, in a folder that root alone can write: chown root, chmod go-w"

// Folder checks an absolute path on which a folder is or is to be made. What is
// not there yet is no error if only root can make it. Errors: ErrOthers, and a
// *fs.PathError with the kernel's errno, such as ENOTDIR and ENAMETOOLONG.
func Folder(path string) error {
	fd, err := walk(path, 0)
	if errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrOthers) {
		return nil
	}
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// Program checks a program that is to be run: it is a regular file that root alone can
// change, and root alone can put another one in its place. Errors: those of Append.
func Program(path string) error {
	folder, err := walk(filepath.Dir(path), 0)
	if err != nil {
		return err
	}
	return errors.Join(look(folder, filepath.Base(path), path, 0), unix.Close(folder))
}

// Read returns the content of a regular file that root alone can write. It never
// waits, neither for a writer of a FIFO nor for a device. Errors: ErrOthers,
// ErrIrregular, ErrTooLong, fs.ErrNotExist, and other *fs.PathError.
func Read(path string) ([]byte, error) {
	f, err := open(path, unix.O_RDONLY, 0, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err == nil && len(b) > MaxSize {
		err = &fs.PathError{Op: "read", Path: path, Err: ErrTooLong}
	}
	return b, err
}

// Append opens a regular file to write at its end. It makes the file, with mode
// 0600, and the folders on the way, with mode 0700, if they are not there. Errors:
// those of Read but ErrTooLong. The caller closes the file.
func Append(path string) (*os.File, error) {
	return open(path, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT, 0o600, 0o700)
}

const careful = unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY

// open opens a regular file in a folder that root alone can write. It makes the
// folder if folderMode is not 0. The file is looked at before it is opened, because
// to open a device may do something (watchdog(4)).
func open(path string, flags int, mode, folderMode fs.FileMode) (f *os.File, err error) {
	defer func() {
		if err != nil {
			err = &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}()
	folder, err := walk(filepath.Dir(path), folderMode)
	if err != nil {
		return nil, err
	}
	defer unix.Close(folder) //nolint:errcheck // nothing was written to it
	name := filepath.Base(path)
	if err := look(folder, name, path, flags); err != nil {
		return nil, err
	}
	fd, err := uninterrupted(func() (int, error) { return unix.Openat(folder, name, flags|careful, uint32(mode.Perm())) })
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// look says why what has a name in a folder cannot be opened. A file that is to be
// made need not be there.
func look(folder int, name, path string, flags int) error {
	var s unix.Stat_t
	switch err := unix.Fstatat(folder, name, &s, unix.AT_SYMLINK_NOFOLLOW); {
	case errors.Is(err, unix.ENOENT) && flags&unix.O_CREAT != 0:
		return nil
	case err != nil:
		return err
	case s.Mode&unix.S_IFMT == unix.S_IFDIR:
		return unix.EISDIR
	case s.Mode&unix.S_IFMT == unix.S_IFLNK:
		return ErrLink
	case s.Mode&unix.S_IFMT != unix.S_IFREG:
		return ErrIrregular
	case !roots(s) || s.Mode&0o022 != 0:
		return others(path, s)
	}
	return nil
}

// ReadInside is Read of a file in a folder that Folder has checked: the way to it
// is not walked again. It costs one open, one read and one close, unless the file is
// unusually long: os.ReadFile would register the file with the poller, ask for its
// size, and read once more for the end. A file that is renamed into place never
// grows, so that a short read is the end.
func ReadInside(path string) ([]byte, error) {
	return readFrom(path, func() (int, error) { return unix.Open(path, unix.O_RDONLY|careful, 0) })
}

// ReadBelow is ReadInside of a file below a folder that Folder has checked, with folders
// between them that another program may change: no link on the way is followed.
func ReadBelow(folder, name string) ([]byte, error) {
	path := filepath.Join(folder, name)
	fd, err := uninterrupted(func() (int, error) { return unix.Open(folder, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: folder, Err: err}
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written to it
	how := unix.OpenHow{Flags: unix.O_RDONLY | careful, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	return readFrom(path, func() (int, error) { return unix.Openat2(fd, name, &how) })
}

// usual is more than what most files of a state folder have.
const usual = 16 << 10

func readFrom(path string, open func() (int, error)) (b []byte, err error) {
	defer func() {
		if err != nil {
			err = &fs.PathError{Op: "read", Path: path, Err: err}
		}
	}()
	fd, err := uninterrupted(open)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) { // a link; a socket
		return nil, ErrIrregular
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) //nolint:errcheck // it was read
	content, have := make([]byte, usual), 0
	for {
		n, err := uninterrupted(func() (int, error) { return unix.Read(fd, content[have:]) })
		if errors.Is(err, unix.EAGAIN) {
			return nil, ErrIrregular
		}
		if err != nil {
			return nil, err
		}
		have += n
		if n == 0 || have == len(content) { // neither is usual
			if err := regular(fd); err != nil {
				return nil, err
			}
		}
		if have > MaxSize {
			return nil, ErrTooLong
		}
		if have < len(content) {
			return content[:have], nil
		}
		content = append(content, make([]byte, len(content))...)
	}
}

// regular returns an error for what may have no end, or another one later.
func regular(fd int) error {
	var s unix.Stat_t
	_, err := uninterrupted(func() (int, error) { return 0, unix.Fstat(fd, &s) })
	if err == nil && s.Mode&unix.S_IFMT != unix.S_IFREG {
		return ErrIrregular
	}
	return err
}
