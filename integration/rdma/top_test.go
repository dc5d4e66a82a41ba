// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/cluster/counts"
	"github.com/roce-cni/roce-cni/pkg/tool/usage"
)

// index returns the GID index of the only address of an attachment.
func (a attachment) index() int {
	a.node.t.Helper()
	for _, i := range a.indexes() {
		return i
	}
	a.node.t.Fatal("no address has an index")
	return 0
}

// pings starts a program of rdma-core in the pod, which waits for another one at a TCP port.
func (p *pod) pings(t *testing.T, kind string, gid, port, size int) (stop func()) {
	t.Helper()
	args := fmt.Sprintf("netns exec %s ibv_%s_pingpong -d rxe0 -g %d -p %d -s %d", p.Name, kind, gid, port, size)
	_, stop = background(t, "ip", strings.Fields(args)...)
	return stop
}

// top returns what rocectl top says of users with queue pairs.
func (n *node) top() []usage.Use {
	n.t.Helper()
	var out []usage.Use
	if err := json.Unmarshal([]byte(n.rocectl("top", "-o", "json")), &out); err != nil {
		n.t.Fatal(err)
	}
	return out
}

// TestSharedTopShowsWhatTheRDMAControllerCharges has a pod with a control group of its own.
func TestSharedTopShowsWhatTheRDMAControllerCharges(t *testing.T) {
	n := newNode(t, "shared")
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cgroup.controllers"); err != nil {
		finally(t, "umount "+root)
		run(t, "mount", "-t", "cgroup2", "cgroup2", root)
	}
	finally(t, "rmdir "+root+"/pod; echo -rdma >"+root+"/cgroup.subtree_control")
	shell(t, "echo +rdma >"+root+"/cgroup.subtree_control; mkdir "+root+"/pod")
	a := n.attach(n.rail(0), n.pod())
	a.mustAdd()
	_, stop := background(t, "sh", "-ec", fmt.Sprintf("echo $$ >%s/pod/cgroup.procs; exec ip netns exec %s ibv_uc_pingpong -d rxe0 -g %d", root, a.pod.Name, a.index()))
	var got []usage.Use
	cnitest.Await(t, "the program has a queue pair", func() bool { got = n.top(); return len(got) == 1 && got[0].Total() == 1 })
	want := shell(t, "cat "+root+"/pod/rdma.current")
	if c := got[0].Charged; c == nil || c.Handles != 1 || c.Objects < 4 || !strings.Contains("\n"+want+" ", fmt.Sprintf("\nrxe0 hca_handle=%d hca_object=%d ", c.Handles, c.Objects)) {
		t.Errorf("charged %+v, want %q", c, want)
	}
	contains(t, n.rocectl("top", "--once", "-o", "wide"), fmt.Sprintf("1 handles, %d objects", got[0].Charged.Objects))
	stop()
	a.mustDel()
}

func has(qps map[string]int, regions int, bytes uint64) usage.Use {
	return usage.Use{Device: "rxe0", QueuePairs: qps, Contexts: regions, Regions: regions, RegionBytes: bytes}
}

func TestSharedTopCountsEachPod(t *testing.T) {
	n := newNode(t, "shared")
	one, two := n.attach(n.rail(0), n.pod()), n.attach(n.rail(0), n.pod())
	one.mustAdd()
	two.mustAdd()
	one.pod.pings(t, "uc", one.index(), 7001, 4096)
	one.pod.pings(t, "uc", one.index(), 7002, 1<<20)
	end := two.pod.pings(t, "rc", two.index(), 7001, 65536)
	want := []usage.Use{has(map[string]int{"UC": 2}, 2, 4096+1<<20), has(map[string]int{"RC": 1}, 1, 65536)}
	var got []usage.Use
	only := cmpopts.IgnoreFields(usage.Use{}, "User", "Interface", "Processes")
	cnitest.Await(t, "the programs have their objects", func() bool {
		got = n.top()
		return cmp.Equal(want, got, only)
	})
	for i, a := range []attachment{one, two} {
		if got[i].Pod.Name != a.pod.Name || got[i].Interface != "net1" {
			t.Errorf("row %d is that of %s, want %s", i, got[i].User, a.pod.Name)
		}
	}
	h := n.watching(`"counts": "pods"`, "healing")
	var counted counts.Counts
	cnitest.Await(t, "the healer has counted", func() (is bool) {
		var err error
		counted, err = counts.File{Dir: n.state}.Read()
		return err == nil && len(counted.Rows) == len(got)
	})
	h.end(unix.SIGTERM)
	for i, r := range counted.Rows {
		u := got[i]
		as := counts.Row{Device: u.Device, User: counts.User{Kind: "pod", Namespace: u.Pod.Namespace, Pod: u.Pod.Name}, QueuePairs: u.QueuePairs, Contexts: u.Contexts, Regions: u.Regions, RegionBytes: u.RegionBytes}
		if diff := cmp.Diff(as, r); diff != "" {
			t.Errorf("the count differs from rocectl top (-top +count)\n%s", diff)
		}
	}
	contains(t, n.rocectl("top", "--once", "-o", "wide"), "UC 2", "RC 1", "1.004 MiB", "(ibv_uc_pingpong)")

	// What can be read is shown without the calls of the node.
	shell(t, fmt.Sprintf("cd %s; mv calls kept; mkdir calls", n.state))
	out, err := n.tryRocectl("top", "--once")
	if err == nil {
		t.Error("top does not fail without the calls")
	}
	contains(t, out, "UC 2", "RC 1", "read calls in")
	shell(t, fmt.Sprintf("cd %s; rmdir calls; mv kept calls", n.state))

	end()
	cnitest.Await(t, "one pod is alone", func() bool { got = n.top(); return len(got) == 1 })
	if got[0].Sent == nil || got[0].Received == nil {
		t.Errorf("the only user has no rates: %+v", got[0])
	}
	one.mustDel()
	two.mustDel()
}
