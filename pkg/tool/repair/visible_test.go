// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package repair

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestANodeSeesThatANamespaceIsGone(t *testing.T) {
	t.Parallel()
	if err := nodeOwn("/proc/self/ns/mnt", "/proc/1/ns/mnt"); err != nil {
		t.Skip("not where the node's own processes are")
	}
	for _, path := range []string{"/proc/4194305/ns/net", "/proc/4194305/task/4194305/ns/net", "/proc/4194305/fd/3", "/run/no-such-folder/pod"} {
		if err := Visible(path); err != nil {
			t.Errorf("%s: %v, want it visible that nothing is there", path, err)
		}
	}
}

// TestANamespaceThatIsThereIsVisible, also from a container: and beside one, that another one is gone.
func TestANamespaceThatIsThereIsVisible(t *testing.T) {
	t.Parallel()
	link := filepath.Join(t.TempDir(), "pod")
	if err := os.WriteFile(filepath.Join(filepath.Dir(link), "a-file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/proc/self/ns/net", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, filepath.Join(filepath.Dir(link), "gone")} {
		if err := Visible(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Visible(filepath.Join(file, "pod")); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a file in place of the folder: got %v", err)
	}
	// A file is what is left of a namespace, or what a container sees of one. The same is with processes.
	processes, mounts := nodeOwn("/proc/self/ns/pid", "/proc/1/ns/pid") == nil, nodeOwn("/proc/self/ns/mnt", "/proc/1/ns/mnt") == nil
	for path, is := range map[string]bool{
		file: mounts, filepath.Join(filepath.Dir(file), "gone"): mounts, filepath.Join(filepath.Dir(file), "none", "pod"): mounts,
		fmt.Sprintf("/proc/%d/ns/net", os.Getpid()): processes, fmt.Sprintf("/proc/%[1]d/task/%[1]d/ns/net", os.Getpid()): processes,
	} {
		if err := Visible(path); (err == nil) != is || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: got %v, want it visible: %t", path, err, is)
		}
	}
}

// TestAContainerDoesNotSeeTheNode: a process with another namespace than the first one, and one that
// cannot be looked at.
func TestAContainerDoesNotSeeTheNode(t *testing.T) {
	t.Parallel()
	if err := nodeOwn("/proc/self/ns/mnt", "/proc/self/ns/uts"); err == nil {
		t.Error("another namespace is that of the node")
	}
	for _, paths := range [][2]string{{"/proc/self/ns/none", "/proc/self/ns/mnt"}, {"/proc/self/ns/mnt", "/proc/self/ns/none"}} {
		if err := nodeOwn(paths[0], paths[1]); !os.IsNotExist(err) {
			t.Errorf("%v: got %v", paths, err)
		}
	}
	pid, _ := os.Readlink("/proc/self/ns/pid")
	for _, path := range []string{"/proc/self/ns/mnt", "/proc/self/ns/pid"} { // the second is for a namespace by its process
		if err := nodeOwn(path, path); (err == nil) != (pid == "pid:[4026531836]") {
			t.Errorf("%s in %s: got %v", path, pid, err)
		}
	}
}
