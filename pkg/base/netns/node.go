// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package netns

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// procfs is where the processes of the node are.
const procfs = "/proc"

// ErrHidden is in the error about a process that this process may not inspect. Its
// namespace may be missing then. Root of the node may inspect all of them.
var ErrHidden = errors.New("a process that may not be inspected")

// Each returns the network namespaces of a node, each once: where they are mounted, as
// runtimes do for pods, and those of all processes. proc is the path of procfs. A
// namespace is open until the loop goes on. Each leaves out one that has ended, and does
// not find one that only a file descriptor keeps, or a thread that is not where the other
// threads of its process are.
//
// An error, in place of a namespace, is about one that may exist: ErrHidden, or that it
// cannot be opened. If procfs cannot be read, there is only that error.
func Each(proc string) iter.Seq2[*Namespace, error] {
	return func(yield func(*Namespace, error) bool) {
		mounted, err := mounts(proc)
		if err != nil {
			yield(nil, err)
			return
		}
		seen := map[ID]bool{}
		visit := func(path string, hidden error) bool {
			n, err := unseen(path, seen)
			if errors.Is(err, fs.ErrPermission) && hidden != nil {
				err = fmt.Errorf("%w: %w", hidden, err)
			}
			defer n.Close()
			return n == nil && err == nil || yield(n, err)
		}
		for _, m := range mounted {
			if !visit(m.Path, nil) {
				return
			}
		}
		for _, process := range processes(proc) {
			if !visit(filepath.Join(process, "ns", "net"), ErrHidden) {
				return
			}
		}
	}
}

