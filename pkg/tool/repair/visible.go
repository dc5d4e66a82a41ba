// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package repair

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
)

// Visible returns an error if this process would not see the namespace at a path of
// the node, for example in a container without the folder /run/netns, or with the folder and
// not what is mounted there since. It then cannot tell whether the namespace exists.
func Visible(path string) error {
	if proc, ok := netns.ByProcess(path); ok {
		return nodeOwn(filepath.Join(proc, "self", "ns", "pid"), filepath.Join(proc, "1", "ns", "pid"))
	}
	mine, nodes := "/proc/self/ns/mnt", "/proc/1/ns/mnt"
	if _, err := os.Stat(path); err == nil {
		if there, err := netns.At(path); err != nil || there != (netns.Ref{}) {
			return err
		}
		return nodeOwn(mine, nodes)
	}
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if there, err := netns.At(filepath.Join(dir, e.Name())); err == nil && there != (netns.Ref{}) {
			return nil
		}
	}
	return nodeOwn(mine, nodes)
}

// initPID is the inode of the first PID namespace of every kernel (PROC_PID_INIT_INO).
const initPID = 0xEFFFFFFC

// nodeOwn returns an error if this process does not share a namespace with the first
// process of the node.
func nodeOwn(ours, first string) error {
	var inodes [3]uint64 // the paths may be equal
	for i, path := range []string{"/proc/self/ns/pid", ours, first} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return &fs.PathError{Op: "stat", Path: path, Err: err}
		}
		inodes[i] = st.Ino
	}
	if inodes[0] != initPID || inodes[1] != inodes[2] {
		return errors.New("this process is in a container, and does not see the namespaces of the node")
	}
	return nil
}
