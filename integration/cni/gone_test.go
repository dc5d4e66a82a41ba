// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// A runtime that removes a pod by force takes the path of its namespace away, while a
// process or a mount keeps the namespace. Its address must not go to another pod with it.
func TestDelFindsANamespaceThatLostItsPath(t *testing.T) {
	t.Parallel()
	for name, keep := range map[string]func(t *testing.T, p *pod) (end func()){
		"a process has it": func(t *testing.T, p *pod) func() {
			stays := exec.Command("nsenter", "--net="+p.Path, "sh", "-c", "echo ready; exec sleep 600")
			out, err := stays.StdoutPipe()
			if err == nil {
				err = stays.Start()
			}
			if err == nil {
				_, err = out.Read(make([]byte, len("ready\n")))
			}
			must(t, err)
			return func() {
				_ = stays.Process.Kill()
				_ = stays.Wait()
			}
		},
		"a mount has it": func(t *testing.T, p *pod) func() {
			at := filepath.Join(t.TempDir(), "kept")
			must(t, errors.Join(os.WriteFile(at, nil, 0o600), unix.Mount(p.Path, at, "", unix.MS_BIND, "")))
			return func() { _ = unix.Unmount(at, unix.MNT_DETACH) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := w.pod(t)
			a := w.attach(w.rail(0), p, "net1")
			addr := addrOfResult(t, a.mustAdd(t))
			t.Cleanup(keep(t, p))
			p.Remove(t)
			if out, err := w.rocectl("forget", "--container", p.id, "--yes"); err == nil || !strings.Contains(out, "exists") {
				t.Errorf("forget: %v, want a refusal\n%s", err, out)
			}
			w.mustRocectl(t, "check")
			w.leaf.MustRun(t, "ping", "-n", "-q", "-c", "1", "-W", "3", addr.String())
			a.mustDel(t)
			w.leaf.IP(t, "neigh flush all")
			if out, err := w.leaf.Run("ping", "-n", "-q", "-c", "1", "-W", "1", addr.String()); err == nil {
				t.Errorf("the address answers after DEL:\n%s", out)
			}
			w.mustBeClean(t)
		})
	}
}

// Multus sends no GC for secondary networks. The record of a dead pod would stay for
// ever, and with it an error of every check.
func TestRecordsOfDeadPodsEndWithTheirLeases(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	dead, lives := w.pod(t), w.pod(t)
	w.attach(w.rail(0), dead, "net1").mustAdd(t)
	dead.Remove(t)
	// The kernel gives the inode number of a dead namespace to the next one, which can be of
	// another test. It keeps the lease then, until it ends.
	a := w.attach(w.rail(0), lives, "net1")
	cnitest.Await(t, "only the living pod has an address", func() bool {
		a.mustDel(t)
		a.mustAdd(t)
		return len(w.leases(t, "leased")) == 1
	})
	if out, err := w.rocectl("show"); err != nil || strings.Contains(out, dead.name) {
		t.Errorf("show: %v\n%s", err, out)
	}
	if out, err := w.rocectl("check"); err != nil || out != "train/"+lives.name+" net1: ok\n" {
		t.Errorf("check: %v\n%s", err, out)
	}
}

// In a container without the folder of the namespaces, no pod is visible.
func TestCommandsCannotTellWhereNamespacesAreHidden(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	a := w.attach(w.rail(0), p, "net1")
	a.mustAdd(t)
	empty := t.TempDir()
	hidden := func(args ...string) (string, error) {
		script := fmt.Sprintf(`mount --bind %s /run/netns && exec "$@"`, empty)
		rocectl := []string{filepath.Join(programs, "rocectl"), "--state-dir", w.state}
		return w.Run("unshare", append(append([]string{"--mount", "sh", "-c", script, "sh"}, rocectl...), args...)...)
	}
	for _, args := range [][]string{
		{"check"},
		{"repair"},
		{"repair", "--yes"},
		{"forget", "--container", p.id, "--yes"},
		{"pool", "release", "rail0", strings.Fields(w.leases(t, "leased")[0])[1]},
	} {
		out, err := hidden(args...)
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(out, "cannot tell") || strings.Contains(out, "exit status") {
			t.Errorf("%q: %v, want status 2 and an answer that it cannot tell\n%s", args, err, out)
		}
	}
	if _, err := os.Stat(filepath.Join(w.state, "attachments", p.id)); err != nil {
		t.Error(err)
	}
	a.mustCheck(t)
}
