// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

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
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ESRCH): // ESRCH: the process ends
		return Netns{}, nil
	case err != nil:
		return Netns{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	case on.Type != unix.NSFS_MAGIC:
		return Netns{}, nil
	}
	return Netns{Path: path, Dev: st.Dev, Ino: st.Ino}, nil
}

// NetnsAlive says whether a namespace still exists: its path leads to it, or, if the path
// names it by a process, another process or a mount has it. An error means that this is
// not known.
func NetnsAlive(n Netns) (bool, error) {
	there, err := NetnsAt(n.Path)
	if err == nil && there == n {
		return true, nil
	}
	if proc, ok := ofProcess(n.Path); ok {
		return held(proc, n)
	}
	return false, err
}

// ofProcess returns the procfs of a path such as /proc/PID/ns/net, which names a namespace
// by a process. Some runtimes give such paths.
func ofProcess(path string) (proc string, ok bool) {
	rest, ok := strings.CutSuffix(path, "/ns/net")
	if !ok {
		return "", false
	}
	_, err := strconv.ParseUint(filepath.Base(rest), 10, 32)
	return filepath.Dir(rest), err == nil
}

// held says whether a process or a mount has a namespace. An error means that a process
// may not be inspected, so that this is not known.
func held(proc string, n Netns) (bool, error) {
	processes, err := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	if err != nil {
		return false, err
	}
	var hidden error
	for _, process := range processes {
		is, err := NetnsAt(filepath.Join(process, "ns", "net"))
		if is.Dev == n.Dev && is.Ino == n.Ino && err == nil {
			return true, nil
		}
		if err != nil && !ofNode(proc, process) {
			hidden = cmp.Or(hidden, err)
		}
	}
	mounts, err := os.ReadFile(filepath.Join(proc, "thread-self", "mountinfo"))
	return strings.Contains(string(mounts), fmt.Sprintf(" net:[%d] ", n.Ino)), cmp.Or(hidden, err)
}

// ofNode says whether a process that may not be inspected has ended, or is in the
// namespace of this process, and so in no pod. The kernel shows the folder net of every
// process to all (get_proc_task_net). Each namespace has files of its own there.
func ofNode(proc, process string) bool {
	dev := filepath.Join("net", "dev")
	its, err := os.Stat(filepath.Join(process, dev))
	if err != nil {
		_, err := os.Stat(process)
		return errors.Is(err, fs.ErrNotExist)
	}
	ours, err := os.Stat(filepath.Join(proc, "self", dev))
	return err == nil && os.SameFile(its, ours)
}

// NetnsVisible returns an error if this process would not see the namespace at a path of
// the node, for example in a container without the folder /run/netns. It then cannot tell
// whether the namespace exists.
func NetnsVisible(path string) error {
	if proc, ok := ofProcess(path); ok {
		return nodeOwn(filepath.Join(proc, "self", "ns", "pid"), filepath.Join(proc, "1", "ns", "pid"))
	}
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if there, err := NetnsAt(filepath.Join(dir, e.Name())); err == nil && there != (Netns{}) {
			return nil
		}
	}
	return nodeOwn("/proc/self/ns/mnt", "/proc/1/ns/mnt")
}

// initPID is the inode of the first PID namespace of every kernel (PROC_PID_INIT_INO).
const initPID = 0xEFFFFFFC

// nodeOwn returns an error if this process does not share a namespace with the first
// process of the node.
func nodeOwn(ours, first string) error {
	var pid, a, b unix.Stat_t
	for path, st := range map[string]*unix.Stat_t{"/proc/self/ns/pid": &pid, ours: &a, first: &b} {
		if err := unix.Stat(path, st); err != nil {
			return &fs.PathError{Op: "stat", Path: path, Err: err}
		}
	}
	if pid.Ino != initPID || a.Ino != b.Ino {
		return errors.New("this process is in a container, and sees none of the namespaces of the node")
	}
	return nil
}

// samePlace says whether a process that finds a namespace at one path would also find
// one at the other: both name it by a process of the same procfs, or both are in the same
// folder.
func samePlace(a, b string) bool {
	procA, okA := ofProcess(a)
	procB, okB := ofProcess(b)
	if okA || okB {
		return okA && okB && sameFolder(procA, procB)
	}
	return sameFolder(filepath.Dir(a), filepath.Dir(b))
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
