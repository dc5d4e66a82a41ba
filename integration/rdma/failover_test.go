// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// long is how a transfer runs for 20 s, and waits 7 s for a lost packet.
var long = []string{"--size=65536", "--duration=20", "--qp-timeout=18", "--CPU-freq"}

// transferring starts a transfer of 20 s in the pod, as a client if it has the address of a
// server, and waits until its queue pair is connected. end waits for its end.
func (r rail) transferring(to ...string) (end func() (said string, err error)) {
	t := r.node.t
	t.Helper()
	args := append(slices.Concat(r.tests, long), to...)
	var out bytes.Buffer
	cmd := exec.Command("ip", r.command(args...)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, if all went well
	if len(to) == 0 {
		cnitest.Await(t, "the server listens", func() bool {
			got, _ := try("ip", r.command("ss", "-ltnH")...)
			return strings.Contains(got, ":18515")
		})
	}
	return func() (string, error) { err := cmd.Wait(); return out.String(), err }
}

// connected waits until n queue pairs of rxeb are connected, and a bit more.
func connected(t *testing.T, n int) {
	t.Helper()
	cnitest.Await(t, "the transfer has begun", func() bool {
		return strings.Count(run(t, "rdma", "resource", "show", "qp"), "comm ib_write_bw") == n
	})
	time.Sleep(3 * time.Second) // a transfer of this length is not yet over, and has sent something
}

// fails wants a transfer to have failed, and not because of its time.
func fails(t *testing.T, said string, err error, reasons ...string) {
	t.Helper()
	if err == nil || !slices.ContainsFunc(reasons, func(r string) bool { return strings.Contains(said, r) }) {
		t.Errorf("%v, want one of %q:\n%s", err, reasons, said)
	}
}

// TestLongSharedBondFailsOverDuringATransfer has both pods on one node: no packet is lost,
// because Soft-RoCE sends between them inside of the node.
func TestLongSharedBondFailsOverDuringATransfer(t *testing.T) {
	n := newNode(t, "shared")
	bond(t)
	addDevices(t, "rxeb on bond0")
	emulate(t, "bond0")
	var pods [2]rail
	for i := range pods {
		a := n.attach(n.rail(0).With("master", "bond0"), n.pod())
		pods[i] = n.joinOn("bond0", a, a.mustAdd()[0])
	}
	for _, failover := range []bool{false, true} {
		server := pods[0].transferring()
		client := pods[1].transferring(pods[0].addr)
		connected(t, 2)
		if failover {
			run(t, "ip", "link", "set", "bond0", "type", "bond", "active_slave", "r1")
		}
		said, err := client()
		served, serr := server()
		if failover {
			fails(t, said, err, "Completion with error")
			fails(t, served, serr, "Couldn't read remote address")
		} else if err != nil || serr != nil {
			t.Errorf("without a failover: %v, %v\n%s%s", err, serr, said, served)
		}
	}
	for i := range pods {
		pods[i].mustDel()
	}
}

// TestLongNodesSharedBondFailsOverDuringATransfer has bond0 of r0 and r2 on two nodes, and
// fails both over while a pod writes to one of the other node. It needs three rails, and
// is not part of make test-vm.
func TestLongNodesSharedBondFailsOverDuringATransfer(t *testing.T) {
	n := newNode(t, "shared")
	p := meet(t)
	finally(t, `rdma link del rxeb; ip link del bond0
		for i in 0 2; do ip link set r$i nomaster up; rdma link add rxe$i type rxe netdev r$i; done`)
	shell(t, `modprobe bonding max_bonds=0
		rdma link del rxe0
		rdma link del rxe2
		ip link add bond0 type bond mode active-backup miimon 100
		for i in 0 2; do ip link set r$i down; ip link set r$i master bond0; done
		ip link set bond0 up
		ip link set bond0 type bond active_slave r0`)
	addDevices(t, "rxeb on bond0")
	emulate(t, "bond0")
	a := n.attach(n.ownRail(p.self).With("master", "bond0"), n.pod())
	addr := a.mustAdd()[0]
	r := n.joinOn("bond0", a, addr)
	p.swap("ready")

	transfer := func(during func()) (said string, err error) {
		var end func() (string, error)
		if p.self == "1" {
			end = r.transferring()
			p.swap(r.addr)
		} else {
			end = r.transferring(p.swap("calling"))
		}
		during()
		said, err = end()
		p.swap("done")
		return said, err
	}
	sends := func() {
		t.Helper()
		if said, err := transfer(func() { connected(t, 1) }); err != nil {
			t.Errorf("%v\n%s", err, said)
		}
	}
	sends()
	said, err := transfer(func() {
		connected(t, 1)
		p.swap("now")
		run(t, "ip", "link", "set", "bond0", "type", "bond", "active_slave", "r2")
	})
	fails(t, said, err, "Completion with error", "Couldn't read remote address")

	// The old index is that of no entry.
	was := r.tests
	said, err = transfer(func() {})
	fails(t, said, err, "Failed to modify QP")

	r.tests = n.tests(a)
	if slices.Equal(r.tests, was) {
		t.Errorf("rocectl env says %q, as before", was)
	}
	sends()
	a.mustDel()
	p.swap("over")
}
