// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// TestLongSharedDoctorRepairs has faults of the machine, and runs the commands that rocectl
// doctor prints for them.
func TestLongSharedDoctorRepairs(t *testing.T) {
	n := newNode(t, "shared")
	const thresholds = "net.ipv6.neigh.default.gc_thresh3"
	finally(t, `modprobe -a rdma_ucm ib_umad; rm -f /etc/modprobe.d/zz-roce.conf
rdma system set netns shared; sysctl -qw `+thresholds+"="+run(t, "sysctl", "-n", thresholds))
	run(t, "mkdir", "-p", "/etc/modules-load.d") // a node with systemd has it
	run(t, "modprobe", "-a", "rdma_ucm", "ib_umad")
	for _, c := range []struct{ fault, command, check, says string }{
		{"a module is absent", "modprobe -r rdma_ucm", "rdma-modules", "not loaded: rdma_ucm"},
		{"the kernel makes no file", "modprobe -r ib_umad", "rdma-files", "without umad"},
		{"exclusive until the next boot", "rdma system set netns exclusive", "rdma-netns-mode", "exclusive now, and shared after the next boot"},
		{"shared until the next boot", "rdma system set netns shared", "rdma-netns-mode", "shared now, and exclusive after the next boot"},
		{"the neighbour table is nearly full", "sysctl -qw " + thresholds + "=1", "neighbour-table", "of 1 entries used"},
	} {
		if got := n.problems(c.check); len(got) > 0 {
			t.Fatalf("before %s: %+v", c.fault, got)
		}
		shell(t, c.command)
		found := n.problems(c.check)
		if len(found) == 0 || !strings.Contains(found[0].Found, c.says) {
			t.Fatalf("%s: %+v", c.fault, found)
		}
		for _, a := range found {
			shell(t, "udevadm() { true; } # the machine has no udev: the kernel makes the files\n"+a.Fix)
		}
		if got := n.problems(c.check); len(got) > 0 {
			t.Errorf("%s: after %q: %+v", c.fault, found[0].Fix, got)
		}
	}
}

// problems returns what a check of rocectl doctor says, if it is not ok.
func (n *node) problems(check string) []report.Answer {
	n.t.Helper()
	said, _ := n.tryRocectl("doctor", check, "-o", "json") // its status says which answers there are
	var answers, out []report.Answer
	if err := json.Unmarshal([]byte(said), &answers); err != nil {
		n.t.Fatalf("%v: %s", err, said)
	}
	for _, a := range answers {
		if a.Verdict != report.OK {
			out = append(out, a)
		}
	}
	return out
}
