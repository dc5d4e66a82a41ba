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

// TestHWTestKilledLeavesNothingAfterTheNextRun kills it when a pod has a device.
func TestHWTestKilledLeavesNothingAfterTheNextRun(t *testing.T) {
	for _, mode := range []string{"shared", "exclusive"} {
		t.Run(mode, func(t *testing.T) {
			n := newNode(t, mode)
			cmd := exec.Command(filepath.Join(*programs, "roce-hwtest"), "--mutate", "--out", filepath.Join(t.TempDir(), "x"))
			lines := start(t, cmd)
			for lines.Scan() && !strings.Contains(lines.Text(), " pod-add ") {
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // it was killed
			wants(t, n.hwtest("--mutate"), nil, "pod-add", "pod-del")
			if _, err := os.Stat("/run/roce-hwtest"); err == nil {
				t.Error("there are records left")
			}
			home(t)
		})
	}
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
			contains(t, strings.Join(told(r.Answers), "\n"), "ok devices rxe0: ", "ok pod-add rxe0/1: ")
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

// TestMLX5HWTestKilledInAFailoverRestoresTheBondInTheNextRun kills it when another slave is
// the active one.
func TestMLX5HWTestKilledInAFailoverRestoresTheBondInTheNextRun(t *testing.T) {
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
	for over := false; !over && active() == was; {
		select {
		case <-tick.C:
		case <-ended:
			over = true
		}
	}
	_ = cmd.Process.Kill() // it may have ended
	<-ended
	if active() == was {
		t.Fatalf("it was not killed in the failover:\n%s", &out)
	}
	cmd = exec.Command(filepath.Join(*programs, "roce-hwtest"), "--mutate", "--out", filepath.Join(t.TempDir(), "x"))
	lines := start(t, cmd)
	lines.Scan() // the first step runs: what was left is removed
	if now := active(); now != was {
		t.Errorf("the active slave was %s, and is %s", was, now)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() { // so that it can write
	}
	_ = cmd.Wait() // it was interrupted
	if left := slices.Concat(entries("/run/roce-hwtest"), entries("/run/roce-hwtest.bonds"), entries("/run/netns")); len(left) > 0 {
		t.Errorf("it has left %q", left)
	}
}
