// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package gids

import (
	"net/netip"
	"os"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
)

// TestTheAddressOfADefaultRouteStays has the kernel add a privacy address, which it lists
// before the one that stays.
func TestTheAddressOfADefaultRouteStays(t *testing.T) {
	t.Parallel()
	node := kerneltest.NewNode(t)
	node.NIC("eth0")
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/eth0/use_tempaddr", []byte("2"), 0o600); err != nil {
		t.Fatal(err)
	}
	node.IP("addr add fd00:1::5/64 dev eth0 nodad mngtmpaddr valid_lft 86400 preferred_lft 14400")
	node.IP("route add default via fd00:1::1 dev eth0")
	v, err := viewHere(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stays := netip.MustParseAddr("fd00:1::5")
	temporary := slices.IndexFunc(v.Addrs, func(a Addr) bool {
		return a.Link == "eth0" && a.Addr != stays && netip.MustParsePrefix("fd00:1::/64").Contains(a.Addr)
	})
	if temporary < 0 {
		t.Fatalf("the kernel has made no temporary address: %v", v.Addrs)
	}
	if v.Out != "eth0" || v.OutAddr != stays {
		t.Errorf("the address of %q is %s among %v, want %s", v.Out, v.OutAddr, v.Addrs, stays)
	}
	if want := (linkRoute{Link: "eth0", Dst: netip.MustParsePrefix("fd00:1::/64")}); !slices.Contains(v.Routes, want) {
		t.Errorf("got the routes %v, want %v among them", v.Routes, want)
	}
}

// A look that cannot read a table is an error, and not a table without entries of pods.
func TestALookThatFailsIsAnError(t *testing.T) {
	t.Parallel()
	pod := kerneltest.NewNode(t).Pod()
	n := Node{Sys: fstest.MapFS{"class/infiniband/mlx5_0/ports/1/gids/0": {Data: []byte("no GID")}}}
	if _, err := n.look(t.Context(), pod.Path, netns.ID{}, nil, []Port{portOf("mlx5_0", "ens1")}); err == nil {
		t.Error("no error")
	}
}
