// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// closeToOthers makes a state folder unreadable for other users if kubelet has made
// it, as a hostPath of 0755. Such a folder is ours and empty. A folder that is not
// empty may belong to another program, such as /run, and keeps its mode. If the
// folder is missing, the first write makes it with 0700.
func closeToOthers(dir string) error {
	var s unix.Stat_t
	err := unix.Stat(dir, &s)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (s.Uid != uint32(os.Geteuid()) || s.Mode&0o077 == 0) {
		return nil
	}
	var inside []os.DirEntry
	if err == nil {
		inside, err = os.ReadDir(dir)
	}
	if err == nil && len(inside) == 0 {
		err = os.Chmod(dir, 0o700) //nolint:gosec // a folder
	}
	if err != nil {
		return cnierr.New(cnierr.IO, "prepare state folder", dir, "", "%w", err)
	}
	return nil
}
