// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package trusted

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

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

func readFrom(path string, open func() (int, error)) ([]byte, error) {
	b, err := readInside(open)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return b, nil
}

// usual is more than what most files of a state folder have.
const usual = 16 << 10

func readInside(open func() (int, error)) ([]byte, error) {
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
