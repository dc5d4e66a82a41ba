// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package report

import (
	"errors"
	"io/fs"
	"os"

	"github.com/roce-cni/roce-cni/pkg/base/trusted"
)

// File is a file that a user has named, and that is not there before it is complete.
type File struct {
	*os.File
	path string
}

// Output makes a report. It is a new file, and no file that is there is written to: root
// may write to /tmp, where another user can make the file first, to read it. Only a
// regular file is replaced: trusted.ErrIrregular.
func Output(path string, mode fs.FileMode) (File, error) {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return File{}, &fs.PathError{Op: "create", Path: path, Err: trusted.ErrIrregular}
	}
	f, err := trusted.Fresh(path, mode)
	return File{f, path}, err
}

// Keep closes a report that is complete, and gives it its name.
func (f File) Keep() error { return errors.Join(f.Close(), os.Rename(f.Name(), f.path)) }

// Discard closes and removes a report that is not complete. After Keep it does nothing.
func (f File) Discard() {
	if f.Close() == nil {
		_ = os.Remove(f.Name())
	}
}
