// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
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

// TestSharedPodsOfAResetDeviceGetTheirIndexesBack makes the device of one of two rails
// again, behind the entries of a pod that is gone. So two pods sit where the kernel put them,
// one at the index of the other.
func TestSharedPodsOfAResetDeviceGetTheirIndexesBack(t *testing.T) {
	n := newNode(t, "shared")
	var pods []attachment
	was := map[string]int{}
	for range 3 {
		a := n.attach(promising(n.allRails(), "equal"), n.pod())
		a.addRails()
		pods = append(pods, a)
	}
	pods[0].mustDel()
	pods = pods[1:]
	for _, a := range pods {
		maps.Copy(was, a.indexes())
	}
	finally(t, "rdma link add rxe0 type rxe netdev r0")
	shell(t, "rdma link del rxe0; rdma link add rxe0 type rxe netdev r0")
	cnitest.Await(t, "the entries are there", func() bool {
		now := gids(t, "", "rxe0")
		return !slices.ContainsFunc(pods, func(a attachment) bool {
			return slices.ContainsFunc(slices.Collect(maps.Keys(a.indexes())), func(addr string) bool {
				return strings.HasPrefix(addr, "172.16.10.") && len(now.of(addr)) == 0
			})
		})
	})
	if out, err := n.tryRocectl("check"); err == nil {
		t.Fatalf("no index changed: the test proves nothing\n%s", out)
	}
	out, _ := n.tryRocectl("repair")
	contains(t, out, "rxe0/1 was made again, and its 2 attachments are not all in their GID indexes")
	if strings.Contains(out, "grep") {
		t.Errorf("repair calls a look lost:\n%s", out)
	}
	stop := n.pingpong(pods[0])
	if out, err := n.tryRocectl("repair", "--yes"); err == nil || !strings.Contains(out, "programs use it since: process") {
		t.Errorf("repair under a program: %v\n%s", err, out)
	}
	stop()
	contains(t, n.rocectl("repair", "--yes", "--container", pods[1].id()), "their addresses are set again", "job2 net1: restored", "job3 net1: restored")
	for _, a := range pods {
		a.mustCheck()
	}
	for _, table := range allGIDs(t, "") {
		for addr, at := range was {
			if now := table.of(addr); len(now) > 0 && !slices.Equal(now, []int{at}) {
				t.Errorf("%s is at %v, and was at %d", addr, now, at)
			}
		}
	}
	contains(t, n.rocectl("repair", "--yes"), "job2 net1: intact", "job3 net1: intact")
	for _, a := range pods {
		a.mustDel()
	}
	n.nothingLeft()
}

// pingpong has a program of a pod wait with a queue pair on rxe0.
func (n *node) pingpong(a attachment) (stop func()) {
	n.t.Helper()
	_, stop = background(n.t, "ip", "netns", "exec", a.pod.Name, "ibv_rc_pingpong", "-d", "rxe0", "-g", "0")
	cnitest.Await(n.t, "the program has a queue pair", func() bool {
		out, _ := try("rdma", "resource", "show", "qp")
		return strings.Contains(out, "comm ibv_rc_pingpong")
	})
	return stop
}
