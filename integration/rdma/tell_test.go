// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// inside returns what rocectl env prints in a pod, to a user that is not root, may
// lock all memory, and has no state folder.
func inside(t *testing.T, p *pod, args ...string) (string, error) {
	t.Helper()
	finally(t, "rm -f /run/rocectl-tell")
	shell(t, "install -m 755 "+filepath.Join(*programs, "rocectl")+" /run/rocectl-tell")
	return try("ip", append([]string{
		"netns", "exec", p.Name, "prlimit", "--memlock=unlimited", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
		"/run/rocectl-tell", "env", "--state-dir=/",
	}, args...)...)
}

// twoRails attaches a pod to both rails and returns its addresses.
func (n *node) twoRails() (p *pod, addrs []string, remove func()) {
	n.t.Helper()
	p = n.pod()
	a, b := n.attach(n.rail(0), p), n.attach(n.rail(1), p).as("net2")
	addrs = append(a.mustAdd(), b.mustAdd()...)
	return p, addrs, func() {
		b.mustDel()
		a.mustDel()
		p.Remove(n.t)
	}
}

// indexes returns where the kernel has the GIDs of a pod on both rails.
func indexes(t *testing.T, addrs []string) (r0, r1 int) {
	t.Helper()
	return places(t, gids(t, "", "rxe0"), addrs[:1])[addrs[0]], places(t, gids(t, "", "rxe1"), addrs[1:])[addrs[1]]
}

func TestTellEachPodItsOwnIndex(t *testing.T) {
	n := newNode(t, "shared")
	seen := map[int]bool{}
	for range 2 {
		p, addrs, remove := n.twoRails()
		defer remove()
		at, other := indexes(t, addrs)
		if at != other || seen[at] {
			t.Fatalf("the entries of %q are at %d and %d, want equal ones that no other pod has", addrs, at, other)
		}
		seen[at] = true
		want := fmt.Sprintf(`# net1 %s: rxe0 port 1, GID index %[2]d
# net2 %[3]s: rxe1 port 1, GID index %[2]d
# why: UCX_UD_VERBS_ETH_DGID_CHECK=n, because UCX of 2024 and older drops all UD packets from NICs that are not NVIDIA's, and ends with Endpoint timeout
# why: NCCL_CROSS_NIC=0 and MC_ENABLE_DEST_DEVICE_AFFINITY=1, because the pod has no route from net1 to net2: a rail reaches only the same rail of other pods
export NCCL_IB_HCA='=rxe0:1,rxe1:1'
export NCCL_IB_GID_INDEX=%[2]d
export NVSHMEM_HCA_LIST=rxe0:1,rxe1:1
export NVSHMEM_IB_GID_INDEX=%[2]d
export UCX_NET_DEVICES=rxe0:1,rxe1:1
export UCX_UD_VERBS_ETH_DGID_CHECK=n
export UCX_IB_GID_INDEX=%[2]d
export MC_GID_INDEX=%[2]d
export MC_TE_FILTERS=rxe0,rxe1
export MC_MS_FILTERS=rxe0,rxe1
export MOONCAKE_DEVICE=rxe0,rxe1
export NCCL_CROSS_NIC=0
export MC_ENABLE_DEST_DEVICE_AFFINITY=1
# net1: ib_write_bw -d rxe0 -i 1 -x %[2]d
# net2: ib_write_bw -d rxe1 -i 1 -x %[2]d`, addrs[0], at, addrs[1])
		got, err := inside(t, p)
		if err != nil || got != want {
			t.Errorf("rocectl env in %s: %v\n%s\nwant\n%s", p.Name, err, got, want)
		}
		if got := n.rocectl("env", "--netns", p.Name); got != want {
			t.Errorf("rocectl env --netns: %s\nwant\n%s", got, want)
		}
		if got := n.rocectl("env", "--container", "sandbox-"+p.Name); got != want {
			t.Errorf("rocectl env --container: %s\nwant\n%s", got, want)
		}
		contains(t, n.rocectl("env", "--netns", p.Path, "--ifname", "net2"), "NCCL_IB_HCA='=rxe1:1'", fmt.Sprint("NCCL_IB_GID_INDEX=", at))
		shell(t, fmt.Sprintf(`eval "$(ip netns exec %s %s env)"
			test "$NCCL_IB_HCA $NCCL_IB_GID_INDEX" = "=rxe0:1,rxe1:1 %d"`, p.Name, filepath.Join(*programs, "rocectl"), at))

		table := n.rocectl("gids")
		row := strings.Join([]string{"rxe1", "1", fmt.Sprint(at), gidOf(addrs[1]), addrs[1], "v2", "train/" + p.Name, "net2"}, " ")
		if !strings.Contains(strings.Join(strings.Fields(table), " "), row) {
			t.Errorf("rocectl gids lacks %s:\n%s", row, table)
		}
		contains(t, table, "host", fmt.Sprintf("# rxe0/1 on r0: %d of 1024 entries used, %d free", at+1, 1024-at-1))
	}
}

