// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package netns

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestANamespaceIsNotGoneBecauseWeCannotLook(t *testing.T) {
	t.Parallel()
	for errno, gone := range map[unix.Errno]bool{
		unix.ENOENT: true, unix.ENOTDIR: true, unix.ENAMETOOLONG: true, unix.ELOOP: true,
		unix.EMFILE: false, unix.ENFILE: false, unix.EACCES: false, unix.EPERM: false, unix.ENOMEM: false,
	} {
		if err := goneUnless(errno); errors.Is(err, ErrGone) != gone || !errors.Is(err, errno) {
			t.Errorf("%v: got %v, want gone: %v", errno, err, gone)
		}
	}
}

func TestANamespaceStaysUntilItIsRemoved(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pod")
	err := Make(path)
	if errors.Is(err, unix.EPERM) && os.Getenv("REQUIRE_NETNS") != "1" {
		t.Skip("only root can make namespaces")
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := Make(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made again: %v", err)
	}
	own, host, err := Own()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(own)
	fd, id, err := Open(path)
	if err != nil || id == host {
		t.Fatalf("the namespace is %v, the host's %v, %v", id, host, err)
	}
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is none
		if err := Remove(path); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the file is still there")
	}
	// What a process leaves that is killed between file and namespace.
	if err := os.WriteFile(path, nil, 0o400); err != nil {
		t.Fatal(err)
	}
	if err := Remove(path); err != nil {
		t.Error(err)
	}
}

// TestNoThreadStaysInANamespaceThatWasMade: the first thread of a process never ends, so
// a namespace that it stays in could not end either.
func TestNoThreadStaysInANamespaceThatWasMade(t *testing.T) {
	t.Parallel()
	for range 20 {
		path := filepath.Join(t.TempDir(), "pod")
		err := Make(path)
		if errors.Is(err, unix.EPERM) && os.Getenv("REQUIRE_NETNS") != "1" {
			t.Skip("only root can make namespaces")
		}
		if err != nil {
			t.Fatal(err)
		}
		made, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		threads, err := filepath.Glob("/proc/self/task/*/ns/net")
		if err != nil || len(threads) == 0 {
			t.Fatalf("the threads of this process: %q, %v", threads, err)
		}
		for _, thread := range threads {
			if has, err := os.Stat(thread); err == nil && os.SameFile(has, made) { // else it has ended
				t.Errorf("%s is in the new namespace", thread)
			}
		}
		if err := Remove(path); err != nil {
			t.Error(err)
		}
	}
}
