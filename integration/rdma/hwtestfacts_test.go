// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/hwtest"
)

// answers returns what a step has found, a line for each answer.
func answers(r hwtest.Results, step string) string {
	return strings.Join(slices.DeleteFunc(told(r.Answers), func(l string) bool { return !strings.Contains(l, " "+step+" ") }), "\n")
}

// TestHWTestSharedTellsFacts has the steps with events, the table of programs and raw queue
// pairs, and makes the devices again while pods are there.
func TestHWTestSharedTellsFacts(t *testing.T) {
	n := newNode(t, "shared")
	r := n.hwtest("--mutate", "--disrupt", "reload")
	var lies []string
	if hides() {
		lies = slices.Repeat([]string{"pod-views rxe0/1"}, 2)
		lies = append(lies, slices.Repeat([]string{"pod-views rxe1/1"}, 2)...)
	}
	wants(t, r, lies, "gid-events", "gid-query", "gid-time", "raw-qp", "reload", "pod-del")
	contains(t, answers(r, "gid-events"),
		"ADD of a pod: 3 entries came or went, with 3 events GID_CHANGE", // IPv4, IPv6 and link-local
		"8 addresses set one by one, as fillers are: 8 entries came or went, with 8 events GID_CHANGE",
		"their end: 8 entries came or went, with 8 events GID_CHANGE",
		"DEL of the first pod: 3 entries came or went, with ")
	contains(t, answers(r, "raw-qp"), "not offered by the driver")
	contains(t, answers(r, "gid-query"), "with the addresses of ADD: ", "with one more address: ", "after its end: ")
	contains(t, answers(r, "reload"), "pod 1 of 2: indexes were ", "pod 2 of 2: indexes were ")
	n.nothingLeft()
}

// TestMLX5HWTestTimesTheFirmware has firmware that takes its time. An address has two entries.
func TestMLX5HWTestTimesTheFirmware(t *testing.T) {
	n := newMLX5Node(t, "shared")
	firmware(t, "gid_late_ms", "5")
	firmware(t, "del_late_ms", "20")
	r := n.hwtest("--mutate")
	wants(t, r, mlx5Problems(), "gid-events", "gid-query", "gid-time")
	found := regexp.MustCompile(`comes after (\d+) µs \(median\).*gone after (\d+) µs \(median\)`).FindStringSubmatch(answers(r, "gid-time"))
	if found == nil {
		t.Fatal(answers(r, "gid-time"))
	}
	added, _ := strconv.Atoi(found[1])
	removed, _ := strconv.Atoi(found[2])
	if added < 2*5000 || removed < 2*20000 || added > removed {
		t.Errorf("the firmware needs 10000 µs and 40000 µs: %s", found[0])
	}
	contains(t, answers(r, "gid-events"), "8 addresses set one by one, as fillers are: 16 entries came or went, with 16 events GID_CHANGE")
	contains(t, answers(r, "raw-qp"), "cannot tell raw-qp mlx5_0/1: ")
}

// TestMLX5HWTestFindsAFalseEntryInSysfs has an entry in sysfs that is not that of the table.
func TestMLX5HWTestFindsAFalseEntryInSysfs(t *testing.T) {
	n := newMLX5Node(t, "shared")
	const file = "/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/1"
	lie := filepath.Join(t.TempDir(), "type")
	finally(t, "umount "+file)
	shell(t, "echo 'IB/RoCE v1' >"+lie+"; mount --bind "+lie+" $(readlink -f "+file+")")
	r := n.hwtest("--mutate")
	contains(t, answers(r, "gid-query"), "problem gid-query mlx5_0/1: with the addresses of ADD: in one call: ", "ok gid-query mlx5_1/1: ")
}

// TestHWTestSharedKilledInAReload kills it when the device is gone.
func TestHWTestSharedKilledInAReload(t *testing.T) {
	newNode(t, "shared")
	cmd := exec.Command(filepath.Join(*programs, "roce-hwtest"), "--mutate", "--disrupt", "reload", "--out", filepath.Join(t.TempDir(), "x"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed
	}()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	there := func() bool { return slices.Contains(entries("/sys/class/infiniband"), "rxe0") }
	for there() {
		select {
		case <-tick.C:
		case <-ended:
			t.Fatal("it ended without a reload")
		}
	}
	_ = cmd.Process.Kill() // it may have ended
	<-ended
	cnitest.Await(t, "the device is there again", there)
	nothingOfHWTest(t)
	home(t)
}
