// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"net"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/roce-cni/roce-cni/pkg/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/rdma/nldev"
)

// TestRepairInTheKernel has faults that the kernel of any machine can have, runs the
// commands that the checks name, and looks again. RDMA is recorded; interfaces,
// addresses and settings are the kernel's.
func TestRepairInTheKernel(t *testing.T) {
	node := kerneltest.NewNode(t)
	w := healthy(t)
	for i, name := range []string{"rail0", "rail1"} {
		node.NIC(name)
		node.IP("address add 172.16.11." + string(rune('1'+i)) + "/24 dev " + name)
		link, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		w.port(i).NetdevIndex = int32(link.Attrs().Index)
	}
	node.IP("link set rail1 mtu 9000")
	node.IP("link set rail1 down")
	w.port(1).State = nldev.Down
	look := func() []Answer {
		live, n := Live(w.pools, w.leases, w.listen()), w.node()
		n.Links, n.Addrs, n.Sysctl = live.Links, live.Addrs, live.Sysctl
		n.RDMA = func(context.Context) (nldev.System, error) {
			link, err := netlink.LinkByName("rail1")
			if err == nil && link.Attrs().Flags&net.FlagUp != 0 {
				w.port(1).State = nldev.Active // as the driver does
			}
			return w.rdma, err
		}
		checks := slices.DeleteFunc(Checks(), func(c Check) bool { return !slices.Contains([]string{"rdma-ports", "rdma-mtu", "host-arp"}, c.Name) })
		return slices.Collect(Run(t.Context(), n, checks))
	}
	var found []string
	for _, a := range look() {
		if a.Verdict == Problem {
			found = append(found, a.Check+" "+a.Of)
			node.Exec("sh", "-ec", a.Fix)
		}
	}
	want := []string{"rdma-ports mlx5_1/1", "rdma-mtu mlx5_0/1", "host-arp rail0", "host-arp rail1"}
	if !slices.Equal(found, want) {
		t.Fatalf("problems: %q, want %q", found, want)
	}
	for _, a := range look() {
		if a.Verdict != OK {
			t.Errorf("after the commands: %+v", a)
		}
	}
}
