// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// tree is a mounted file system, at a path that only this process has.
type tree struct {
	path  string
	close func()
}

func (t tree) files() fs.FS { return os.DirFS(t.path) }

// mount mounts sysfs or configfs as the namespace of the calling thread sees it. The
// mount is attached nowhere, so no other process sees it, and it ends with the
// process.
func mount(fstype string) (tree, error) {
	context, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return tree{}, fmt.Errorf("fsopen %s: %w", fstype, err)
	}
	defer unix.Close(context) //nolint:errcheck // nothing was written to it
	if err := unix.FsconfigCreate(context); err != nil {
		return tree{}, fmt.Errorf("fsconfig %s: %w", fstype, err)
	}
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return tree{}, fmt.Errorf("fsmount %s: %w", fstype, err)
	}
	return tree{path: fmt.Sprintf("/proc/self/fd/%d", fd), close: func() { _ = unix.Close(fd) }}, nil
}
