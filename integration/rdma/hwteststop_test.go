// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/tool/verify"
)

// TestHWTestKilledLeavesTheNodeWhole kills it after several steps, so in the next ones, in some of
// which a pod has a device, with its process group, as timeout -s KILL does. Nothing runs after it.
func TestHWTestKilledLeavesTheNodeWhole(t *testing.T) {
	for mode, steps := range map[string][]string{"shared": {"pod-add", "gid-time", "gid-number"}, "exclusive": {"pod-add", "exclusive"}} {
		for _, step := range steps {
			t.Run(mode+" "+step, func(t *testing.T) {
				newNode(t, mode)
				cmd := exec.Command(filepath.Join(*programs, "roce-hwtest"), "--mutate", "--out", filepath.Join(t.TempDir(), "x"))
				cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
				lines := start(t, cmd)
				for lines.Scan() && !strings.Contains(lines.Text(), " "+step+" ") {
				}
				cnitest.Await(t, "there is a pod", func() bool { return len(entries("/run/netns")) > 0 })
				if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				_ = cmd.Wait() // it was killed
				nothingOfHWTest(t)
				home(t)
			})
		}
	}
}

// nothingOfHWTest waits until what a killed run has left is removed.
func nothingOfHWTest(t *testing.T) {
	t.Helper()
	cnitest.Await(t, "nothing is left", func() bool {
		return len(slices.Concat(entries("/run/roce-hwtest"), entries("/run/roce-hwtest.bonds"), entries("/run/netns"))) == 0
	})
}

// TestHWTestInterruptedRemovesEverything stops it when pods are there.
func TestHWTestInterruptedRemovesEverything(t *testing.T) {
	for _, sent := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		t.Run(sent.String(), func(t *testing.T) {
			newNode(t, "shared")
			file := filepath.Join(t.TempDir(), "x")
			cmd := exec.Command(filepath.Join(*programs, "roce-hwtest"), "--mutate", "--out", file)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			lines := start(t, cmd)
			for lines.Scan() && !strings.Contains(lines.Text(), " pod-add ") {
			}
			if left := entries("/run/netns"); len(left) == 0 {
				t.Error("there is no pod yet: the test proves nothing")
			}
			if err := cmd.Process.Signal(sent); err != nil {
				t.Fatal(err)
			}
			for lines.Scan() { // so that it can write
			}
			if err := cmd.Wait(); err == nil {
				t.Error("it succeeds")
			}
			contains(t, stderr.String(), "it was interrupted; everything that it made is removed")
			if left := slices.Concat(entries("/run/netns"), entries("/run/roce-hwtest")); len(left) > 0 {
				t.Errorf("it has left %q", left)
			}
			home(t)
			r, _ := results(t, file)
			contains(t, strings.Join(told(r.Answers), "\n"), "ok devices rxe0: ", "ok pod-add rxe") // of the first device that the kernel lists
			contains(t, r.Stopped, "it was interrupted")
			if len(r.Rows) == 0 || len(r.Ports) != 2 {
				t.Errorf("the file has %d rows and %d ports", len(r.Rows), len(r.Ports))
			}
		})
	}
}

// TestHWTestServeKilledLeavesNoProgram kills it when its servers run: here a program that
// never ends.
func TestHWTestServeKilledLeavesNoProgram(t *testing.T) {
	newNode(t, "shared")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ib_write_bw"), []byte("#!/bin/sh\nexec sleep 4321\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	server := func() bool { _, err := try("pgrep", "-f", "^sleep 4321"); return err == nil }
	finally(t, "pkill -f '^sleep 4321'; true")
	t.Setenv(verify.TokenVariable, "the token of a test")
	serve := func() *exec.Cmd {
		cmd := exec.Command(filepath.Join(*programs, "roce-hwtest"), "serve", "--listen", "127.0.0.1:9484")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cnitest.Await(t, "a server runs", server)
		return cmd
	}
	cmd := serve()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	cnitest.Await(t, "no server runs", func() bool { return !server() })
	cmd = serve() // removes what the first one has left
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	home(t)
}

// TestMLX5HWTestKilledInAFailoverRestoresTheBond kills it when another slave is
// the active one.
func TestMLX5HWTestKilledInAFailoverRestoresTheBond(t *testing.T) {
	newMLX5Node(t, "shared")
	lag(t)
	const file = "/sys/class/net/bond0/bonding/active_slave"
	active := func() string {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	was := active()
	cmd := exec.Command(filepath.Join(*programs, "roce-hwtest"), "--mutate", "--disrupt", "failover", "--out", filepath.Join(t.TempDir(), "x"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed
	}()
	tick := time.NewTicker(time.Millisecond) // the machine needs its processor for the run
	defer tick.Stop()
	for active() == was {
		select {
		case <-tick.C:
		case <-ended:
			t.Fatalf("it ended without a failover:\n%s", &out)
		}
	}
	_ = cmd.Process.Kill() // it may have ended
	<-ended
	cnitest.Await(t, "the slave is active that was it", func() bool { return active() == was })
	nothingOfHWTest(t)
}
