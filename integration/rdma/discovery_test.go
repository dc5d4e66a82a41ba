// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// uses attaches a pod to a master and returns the RDMA device that the plugin
// chose, after it has found the pod's GID there and CHECK is content.
func uses(n *node, master any) string {
	n.t.Helper()
	p := n.pod()
	defer p.Remove(n.t)
	a := n.attach(n.rail(0).With("master", master), p)
	addrs := a.mustAdd()
	defer a.mustDel()
	a.mustCheck()
	for _, op := range a.operations() {
		if op.Kind == "gid" {
			at := places(n.t, gids(n.t, "", op.Args.Device.Name), addrs)
			if got := a.indexes(); got[addrs[0]] != at[addrs[0]] {
				n.t.Errorf("recorded indexes %v, want %v", got, at)
			}
			return op.Args.Device.Name
		}
	}
	n.t.Error("there is no operation that finds the GID")
	return ""
}

func TestDiscoveryOfANICByWhatItIsCalled(t *testing.T) {
	n := newNode(t, "shared")
	finally(t, "ip link property del dev r1 altname enp7s0f1np1; ip addr del 172.16.10.1/24 dev r1")
	shell(t, `ip link property add dev r1 altname enp7s0f1np1
		ip addr add 172.16.10.1/24 dev r1`)
	for _, master := range []any{
		"r1", "enp7s0f1np1", map[string]any{"rdma": "rxe1"}, map[string]any{"subnet": "172.16.10.0/24"},
	} {
		if got := uses(n, master); got != "rxe1" {
			t.Errorf("with master %v the pod uses %q, want rxe1", master, got)
		}
	}
}

func TestDiscoveryOfTheDeviceBelowAVLAN(t *testing.T) {
	n := newNode(t, "shared")
	finally(t, "ip link del r0.100")
	shell(t, `ip link add link r0 name r0.100 type vlan id 100
		ip link set r0.100 up`)
	if got := uses(n, "r0.100"); got != "rxe0" {
		t.Errorf("the pod uses %q, want rxe0", got)
	}
}

func TestDiscoveryOfANICWithoutDevice(t *testing.T) {
	n := newNode(t, "shared")
	finally(t, "rdma link add rxe1 type rxe netdev r1")
	run(t, "rdma", "link", "del", "rxe1")
	contains(t, n.attach(n.rail(1), n.pod()).mustFail(103), "r1", "there are: rxe0/1 on r0", `"mode": "off"`)
	n.nothingLeft()
}

// bond makes bond0 of r0 and r1, without RDMA devices, and restores the rails
// afterwards.
func bond(t *testing.T) {
	t.Helper()
	const restore = `for d in $(rdma dev | sed 's/^[0-9]*: \([^:]*\):.*/\1/'); do rdma link del $d; done
		ip link del bond0 2>/dev/null || true
		for i in 0 1; do
			ip link set r$i nomaster up
			rdma link add rxe$i type rxe netdev r$i
		done`
	finally(t, restore)
	shell(t, `modprobe bonding max_bonds=0
		rdma link del rxe0
		rdma link del rxe1
		ip link add bond0 type bond mode active-backup miimon 100
		for i in 0 1; do ip link set r$i down; ip link set r$i master bond0; done
		ip link set bond0 up
		ip link set bond0 type bond active_slave r0`)
}

// addDevices makes Soft-RoCE devices: "rxeb on bond0".
func addDevices(t *testing.T, devices ...string) {
	t.Helper()
	for _, d := range devices {
		name, link, _ := strings.Cut(d, " on ")
		run(t, "rdma", "link", "add", name, "type", "rxe", "netdev", link)
		cnitest.Await(t, d+" is active", func() bool { return strings.Contains(run(t, "rdma", "link"), name+"/1 state ACTIVE") })
	}
}

func TestDiscoveryOfTheDeviceOfABond(t *testing.T) {
	n := newNode(t, "shared")
	bond(t)
	finally(t, "ip link del bond0.100")
	shell(t, `ip link add link bond0 name bond0.100 type vlan id 100
		ip link set bond0.100 up`)

	addDevices(t, "rxe1 on r1")
	for _, master := range []string{"bond0", "bond0.100"} {
		if got := uses(n, master); got != "rxe1" {
			t.Errorf("with a device on one slave alone, a pod on %s uses %q, want rxe1", master, got)
		}
	}
	addDevices(t, "rxe0 on r0")
	contains(t, n.attach(n.rail(0).With("master", "bond0"), n.pod()).mustFail(103), "rxe0/1 on r0", "rxe1/1 on r1", "exactly one", "LAG")
	n.nothingLeft()
	addDevices(t, "rxeb on bond0")
	for _, master := range []string{"bond0", "bond0.100"} {
		if got := uses(n, master); got != "rxeb" {
			t.Errorf("with devices on the bond and on its slaves, a pod on %s uses %q, want rxeb", master, got)
		}
	}
}

// At a failover the kernel removes the GIDs of the bond and of what is on it, and adds them
// again, each at the lowest free index. The order is its own. So that all indexes of the pod
// must change, there are free ones below them, as many as the pod has.
func TestDiscoveryFailoverOfABondMovesGIDsAndCheckSaysSo(t *testing.T) {
	n := newNode(t, "shared")
	bond(t)
	addDevices(t, "rxeb on bond0")
	const below = 4 // two addresses, and the link-local one of an interface that comes late
	for i := range below {
		addr := fmt.Sprintf("10.99.99.%d", i+1)
		run(t, "ip", "addr", "add", addr+"/32", "dev", "bond0")
		cnitest.Await(t, "the GID of "+addr, func() bool { return len(gids(t, "", "rxeb").of(addr)) == 1 })
	}
	a := n.attach(dual(n.rail(0).With("master", "bond0"), 0), n.pod())
	addrs := a.mustAdd()
	a.mustCheck()
	was := a.indexes()
	for i := range below {
		addr := fmt.Sprintf("10.99.99.%d", i+1)
		run(t, "ip", "addr", "del", addr+"/32", "dev", "bond0")
		cnitest.Await(t, "no GID of "+addr, func() bool { return len(gids(t, "", "rxeb").of(addr)) == 0 })
	}
	run(t, "ip", "link", "set", "bond0", "type", "bond", "active_slave", "r1")
	var is table
	cnitest.Await(t, "all GIDs of the pod have another index", func() bool {
		is = gids(t, "", "rxeb")
		return !slices.ContainsFunc(addrs, func(addr string) bool {
			at := is.of(addr)
			return len(at) != 1 || at[0] == was[addr]
		})
	})
	found := a.check()
	for _, addr := range addrs {
		contains(t, found, addr, fmt.Sprintf("its index changed from %d to %d", was[addr], is.of(addr)[0]))
	}
	a.mustDel()
}
