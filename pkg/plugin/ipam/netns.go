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
func NetnsAlive(n Netns) (bool, error) { return Observe()(n) }

// Observe returns a function that answers as NetnsAlive does. The function reads the
// processes of the node once, when it first needs them, and not again for each namespace.
// So use it for the namespaces of one moment: it does not see later ones.
func Observe() func(Netns) (bool, error) {
	var seen map[string]users // seldom needed
	return func(n Netns) (bool, error) {
		there, err := NetnsAt(n.Path)
		if err == nil && there == n {
			return true, nil
		}
		proc, ok := ofProcess(n.Path)
		if !ok {
			return false, err
		}
		u, known := seen[proc]
		if !known {
			if seen == nil {
				seen = map[string]users{}
			}
			u = usersOf(proc)
			seen[proc] = u
		}
		return u.have(n)
	}
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

// leftByProcess says whether a path names a namespace by a process that has ended.
func leftByProcess(path string) bool {
	_, ok := ofProcess(path)
	there, err := NetnsAt(path)
	return ok && there == (Netns{}) && err == nil
}

// users is who has namespaces: the processes and the mounts of a node.
type users struct {
	processes map[inode]bool
	mounts    string // mountinfo
	hidden    error  // a process may not be inspected, or the mounts cannot be read
}

type inode struct{ dev, ino uint64 }

// have says whether a process or a mount has a namespace. An error means that this is not
// known.
func (u users) have(n Netns) (bool, error) {
	if u.processes[inode{n.Dev, n.Ino}] {
		return true, nil
	}
	return strings.Contains(u.mounts, fmt.Sprintf(" net:[%d] ", n.Ino)), u.hidden
}

// usersOf reads a procfs.
func usersOf(proc string) users {
	u := users{processes: map[inode]bool{}}
	processes, err := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	if err != nil {
		return users{hidden: err}
	}
	seen := []string{filepath.Join(proc, "self")}
	hidden := map[string]error{}
	for _, process := range processes {
		is, err := NetnsAt(filepath.Join(process, "ns", "net"))
		if err != nil {
			hidden[process] = err
			continue
		}
		u.processes[inode{is.Dev, is.Ino}] = true
		seen = append(seen, process)
	}
	u.hidden = unknown(hidden, seen)
	mounts, err := os.ReadFile(filepath.Join(proc, "thread-self", "mountinfo"))
	u.mounts, u.hidden = string(mounts), cmp.Or(u.hidden, err)
	return u
}

// unknown returns the error about a process that may not be inspected, if it can be in a
// namespace that none of the seen processes has. The kernel shows the folder net of every
// process to all (get_proc_task_net). Each namespace has files of its own there.
func unknown(hidden map[string]error, seen []string) error {
	if len(hidden) == 0 {
		return nil
	}
	known := map[inode]bool{}
	for _, process := range seen {
		if of, err := filesOf(process); err == nil {
			known[of] = true
		}
	}
	for process, err := range hidden {
		of, unread := filesOf(process)
		if errors.Is(unread, fs.ErrNotExist) || errors.Is(unread, unix.ESRCH) {
			continue // it has ended
		}
		if unread != nil || !known[of] {
			return err
		}
	}
	return nil
}

// filesOf returns what tells the namespace of a process from all others in procfs.
func filesOf(process string) (inode, error) {
	var st unix.Stat_t
	err := unix.Stat(filepath.Join(process, "net", "dev"), &st)
	return inode{uint64(st.Dev), st.Ino}, err
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
