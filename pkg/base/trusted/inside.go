// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package trusted

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// ReadInside is Read of a file in a folder that Folder has checked: the way to it
// is not walked again. It costs one open, one read and one close, unless the file is
// unusually long: os.ReadFile would register the file with the poller, ask for its
// size, and read once more for the end. A file that is renamed into place never
// grows, so that a short read is the end.
func ReadInside(path string) ([]byte, error) {
	b, err := readInside(path)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return b, nil
}

// usual is more than what most files of a state folder have.
const usual = 16 << 10

func readInside(path string) ([]byte, error) {
	fd, err := uninterrupted(func() (int, error) { return unix.Open(path, unix.O_RDONLY|careful, 0) })
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
