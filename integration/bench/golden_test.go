// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

var update = flag.Bool("update", false, "rewrite the goldens in testdata")

// TestCallsAskTheKernelNoMoreThanTheirGoldens compares what an ADD and a DEL
// ask the kernel for, in its order: netlink requests, sockets, frames, files,
// programs. Times wobble with the machine and its load; these do not.
func TestCallsAskTheKernelNoMoreThanTheirGoldens(t *testing.T) {
	needStrace(t)
	w := testWorld(t)
	patient := object{"gateway": object{"timeout": "5s"}} // one question, however slow the machine
	for _, c := range []struct {
		name  string
		of    func(name string, dual bool, probe any) (*chain, error)
		dual  bool
		probe any
	}{
		{"ipv4-unchecked", w.roce, false, object{"conflict": "off", "gateway": "off"}},
		{"ipv4", w.roce, false, patient},
		{"dual-stack", w.roce, true, patient},
		{"host-link", w.roceLinked, true, patient},
		{"eight-rails", w.roceRails, false, patient},
		{"eight-rails-dual-stack", w.roceRails, true, patient},
	} {
		ours, err := c.of(c.name, c.dual, c.probe)
		if err != nil {
			t.Fatal(err)
		}
		pods, err := w.pods(2)
		if err != nil {
			t.Fatal(err)
		}
		// The first call makes folders and the database.
		if _, _, err := (player{add: ours.add, del: ours.del}).play(t.Context(), pods[0]); err != nil {
			t.Fatal(err)
		}
		w.compare(t, c.name+"-add", ours.add, pods[1])
		w.compare(t, c.name+"-del", ours.del, pods[1])
	}
}

// compare traces a call and compares it with its golden.
func (w *world) compare(t *testing.T, name string, call func(context.Context, string) (time.Duration, error), pod string) {
	t.Helper()
	a := account{socket: map[string]string{}, names: strings.NewReplacer(
		filepath.Join(w.dir, "roce"), "STATE", "sandbox-"+pod, "ID", netnsPath(pod), "POD", hostEnd(pod), "VETH", w.ours+"/", "")}
	for _, line := range w.trace(t, traced, call, pod) {
		if err := a.add(line); err != nil {
			t.Fatal(err)
		}
	}
	got := fmt.Sprintf("# %d netlink requests in %d messages\n%s\n", a.asked, a.trips, strings.Join(a.lines, "\n"))
	golden := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is not as it was; if that is meant, go test ./integration/bench -update, and say so in docs/performance.md (-want +got)\n%s", golden, diff)
	}
}

// trace returns the system calls of a call.
func (w *world) trace(t *testing.T, calls string, call func(context.Context, string) (time.Duration, error), pod string) []string {
	t.Helper()
	tr := &tracer{dir: t.TempDir(), calls: calls}
	w.launcher.run = tr.run
	_, err := call(t.Context(), pod)
	w.launcher.run = nil
	if err != nil {
		t.Fatal(err)
	}
	return tr.lines
}

// testWorld returns a world with roce as it is now. The thread of the test is
// on its node, and ends with the test.
func testWorld(t *testing.T) *world {
	t.Helper()
	bin := t.TempDir()
	build := exec.Command("go", "build", "-buildvcs=false", "-o", bin+"/", "./cmd/roce")
	build.Dir, build.Env = filepath.Join("..", ".."), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build roce: %v\n%s", err, out)
	}
	runtime.LockOSThread()
	w, err := newWorld(options{ours: bin})
	t.Cleanup(w.remove)
	switch {
	case err == nil:
	case os.Getenv("REQUIRE_NETNS") == "1":
		t.Fatalf("REQUIRE_NETNS=1, but there is no world: %v", err)
	default:
		t.Skipf("no network namespaces here: %v", err)
	}
	return w
}

// needStrace skips the test where no program can be traced. As root there is
// no excuse for a missing strace: integration/deps.sh installs it.
func needStrace(t *testing.T) {
	t.Helper()
	out, err := exec.Command("strace", "-X", "raw", "-o", os.DevNull, "true").CombinedOutput()
	switch {
	case err == nil:
	case errors.Is(err, exec.ErrNotFound) && os.Getenv("REQUIRE_NETNS") == "1":
		t.Fatal("no strace: run integration/deps.sh")
	default:
		t.Skipf("strace cannot trace here: %v: %s", err, out)
	}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		t.Skip("the kernel has no IPv6, so the goldens do not fit")
	}
}

// hostEnd returns the name of the node's end of a link to a pod.
func hostEnd(pod string) string {
	for v := range plan.All[plan.Veth](plan.Unrecorded(conf.Attachment{ContainerID: conf.ContainerID("sandbox-" + pod), IfName: ifName})) {
		return string(v.Name)
	}
	return ""
}
