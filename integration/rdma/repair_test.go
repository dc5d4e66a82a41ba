// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"strings"
	"testing"
)

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

// TestSharedMTUOfAVLANComesBack has the MTU of the NIC go down and up. The kernel lowers that
// of the VLAN of roce and of its children, and raises neither.
func TestSharedMTUOfAVLANComesBack(t *testing.T) {
	n := newNode(t, "shared")
	n.allowVLANs()
	a := n.attach(vlan(n.rail(0), 100), n.pod())
	a.mustAdd()
	finally(t, "ip link set r0 mtu 9000")
	shell(t, "ip link set r0 mtu 1500; ip link set r0 mtu 9000")
	a.mustCheck()
	contains(t, n.rocectl("check"), "want MTU 9000, got 1500")
	contains(t, n.rocectl("repair", "--yes"), "ip link set dev r0.100 mtu 9000 up\nip -n "+a.pod.Name+" link set dev net1 mtu 9000 up")
	for _, link := range []string{"ip link show r0.100", "ip -n " + a.pod.Name + " link show net1"} {
		contains(t, shell(t, link), " mtu 9000 ")
	}
	if out := n.rocectl("repair"); !strings.Contains(out, "intact") {
		t.Errorf("a second repair: %s", out)
	}
	a.mustDel()
	n.nothingLeft()
}
