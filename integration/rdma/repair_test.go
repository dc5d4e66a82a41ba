// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
	r := n.reset()
	out, _ := n.tryRocectl("repair")
	contains(t, out, device(0)+"/1 was made again, and its 2 attachments are not all in their GID indexes")
	if strings.Contains(out, "grep") {
		t.Errorf("repair calls a look lost:\n%s", out)
	}
	stop := n.pingpong(r.pods[0])
	if out, err := n.tryRocectl("repair", "--yes"); err == nil || !strings.Contains(out, "programs use it since: process") {
		t.Errorf("repair under a program: %v\n%s", err, out)
	}
	stop()
	r.refused(r.pods[0])
	r.repaired()
}

// refused repairs all pods while another host has the address of one, which keeps it.
func (r afterReset) refused(a attachment) {
	t := r.n.t
	t.Helper()
	addr := strings.Fields(run(t, "ip", "-n", a.pod.Name, "-4", "-br", "addr", "show", "dev", "net1"))[2]
	other := r.n.pod().Name
	shell(t, fmt.Sprintf("ip link add other link r0 type macvlan mode bridge; ip link set other netns %s; ip -n %[1]s addr add %s dev other; ip -n %[1]s link set other up", other, addr))
	out, err := r.n.tryRocectl("repair", "--yes")
	if err == nil {
		t.Error("the repair of an address of another host succeeds")
	}
	contains(t, out, "its repair failed, and its addresses are set again")
	contains(t, run(t, "ip", "-n", a.pod.Name, "-4", "-br", "addr", "show", "dev", "net1"), addr)
	run(t, "ip", "-n", other, "link", "del", "other")
}

// TestPromiseEqualIsRepairedAfterAReset has the node have fillers on the NIC that is reset.
// The kernel gives them their entries after those of the pods, which came first.
func TestPromiseEqualIsRepairedAfterAReset(t *testing.T) {
	n := newNode(t, "shared")
	histories(t, func(rail int) int { return 3 * rail })
	r := n.reset()
	r.repaired()
	a := n.attach(promising(n.allRails(), "equal"), n.pod())
	addrs := a.addRails()
	a.aligned(allGIDs(t, a.pod.Name), addrs)
	a.mustDel()
	n.nothingLeft()
}

// afterReset are pods on a device that was made again, and the indexes of their addresses
// before that.
type afterReset struct {
	n    *node
	pods []attachment
	was  map[string]int
}

// reset makes three pods with equal indexes, deletes the first, and makes the device of the
// first rail again, or all devices of fake_roce, with a firmware that takes its time. It
// fails the test if no index has changed.
func (n *node) reset() afterReset {
	t := n.t
	t.Helper()
	var pods []attachment
	for range 3 {
		pods = append(pods, n.attach(promising(n.allRails(), "equal"), n.pod()))
	}
	for _, a := range pods {
		a.addRails()
	}
	pods[0].mustDel()
	out := afterReset{n, pods[1:], map[string]int{}}
	for _, a := range out.pods {
		maps.Copy(out.was, a.indexes())
	}
	if fakes() {
		reload(t, run(t, "cat", "/sys/module/fake_roce/parameters/devices"), "gid_late_us=2000")
	} else {
		finally(t, "rdma link add rxe0 type rxe netdev r0")
		shell(t, "rdma link del rxe0; rdma link add rxe0 type rxe netdev r0")
	}
	cnitest.Await(t, "the entries are there", func() bool {
		missing := maps.Clone(out.was)
		for _, table := range allGIDs(t, "") {
			maps.DeleteFunc(missing, func(addr string, _ int) bool { return len(table.of(addr)) == width() })
		}
		return len(missing) == 0
	})
	if said, err := n.tryRocectl("check"); err == nil {
		t.Fatalf("no index changed: the test proves nothing\n%s", said)
	}
	return out
}

// repaired repairs one pod, after which all have their indexes, and deletes them.
func (r afterReset) repaired() {
	t := r.n.t
	t.Helper()
	contains(t, r.n.rocectl("repair", "--yes", "--container", r.pods[1].id()), "repair sets their addresses again", "job2 net1: restored", "job3 net1: restored")
	now := allGIDs(t, "")
	for _, a := range r.pods {
		a.mustCheck()
		for addr, at := range a.indexes() {
			if at != r.was[addr] {
				t.Errorf("%s is recorded at %d, and was at %d", addr, at, r.was[addr])
			}
		}
	}
	for addr, at := range r.was {
		if !slices.ContainsFunc(now, func(t table) bool { return slices.Contains(t.of(addr), at) }) {
			t.Errorf("%s is not at %d", addr, at)
		}
	}
	contains(t, r.n.rocectl("repair", "--yes"), "job2 net1: intact", "job3 net1: intact")
	for _, a := range r.pods {
		a.mustDel()
	}
	r.n.nothingLeft()
}

// TestSharedNICThatIsUnboundAndBoundIsRepaired takes the NIC from its driver and gives it
// back. The pods lose the interface on it, and the node its fillers there.
func TestSharedNICThatIsUnboundAndBoundIsRepaired(t *testing.T) {
	n := newNode(t, "shared")
	histories(t, func(rail int) int { return 3 * rail })
	a := n.attach(promising(n.allRails(), "equal"), n.pod())
	a.addRails()
	was := a.indexes()
	bus := filepath.Base(run(t, "readlink", "-f", "/sys/class/net/r0/device"))
	mac := strings.TrimSpace(run(t, "cat", "/sys/class/net/r0/address"))
	shell(t, "echo "+bus+" >/sys/bus/virtio/drivers/virtio_net/unbind")
	contains(t, a.check(), "net1")
	shell(t, fmt.Sprintf(`echo %s >/sys/bus/virtio/drivers/virtio_net/bind
		for l in /sys/class/net/eth* /sys/class/net/en*; do
			[ ! -e $l ] || [ "$(cat $l/address)" != %s ] || ip link set ${l##*/} name r0
		done
		ip link set r0 up
		rdma link add rxe0 type rxe netdev r0`, bus, mac))
	cnitest.Await(t, "rxe0 is active", func() bool { return strings.Contains(run(t, "rdma", "link"), "rxe0/1 state ACTIVE") })
	contains(t, n.rocectl("repair", "--yes"), "job1 net1: restored")
	a.mustCheck()
	if diff := cmp.Diff(was, a.indexes()); diff != "" {
		t.Errorf("(-before +after the repair)\n%s", diff)
	}
	next := n.attach(promising(n.allRails(), "equal"), n.pod())
	addrs := next.addRails()
	next.aligned(allGIDs(t, next.pod.Name), addrs)
	next.mustDel()
	a.mustDel()
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
