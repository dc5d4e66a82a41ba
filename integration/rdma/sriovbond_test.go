// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// TestLongSRIOVVirtualFunctionsOfABondedNIC changes sriov_numvfs of a slave of a bond, with
// a pod on the bond: first of the active one. It is not part of make test-vm.
func TestLongSRIOVVirtualFunctionsOfABondedNIC(t *testing.T) {
	n := newSRIOVNode(t, "shared")
	lag(t)
	finally(t, `cd /sys/class/net/r0/device; echo 0 >sriov_numvfs; echo 2 >sriov_numvfs; sleep 3
		for i in 0 1; do ip link set $(ls virtfn$i/net) name v$i; ip link set v$i up; done`)
	a := n.attach(dual(n.rail(0).With("master", "bond0"), 0), n.pod())
	a.mustAdd()
	failures := func() (count int) {
		_, r0, _ := strings.Cut(run(t, "cat", "/proc/net/bonding/bond0"), "Slave Interface: r0")
		_, text, _ := strings.Cut(r0, "Link Failure Count: ")
		if _, err := fmt.Sscan(text, &count); err != nil {
			t.Fatal(err)
		}
		return count
	}
	for i, vfs := range []int{0, 2} {
		was := failures()
		start := time.Now()
		shell(t, fmt.Sprintf("echo %d >/sys/class/net/r0/device/sriov_numvfs", vfs))
		took := time.Since(start)
		cnitest.Await(t, "the link of r0 was down", func() bool { return failures() == was+1 })
		cnitest.Await(t, "r0 is up again", func() bool { return run(t, "cat", "/sys/class/net/r0/operstate") == "up" })
		if got := run(t, "cat", "/sys/class/net/bond0/bonding/active_slave"); got != "r1" {
			t.Errorf("the active slave is %s, want r1: at first it failed over, then r0 was the other one", got)
		}
		cnitest.Await(t, "CHECK finds the pod as it was", func() bool { return a.check() == "" })
		links := strings.Fields(run(t, "ls", "/sys/class/net/r0/device"))
		made := 0
		for _, l := range links {
			if strings.HasPrefix(l, "virtfn") {
				made++
			}
		}
		if made != vfs {
			t.Errorf("r0 has %d virtual functions, want %d", made, vfs)
		}
		t.Logf("change %d, to %d virtual functions: %s", i+1, vfs, took)
	}
	a.mustDel()
	n.nothingLeft()
}