func TestTellWhatNCCLFindsByItself(t *testing.T) {
	n := newNode(t, "shared")
	finally(t, "ip addr del 10.0.0.1/24 dev r0")
	run(t, "ip", "addr", "add", "10.0.0.1/24", "dev", "r0")
	p, addrs, remove := n.twoRails()
	r0, r1 := indexes(t, addrs)
	if r0 == r1 {
		t.Fatalf("both indexes are %d: the address of the host changed nothing", r0)
	}
	got, err := inside(t, p)
	if err != nil {
		t.Error(err)
	}
	contains(t, got, fmt.Sprintf("# why: no NCCL_IB_GID_INDEX: the indexes differ (net1 %d, net2 %d)", r0, r1),
		"export NCCL_IB_GID_INDEX='-1'\nexport NCCL_IB_ROCE_VERSION_NUM=2\nexport NCCL_IB_ADDR_FAMILY=AF_INET\nexport NCCL_IB_ADDR_RANGE=172.16.10.0/23\n",
		"# why: no UCX_IB_GID_INDEX: ", "would take 1 on net1")

	// The first pod's entries are those that NCCL would find for the second.
	q, addrs, removeSecond := n.twoRails()
	r0, r1 = indexes(t, addrs)
	got, err = inside(t, q)
	if err == nil || strings.Contains(got, "ADDR_RANGE=172.16.10.0/23\n") || strings.Contains(got, "export NCCL_IB_GID_INDEX") {
		t.Errorf("rocectl env: %v\n%s", err, got)
	}
	contains(t, got, "rocectl[108]", fmt.Sprintf("it would take 2 instead of %d on net1, 1 instead of %d on net2", r0, r1), "--ifname")
	contains(t, n.rocectl("env", "--netns", q.Name, "--ifname", "net1"), fmt.Sprint("export NCCL_IB_GID_INDEX=", r0))
	removeSecond()
	remove()
}

func TestTellWhoHasAnAddressTwice(t *testing.T) {
	n := newNode(t, "shared")
	a := n.attach(n.rail(0), n.pod())
	addr := a.mustAdd()[0]
	p := n.pod()
	shell(t, fmt.Sprintf("ip link add link r0 name net9 netns %s type macvlan mode private; ip -n %[1]s link set net9 up; ip -n %[1]s addr add %s/24 dev net9", p.Name, addr))
	cnitest.Await(t, "the second entry is there", func() bool { return len(gids(t, "", "rxe0")[gidOf(addr)]) == 2 })
	at := gids(t, "", "rxe0")[gidOf(addr)]
	slices.Sort(at)
	contains(t, n.rocectl("gids"), fmt.Sprintf("# rxe0/1: %s appears 2 times, at %d and %d", addr, at[0], at[1]))
	contains(t, n.rocectl("env", "--netns", a.pod.Name), "another interface on this node has the address too")

	var tables []struct {
		Device  string
		Twice   map[string][]int
		Entries []struct {
			Netdev string
			Owners []struct{ ContainerID, Netns, Interface string }
		}
	}
	if err := json.Unmarshal([]byte(n.rocectl("gids", "-o", "json")), &tables); err != nil {
		t.Fatal(err)
	}
	if len(tables) != 2 || len(tables[0].Twice[addr]) != 2 {
		t.Fatalf("rocectl gids -o json: %+v", tables)
	}
	for _, i := range at {
		e := tables[0].Entries[i]
		recorded := len(e.Owners) == 1 && e.Owners[0].ContainerID != ""
		other := len(e.Owners) == 1 && e.Owners[0].Netns == "/run/netns/"+p.Name
		if ours := e.Netdev == "net1"; recorded != ours || other == ours {
			t.Errorf("place %d, of %s, has the owners %+v", i, e.Netdev, e.Owners)
		}
	}

	// The other one comes first in the table: the pod is told its own place.
	run(t, "ip", "-n", a.pod.Name, "addr", "del", addr+"/24", "dev", "net1")
	cnitest.Await(t, "the pod's entry is gone", func() bool { return len(gids(t, "", "rxe0")[gidOf(addr)]) == 1 })
	takeIndex(t, "rxe0", at[0], func(other string) { run(t, "ip", "-n", p.Name, "addr", "add", other+"/32", "dev", "net9") })
	run(t, "ip", "-n", a.pod.Name, "addr", "add", addr+"/24", "dev", "net1")
	cnitest.Await(t, "the pod's entry is back", func() bool { return len(gids(t, "", "rxe0")[gidOf(addr)]) == 2 })
	own := slices.Max(gids(t, "", "rxe0")[gidOf(addr)])
	got, err := inside(t, a.pod)
	if err != nil {
		t.Error(err)
	}
	contains(t, got, fmt.Sprintf("GID index %d\n", own))
	p.Remove(t)
	a.mustDel()
}

