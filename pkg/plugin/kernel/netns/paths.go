// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package netns

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// Paths returns paths of the network namespaces of a node: where they are mounted, as
// runtimes do for pods, and those of all processes. A namespace may have several. proc is
// the path of procfs. hidden is the number of processes that this process may not
// inspect. Paths does not find a namespace that only a file descriptor or a thread keeps.
func Paths(proc string) (paths []string, hidden int, err error) {
	if paths, err = mounts(filepath.Join(proc, "thread-self", "mountinfo")); err != nil {
		return nil, 0, err
	}
	processes, err := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	if err != nil {
		return nil, 0, err
	}
	for _, p := range processes {
		path := filepath.Join(p, "ns", "net")
		if _, err := os.Stat(path); errors.Is(err, fs.ErrPermission) {
			hidden++
		} else {
			paths = append(paths, path)
		}
	}
	return paths, hidden, nil
}

// Find returns a path of a namespace that was named by a process: the path of that process
// while it is there, or else of another process or a mount. It returns "" for another
// path, and if nothing has the namespace.
func Find(path string, id plan.NetnsID) string {
	rest, ok := strings.CutSuffix(path, "/ns/net")
	if _, err := strconv.ParseUint(filepath.Base(rest), 10, 32); !ok || err != nil {
		return ""
	}
	is := func(path string) bool {
		var st unix.Stat_t
		return unix.Stat(path, &st) == nil && plan.NetnsID{Dev: st.Dev, Ino: st.Ino} == id
	}
	if is(path) {
		return path
	}
	paths, _, err := Paths(filepath.Dir(rest))
	if i := slices.IndexFunc(paths, is); err == nil && i >= 0 {
		return paths[i]
	}
	return ""
}

// mounts returns the paths at which network namespaces are mounted
// (proc_pid_mountinfo(5)).
func mounts(mountinfo string) ([]string, error) {
	b, err := os.ReadFile(mountinfo)
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[3], "net:[") {
			out = append(out, unescape(f[4]))
		}
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