// unseen opens the namespace at a path, unless it has ended or was seen before.
func unseen(path string, seen map[ID]bool) (*Namespace, error) {
	there, err := At(path)
	if err != nil || there == (Ref{}) || seen[there.ID] {
		return nil, err
	}
	n, err := Open(path)
	if errors.Is(err, ErrGone) {
		return nil, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if seen[n.ID] { // another namespace took its path in the meantime
		n.Close()
		return nil, nil
	}
	seen[n.ID] = true
	return n, nil
}

// Find returns a path of a namespace that was at a path: that path while it is there, or
// else the path of a mount or of a process that has the namespace. It returns "" if nothing
// has it. Whether a namespace that was mounted still exists, it judges as Alive does.
func Find(path string, id ID) string {
	if there, err := At(path); err == nil && there.ID == id {
		return path
	}
	proc, byProcess := ByProcess(path)
	if !byProcess {
		if alive, err := Alive(Ref{path, id}); !alive || err != nil {
			return ""
		}
		proc = procfs
	}
	for n, err := range Each(proc) {
		if err == nil && n.ID == id {
			return n.Path
		}
	}
	return ""
}

// Inode returns the inode of the network namespace of a process, by the folder of the process
// in a file system, such as "1" in procfs. Errors: fs.ErrNotExist if it has ended.
func Inode(in fs.FS, process string) (ino uint64, err error) {
	target, err := fs.ReadLink(in, living(in, process)+"/ns/net")
	if err == nil {
		_, err = fmt.Sscanf(target, "net:[%d]", &ino)
	}
	return ino, err
}

// ByProcess returns the procfs of a path such as /proc/PID/ns/net or
// /proc/PID/task/TID/ns/net, which names a namespace by a process or a thread. Some runtimes
// give such paths.
func ByProcess(path string) (proc string, ok bool) {
	rest, ok := strings.CutSuffix(path, "/ns/net")
	if !ok {
		return "", false
	}
	if process, tasks := strings.CutSuffix(filepath.Dir(rest), "/task"); tasks && numbered(rest) {
		rest = process
	}
	return filepath.Dir(rest), numbered(rest)
}

// numbered says whether a path is that of a process or a thread in procfs.
func numbered(path string) bool {
	_, err := strconv.ParseUint(filepath.Base(path), 10, 32)
	return err == nil
}

// Alive says whether a namespace still exists: its path leads to it, or a process or a
// mount has it, because a path can go while these stay. But where the path was a mount and
// the namespace is mounted at another path of the same folder now, Alive says no: the
// namespace has ended, and another pod has its inode number. A mount that only another mount
// namespace has is not seen. An error means that this is not known.
func Alive(n Ref) (bool, error) { return Observe()(n) }

// Observe returns a function that answers as Alive does. The function reads the
// processes of the node once, when it first needs them, and not again for each namespace.
// So use it for the namespaces of one moment: it does not see later ones.
func Observe() func(Ref) (bool, error) {
	seen := map[string]users{} // by procfs
	return func(n Ref) (bool, error) {
		there, err := At(n.Path)
		if err == nil && there == n {
			return true, nil
		}
		proc, byProcess := ByProcess(n.Path)
		if !byProcess {
			if err != nil {
				return false, err
			}
			proc = procfs
		}
		u, known := seen[proc]
		if !known {
			u = usersOf(proc)
			seen[proc] = u
		}
		if at := u.mounts[n.ID]; len(at) > 0 {
			return byProcess || !slices.Contains(at, realFolder(n.Path)), nil
		}
		return u.processes[n.ID], u.hidden
	}
}

// users is who has namespaces: the processes and the mounts of a node.
type users struct {
	processes map[ID]bool
	mounts    map[ID][]string // the folders where it is mounted
	hidden    error           // a process may not be inspected, or the mounts cannot be read
}

// usersOf reads a procfs.
func usersOf(proc string) users {
	u := users{processes: map[ID]bool{}, mounts: map[ID][]string{}}
	seen := []string{filepath.Join(proc, "self")}
	hidden := map[string]error{}
	for _, process := range processes(proc) {
		is, err := At(filepath.Join(process, "ns", "net"))
		if err != nil {
			hidden[process] = err
			continue
		}
		if is != (Ref{}) { // else it has ended
			u.processes[is.ID] = true
			seen = append(seen, process)
		}
	}
	mounted, err := mounts(proc)
	for _, m := range mounted {
		u.mounts[m.ID] = append(u.mounts[m.ID], filepath.Dir(m.Path))
	}
	u.hidden = cmp.Or(unknown(hidden, seen), err)
	return u
}

// realFolder returns the folder of a path as mountinfo would name it: /run/netns for
// /var/run/netns on most machines.
func realFolder(path string) string {
	dir := filepath.Dir(path)
	if is, err := filepath.EvalSymlinks(dir); err == nil {
		return is
	}
	return dir
}

// unknown returns the error about a process that may not be inspected, if it can be in a
// namespace that none of the seen processes has. The kernel shows the folder net of every
// process to all (get_proc_task_net). Each namespace has files of its own there.
func unknown(hidden map[string]error, seen []string) error {
	if len(hidden) == 0 {
		return nil
	}
	known := map[ID]bool{}
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

// filesOf returns what tells the namespace of a process from all others in procfs: not
// its ID, but a file that it has there.
func filesOf(process string) (ID, error) {
	var st unix.Stat_t
	err := unix.Stat(filepath.Join(process, "net", "dev"), &st)
	return ID{st.Dev, st.Ino}, err
}

// processes returns the folders of all processes, as living does.
func processes(proc string) []string {
	in := os.DirFS(proc)
	folders, _ := fs.Glob(in, "[0-9]*") // the pattern is correct
	for i, f := range folders {
		folders[i] = filepath.Join(proc, living(in, f))
	}
	return folders
}

// living returns the folder of a process, by which procfs means its first thread; or that of
// another thread, if the first one has ended. A program that was killed can have such a
// thread for long: one that waits in a driver.
func living(in fs.FS, process string) string {
	if _, err := fs.ReadLink(in, process+"/ns/net"); !errors.Is(err, fs.ErrNotExist) {
		return process
	}
	threads, _ := fs.Glob(in, process+"/task/*") // the pattern is correct
	for _, thread := range threads {
		if _, err := fs.ReadLink(in, thread+"/ns/net"); !errors.Is(err, fs.ErrNotExist) {
			return thread
		}
	}
	return process
}

// mounts returns the network namespaces that are mounted (proc_pid_mountinfo(5)).
func mounts(proc string) ([]Ref, error) {
	b, err := os.ReadFile(filepath.Join(proc, "thread-self", "mountinfo"))
	if err != nil {
		return nil, err
	}
	var out []Ref
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 5 || !strings.HasPrefix(f[3], "net:[") {
			continue
		}
		var major, minor uint32
		var ino uint64
		if _, err := fmt.Sscanf(f[2]+" "+f[3], "%d:%d net:[%d]", &major, &minor, &ino); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		out = append(out, Ref{unescape(f[4]), ID{unix.Mkdev(major, minor), ino}})
	}
	return out, nil
}

// unescape reverses how the kernel writes blanks and backslashes in paths
// (seq_path, mangle_path): a backslash and three octal digits.
func unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}