func TestExclusiveRocectlReportsWhereTheDeviceIs(t *testing.T) {
	n := newNode(t, "exclusive")
	a, other := n.attach(n.rail(0), n.pod()), n.pod()
	addr := a.mustAdd()
	at := places(t, gids(t, a.pod.Name, "rxe0"), addr)[addr[0]]
	want := fmt.Sprintf("export NCCL_IB_HCA='=rxe0:1'\nexport NCCL_IB_GID_INDEX=%d\n", at)
	got, err := inside(t, a.pod)
	if err != nil {
		t.Error(err)
	}
	contains(t, got, want)
	contains(t, n.rocectl("env", "--netns", a.pod.Name), want)
	contains(t, n.rocectl("gids"), "# rxe1/1 on r1: ", fmt.Sprintf("# rxe0/1, in pod train/%s: ", a.pod.Name))
	run(t, "ip", "netns", "exec", a.pod.Name, "rdma", "dev", "set", "rxe0", "name", "mine")
	contains(t, n.rocectl("gids"), fmt.Sprintf("# mine/1, in pod train/%s: ", a.pod.Name), addr[0])
	run(t, "ip", "netns", "exec", a.pod.Name, "rdma", "dev", "set", "mine", "name", "rxe0")
	if got, err = inside(t, other); err == nil {
		t.Error("rocectl env succeeds in a pod without device")
	}
	contains(t, got, "rocectl[103]", "the network namespace has none", "in exclusive mode")
	a.mustDel()
	home(t)
}

// TestExclusiveDeviceThatAPodGaveAwayIsFoundAndMovedBack types what the hints
// of CHECK and DEL say.
func TestExclusiveDeviceThatAPodGaveAwayIsFoundAndMovedBack(t *testing.T) {
	n := newNode(t, "exclusive")
	a, other := n.attach(n.rail(0), n.pod()), n.pod()
	a.mustAdd()
	run(t, "ip", "netns", "exec", a.pod.Name, "rdma", "dev", "set", "rxe0", "netns", other.Name)
	contains(t, n.rocectl("gids"), fmt.Sprintf("# rxe0 was moved to pod train/%s; neither that nor the host has it now", a.pod.Name))
	out, err := n.tryRocectl("check")
	if err == nil {
		t.Error("rocectl check succeeds without the device")
	}
	const how = "ip netns exec NAME rdma dev set rxe0 netns ../../proc/1/ns/net"
	contains(t, out, "neither in the pod nor in the host", how)
	shell(t, strings.ReplaceAll(how, "NAME", other.Name))
	a.mustDel()
	home(t)
}

func TestSharedDeviceThatIsRecreatedIsTheSame(t *testing.T) {
	n := newNode(t, "shared")
	a := n.attach(n.rail(0), n.pod())
	addr := a.mustAdd()
	finally(t, "rdma link add rxe0 type rxe netdev r0")
	run(t, "rdma", "link", "del", "rxe0")
	if out, err := n.tryRocectl("check"); err == nil {
		t.Errorf("rocectl check succeeds without the device:\n%s", out)
	}
	run(t, "rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "r0")
	cnitest.Await(t, "the entry is there", func() bool { return len(gids(t, "", "rxe0").of(addr[0])) == 1 })
	out, err := n.tryRocectl("check")
	if err != nil && !strings.Contains(out, "its index changed") || strings.Contains(out, "RDMA port") {
		t.Errorf("rocectl check: %v\n%s", err, out)
	}
	a.mustDel()
}

// TestTellWhoHasNoRecord: rocectl gids names the namespace of an entry without a
// record, and a program there that has a queue pair, also when its address is gone.
func TestTellWhoHasNoRecord(t *testing.T) {
	n := newNode(t, "shared")
	other := n.pod()
	run(t, "ip", "link", "add", "link", "r0", "name", "net1", "netns", other.Name, "type", "macvlan", "mode", "bridge")
	run(t, "ip", "-n", other.Name, "link", "set", "net1", "up")
	run(t, "ip", "-n", other.Name, "addr", "add", "172.31.7.9/24", "dev", "net1")
	path := "/run/netns/" + other.Name
	cnitest.Await(t, "the namespace is named", func() bool {
		lines := strings.Split(n.rocectl("gids"), "\n")
		return slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "172.31.7.9") && strings.Contains(l, path) })
	})
	at := gids(t, other.Name, "rxe0").of("172.31.7.9")
	if len(at) != 1 {
		t.Fatalf("the address is at the indexes %v, want one", at)
	}
	end := other.pings(t, "rc", at[0], 7001, 4096)
	const holds = "(ibv_rc_pingpong) has queue pairs, and is in a network namespace without a record"
	cnitest.Await(t, "the program is named", func() bool { return strings.Contains(n.rocectl("gids"), holds) })
	run(t, "ip", "-n", other.Name, "addr", "del", "172.31.7.9/24", "dev", "net1")
	contains(t, n.rocectl("gids"), holds)
	end()
	cnitest.Await(t, "the program has ended", func() bool { return !strings.Contains(n.rocectl("gids"), holds) })
	other.Remove(t)
}
