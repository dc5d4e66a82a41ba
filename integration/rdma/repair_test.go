// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import "testing"

// TestSharedRenamedDeviceIsNoDamage renames the device of a living pod, as udev does when
// rdma-core is installed.
func TestSharedRenamedDeviceIsNoDamage(t *testing.T) {
	n := newNode(t, "shared")
	a := n.attach(promising(n.allRails(), "equal"), n.pod())
	addr := a.addRails()[0][0]
	was := a.indexes()[addr]
	finally(t, "rdma dev set rocep1s0f0 name rxe0")
	run(t, "rdma", "dev", "set", "rxe0", "name", "rocep1s0f0")
	a.mustCheck()
	contains(t, n.rocectl("check"), "want name rxe0, got rocep1s0f0")
	contains(t, n.rocectl("env", "--netns", a.pod.Name), "=rocep1s0f0:1,rxe1:1")
	run(t, "ip", "-n", a.pod.Name, "addr", "del", addr+"/24", "dev", "net1")
	contains(t, a.check(), addr)
	contains(t, n.rocectl("repair", "--yes"), "restored", addr)
	a.mustCheck()
	if at := places(t, gids(t, "", "rocep1s0f0"), []string{addr})[addr]; at != was {
		t.Errorf("%s is at %d, and was at %d", addr, at, was)
	}
	a.mustDel()
	n.nothingLeft()
}
