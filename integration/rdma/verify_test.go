// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/tool/verify"
)

// TestNodesSharedVerifyTestsByRDMA: rocectl verify --rdma between pods of two nodes, and
// what it says where a program is not installed.
func TestNodesSharedVerifyTestsByRDMA(t *testing.T) {
	verifyByRDMA(t, func(rocectl string, args []string) {
		said, _ := try(rocectl, args...) // its status is that of the container, which --netns cannot tell
		contains(t, said, "rail 0 of gpu-01 to gpu-02: rping connects", "rail 0 of gpu-01 to gpu-02: ib_write_bw transfers ", " 0 problems,")
		t.Log(said)
		said, _ = try("env", append([]string{"PATH=/nowhere", rocectl}, args...)...)
		contains(t, said, "needs: rping of the package rdmacm-utils in gpu-01", "needs: ib_write_bw of the package perftest in gpu-01", " 0 problems,")
	})
}

// TestLongNodesSharedVerifyFindsDroppedRDMA: the node of the client drops UDP 4791. All else
// passes, so verify blames RDMA on this rail, and only that.
func TestLongNodesSharedVerifyFindsDroppedRDMA(t *testing.T) {
	verifyByRDMA(t, func(rocectl string, args []string) {
		shell(t, `tc filter del dev r0 ingress pref 1
			tc filter add dev r0 ingress pref 1 protocol ip flower ip_proto udp dst_port 4791 action drop`)
		said, _ := try(rocectl, args...)
		t.Log(said)
		contains(t, said, "rail 0 of gpu-01 to gpu-02: 172.16.10.", "packets of 9000 bytes pass", " 2 problems,",
			"rail 0 of gpu-01 to gpu-02: rping -c ", "rail 0 of gpu-01 to gpu-02: ib_write_bw -d rxe0 ", "# 2 faults on 2 of ", "rocectl doctor  # on both nodes")
	})
}

// verifyByRDMA has a pod on each of two nodes. One of them serves, and test runs in the other
// one, with the arguments to test both.
func verifyByRDMA(t *testing.T, test func(rocectl string, args []string)) {
	t.Helper()
	n := newNode(t, "shared")
	p := meet(t)
	emulate(t, "r0")
	r := n.joined(n.ownRail(p.self))
	theirs := p.swap(r.addr)
	rocectl := filepath.Join(*programs, "rocectl")
	t.Setenv(verify.TokenVariable, "the token of a test")
	if p.self == "1" {
		cmd := exec.Command(rocectl, "verify", "serve", "--netns", r.pod.Name, "--name", "gpu-02", "--listen", r.addr+":9483")
		if lines := start(t, cmd); !lines.Scan() {
			t.Fatal("rocectl verify serve says nothing")
		}
		t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() }) // with the status of a killed program
		p.swap("listens")
		p.swap("tested")
	} else {
		p.swap("waits")
		test(rocectl, []string{"verify", "--rdma", "--netns", r.pod.Name, "--name", "gpu-01", "--verbose", theirs})
		p.swap("tested")
	}
	r.mustDel()
	p.swap("over")
}
