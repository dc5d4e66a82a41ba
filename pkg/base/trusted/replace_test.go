// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package trusted

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// names returns what a folder has.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestAFileIsReplacedAndNeverWrittenTo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	legit, path := write(t, filepath.Join(t.TempDir(), "legit"), "legit"), filepath.Join(dir, "file")
	long := bytes.Repeat([]byte("x"), 3<<20)
	for name, plant := range map[string]func() error{
		"nothing":        func() error { return nil },
		"another file":   func() error { return os.WriteFile(path, []byte("old"), 0o644) },
		"a hard link":    func() error { return os.Link(legit, path) },
		"a link":         func() error { return os.Symlink(legit, path) },
		"a link to none": func() error { return os.Symlink(filepath.Join(dir, "none"), path) },
		"a FIFO":         func() error { return unix.Mkfifo(path, 0o600) },
	} {
		must(t, plant())
		must(t, Replace(path, long, 0o640))
		info, err := os.Lstat(path)
		must(t, err)
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, long) || info.Mode() != 0o640 {
			t.Errorf("%s: %d bytes, mode %v, error %v", name, len(got), info.Mode(), err)
		}
		if b, err := os.ReadFile(legit); err != nil || string(b) != "legit" {
			t.Errorf("%s: the other file has %q, %v", name, b, err)
		}
		if got := names(t, dir); !slices.Equal(got, []string{"file"}) {
			t.Errorf("%s: the folder has %q", name, got)
		}
		must(t, os.Remove(path))
	}
}

func TestAReplacementThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file", "in it"), "")
	if err := Replace(filepath.Join(dir, "file"), []byte("new"), 0o600); err == nil {
		t.Error("a folder was replaced")
	}
	if got := names(t, dir); !slices.Equal(got, []string{"file"}) {
		t.Errorf("the folder has %q", got)
	}
	if err := Replace(filepath.Join(dir, "none", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a folder: %v", err)
	}
}

// TestAFullFileSystemKeepsTheOldFile: what could not be written whole takes the place of nothing.
func TestAFullFileSystemKeepsTheOldFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k")
	if errors.Is(err, unix.EPERM) && os.Getenv("REQUIRE_NETNS") != "1" {
		t.Skip("only root can mount")
	}
	must(t, err)
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	path := filepath.Join(dir, "file")
	must(t, Replace(path, []byte("old"), 0o600))
	if err := Replace(path, bytes.Repeat([]byte("x"), 128<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v, want ENOSPC", err)
	}
	if b, err := os.ReadFile(path); string(b) != "old" || err != nil || !slices.Equal(names(t, dir), []string{"file"}) {
		t.Errorf("the file has %d bytes, %v, the folder %q", len(b), err, names(t, dir))
	}
}

// TestNamesOfFilesThatAreNotCompleteCannotBeGuessed: a link cannot be made at a name
// that is not known.
func TestNamesOfFilesThatAreNotCompleteCannotBeGuessed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	seen := map[string]bool{}
	for range 100 {
		f, err := Fresh(filepath.Join(dir, "file"), 0o600)
		must(t, err)
		info, err := f.Stat()
		must(t, errors.Join(err, f.Close()))
		if name := filepath.Base(f.Name()); !IsFresh(name) || seen[name] || info.Mode() != 0o600 {
			t.Errorf("%s, mode %v", name, info.Mode())
		}
		seen[f.Name()] = true
	}
	write(t, filepath.Join(dir, "file"), "")
	others := []string{"file.old-0123456789abcdef", "file2.new-0123456789abcdef", "life.new-0123456789abcdef"}
	for _, name := range others {
		write(t, filepath.Join(dir, name), "")
	}
	must(t, Sweep(filepath.Join(dir, "file")))
	if got := names(t, dir); !slices.Equal(got, append([]string{"file"}, others...)) {
		t.Errorf("after Sweep the folder has %q", got)
	}
	must(t, Sweep(filepath.Join(dir, "none", "file")))
	if err := Sweep(filepath.Join(dir, "file", "below")); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("of what is no folder: %v", err)
	}
	// One that cannot be removed is said, and keeps no other.
	stays, goes := "file.new-0000000000000000", "file.new-0000000000000001"
	write(t, filepath.Join(dir, stays, "in it"), "")
	write(t, filepath.Join(dir, goes), "")
	if err := Sweep(filepath.Join(dir, "file")); !errors.Is(err, unix.ENOTEMPTY) || slices.Contains(names(t, dir), goes) {
		t.Errorf("got %v, the folder has %q", err, names(t, dir))
	}
}

func TestOtherNamesAreOfFilesThatAreComplete(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"net1.json.new-0123456789abcdef": true, ".new-0123456789abcdef": true, "net1.json": false, "lock": false, "": false,
		".new-0123456789abcde.json": false, "a.new-b.json": false, "x.new-0123456789ABCDEF": false, "x.new-0123456789abcde": false, "x.neu-0123456789abcdef": false,
	} {
		if IsFresh(name) != want {
			t.Errorf("%q: %t", name, !want)
		}
	}
}
