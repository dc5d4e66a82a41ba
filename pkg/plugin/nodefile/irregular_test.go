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

func TestAFileThatIsNotRegularIsRefusedAndReplaced(t *testing.T) {
	for name, put := range irregular() {
		t.Run(name, func(t *testing.T) {
			s := at(t.TempDir())
			must(t, os.MkdirAll(filepath.Dir(pathOf(s.Dir)), 0o700))
			must(t, put(t, pathOf(s.Dir)))
			must(t, put(t, servicesOf(s.Dir)))
			read := func() (ranges, services error) {
				_, ranges = s.Read("gpu")
				_, services = s.Services()
				return ranges, services
			}
			mustEnd(t, func() {
				for _, err := range list(read()) {
					if cnierr.CodeOf(err) != cnierr.Unreadable || !strings.Contains(err.Error(), "not a regular file") {
						t.Errorf("got %v", err)
					}
				}
				must(t, s.Write(sample(t, 1))) // the agent can put its file in the place of it
				_, err := s.WriteServices(cidrs("10.96.0.0/12"))
				must(t, err)
			})
			must(t, errors.Join(list(read())...))
		})
	}
}

func list(errs ...error) []error { return errs }

// TestNoLinkOfTheAgentIsFollowed has an agent that was taken over. Its container can change
// the folder of the pools, and the plugins run as root of the node.
func TestNoLinkOfTheAgentIsFollowed(t *testing.T) {
	t.Parallel()
	elsewhere := at(t.TempDir())
	must(t, elsewhere.Write(sample(t, 1)))
	_, err := elsewhere.WriteServices(cidrs("10.96.0.0/12"))
	must(t, err)
	s := at(t.TempDir())
	pools, there := filepath.Join(s.Dir, "pools"), filepath.Join(elsewhere.Dir, "pools")
	must(t, os.Mkdir(pools, 0o700))
	for name, to := range map[string]string{"gpu": "gpu", "_services": "_services", "deep": ""} {
		must(t, os.Symlink(filepath.Join(there, to), filepath.Join(pools, name)))
	}
	if _, err := s.Read("gpu"); cnierr.CodeOf(err) != cnierr.Unreadable {
		t.Errorf("a folder that is a link: %v", err)
	}
	if _, err := s.Read("deep/gpu"); cnierr.CodeOf(err) != cnierr.Unreadable {
		t.Errorf("a link above the folder: %v", err)
	}
	if _, err := s.Read("../../" + filepath.Base(elsewhere.Dir) + "/pools/gpu"); err == nil {
		t.Error("a name leads out of the folder")
	}
	if _, err := s.Services(); cnierr.CodeOf(err) != cnierr.Unreadable {
		t.Errorf("the Services: %v", err)
	}
	if got, err := s.Pools(); err != nil || len(got) > 0 {
		t.Errorf("pools %q, error %v", got, err)
	}
}
