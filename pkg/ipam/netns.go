// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// NetnsAt returns the network namespace at a path. It returns the zero Netns if
// nothing is there, or something that is not on nsfs.
func NetnsAt(path string) (Netns, error) {
	var on unix.Statfs_t
	var st unix.Stat_t
	err := unix.Statfs(path, &on)
	if err == nil {
		err = unix.Stat(path, &st)
	}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return Netns{}, nil
	case err != nil:
		return Netns{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	case on.Type != unix.NSFS_MAGIC:
		return Netns{}, nil
	}
	return Netns{Path: path, Dev: st.Dev, Ino: st.Ino}, nil
}

// NetnsAlive says whether the path of n still leads to that namespace. An error
// means that this is not known.
func NetnsAlive(n Netns) (bool, error) {
	there, err := NetnsAt(n.Path)
	return err == nil && there == n, err
}

// sameFolder says whether two paths are the same folder, such as /run/netns and
// /var/run/netns on most machines.
func sameFolder(a, b string) bool {
	if a == b {
		return true
	}
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}
