// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nodefile_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// irregular makes one of each kind at a path.
func irregular() map[string]func(t *testing.T, path string) error {
	fifo := func(path string) error { return unix.Mkfifo(path, 0o600) }
	return map[string]func(t *testing.T, path string) error{
		"a FIFO": func(_ *testing.T, path string) error { return fifo(path) },
		"a FIFO that a process writes to": func(t *testing.T, path string) error {
			t.Helper()
			if err := fifo(path); err != nil {
				return err
			}
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			t.Cleanup(func() { _ = f.Close() })
			return err
		},
		"a socket": func(t *testing.T, path string) error {
			t.Helper()
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = unix.Close(fd) })
			t.Chdir(filepath.Dir(path)) // what a socket's address has is short
			return unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Base(path)})
		},
		"a link": func(_ *testing.T, path string) error { return os.Symlink("/dev/zero", path) },
	}
}

// mustEnd fails when do hangs.
func mustEnd(t *testing.T, do func()) {
	t.Helper()
	ended := make(chan struct{})
	go func() { defer close(ended); do() }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("it hangs")
	}
}

func TestAFileThatIsNotRegularStopsNoOther(t *testing.T) {
	for name, put := range irregular() {
		t.Run(name, func(t *testing.T) {
			s := at(t.TempDir())
			want := db("db-0")
			for _, path := range []string{"ranges", "sticky/" + want.String(), "wanted/" + want.String()} {
				path = filepath.Join(s.Dir, "pools/gpu", path)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := put(t, path); err != nil {
					t.Fatal(err)
				}
			}
			refused := func(what string, err error) {
				t.Helper()
				if cnierr.CodeOf(err) != cnierr.Unreadable || !strings.Contains(err.Error(), "not a regular file") {
					t.Errorf("%s: %v", what, err)
				}
			}
			mustEnd(t, func() {
				_, err := s.Read("gpu")
				refused("ranges", err)
				_, _, err = s.Answer("gpu", want)
				refused("answer", err)
				_, err = s.Answers("gpu")
				refused("answers", err)
				_, err = s.Wanted("gpu")
				refused("requests", err)
			})
			if keys, err := s.Wanted("gpu"); len(keys) > 0 || err != nil {
				t.Errorf("it was not removed: %v, %v", keys, err)
			}
			if err := s.Write(sample(t, 1)); err != nil {
				t.Errorf("the agent cannot put its file in the place of it: %v", err)
			}
			if _, err := s.Read("gpu"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNothingIsWrittenThroughALink(t *testing.T) {
	t.Parallel()
	legit := filepath.Join(t.TempDir(), "legit")
	if err := os.WriteFile(legit, []byte("legit"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := at(t.TempDir())
	pool := filepath.Join(s.Dir, "pools", "gpu")
	paths := []string{filepath.Join(pool, "ranges"), filepath.Join(pool, "ranges.new"), filepath.Join(pool, "wanted", db("db-0").String()), filepath.Join(pool, "sticky", db("db-0").String())}
	for _, path := range paths {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.Symlink(legit, path)); err != nil {
			t.Fatal(err)
		}
	}
	f := nodefile.File{Pool: "gpu", Rails: granted(t, "db-0").Rails}
	if err := errors.Join(s.Write(f), s.Want("gpu", db("db-0")), s.WriteAnswer("gpu", granted(t, "db-0"))); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(legit); err != nil || string(b) != "legit" {
		t.Errorf("behind the links: %q, %v", b, err)
	}
	if _, there, err := s.Answer("gpu", db("db-0")); !there || err != nil {
		t.Errorf("the answer: %t, %v", there, err)
	}
}
