// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// TestCountersOfEachPodAreItsTraffic has two pods that share a device, and the kernel bind
// counters to their programs, as it does with mlx5 (module/rxe_counters.c). Soft-RoCE of 6.1
// sends in the network of the host alone, so the pods use a GID of the host.
func TestCountersOfEachPodAreItsTraffic(t *testing.T) {
	n := newNode(t, "shared")
	shell(t, "modprobe rxe_counters && rdma statistic qp set link rxe0/1 auto pid on && ip addr add 10.3.0.1/24 dev r0")
	finally(t, "rdma statistic qp set link rxe0/1 auto off; ip addr del 10.3.0.1/24 dev r0")
	var gid int
	cnitest.Await(t, "the host has a GID", func() bool {
		at := gids(t, "", "rxe0").of("10.3.0.1")
		if len(at) > 0 {
			gid = at[0]
		}
		return len(at) > 0
	})
	server, client := n.attach(n.rail(0), n.pod()), n.attach(n.rail(0), n.pod())
	at := server.mustAdd()[0]
	client.mustAdd()
	before := packets(t)
	var pids []int
	var ends []func()
	for i, pod := range []*pod{server.pod, client.pod} {
		args := fmt.Sprintf("netns exec %s ib_write_bw -F -d rxe0 -x %d --run_infinitely", pod.Name, gid)
		if i == 1 {
			args += " " + at
		}
		pid, end := background(t, "ip", strings.Fields(args)...)
		pids, ends = append(pids, pid), append(ends, end)
		cnitest.Await(t, "the program listens, or sends", func() bool {
			out, _ := try("ip", "netns", "exec", pod.Name, "ss", "-ltnH")
			return i == 0 && strings.Contains(out, ":18515") || i == 1 && packets(t)[0] > before[0]+400
		})
	}
	contains(t, n.rocectl("top", "--once"), "packets/s")

	// No packet is under way when both have stopped.
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	was := before
	cnitest.Await(t, "all packets have arrived", func() bool {
		now := packets(t)
		still := now == was
		was = now
		if !still {
			time.Sleep(time.Second)
		}
		return still
	})
	var all, of [2]uint64
	for i := range all {
		all[i] = (was[i] - before[i]) / 2 // the file has them twice
	}
	uses := n.top()
	for _, u := range uses {
		if u.Counted == nil || u.Counted.Unit != "packets" {
			t.Fatalf("nothing is counted for %s: %+v", u.User, u)
		}
		of[0], of[1] = of[0]+u.Counted.Sent, of[1]+u.Counted.Received
		t.Logf("%s has sent %d and received %d packets", u.User, u.Counted.Sent, u.Counted.Received)
	}
	if len(uses) != 2 || !near(of[0], all[0]) || !near(of[1], all[1]) {
		t.Errorf("the pods have sent and received %d packets, the device %d", of, all)
	}
	one, two := uses[0], uses[1]
	if one.Pod.Name != server.pod.Name {
		one, two = two, one
	}
	if !near(one.Counted.Received, two.Counted.Sent) || !near(one.Counted.Sent, two.Counted.Received) {
		t.Errorf("the server has %+v, the client %+v", *one.Counted, *two.Counted)
	}
	// Without their interfaces, the connection of the programs would take two minutes to end,
	// and keep the namespaces.
	for _, end := range ends {
		end()
	}
	server.mustDel()
	client.mustDel()
}

// near says whether a count is right within one percent.
func near(count, want uint64) bool { return count*100 >= want*99 && count*99 <= want*100 }

// packets returns how many packets rxe0 has sent and received, by its files.
func packets(t *testing.T) (out [2]uint64) {
	t.Helper()
	for i, name := range []string{"sent_pkts", "rcvd_pkts"} {
		b, err := os.ReadFile(filepath.Join("/sys/class/infiniband/rxe0/ports/1/hw_counters", name))
		if err != nil {
			t.Fatal(err)
		}
		if out[i], err = strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	return out
}
