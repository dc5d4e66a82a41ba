// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package gids

import (
	"net/netip"
	"os"
	"slices"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
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

func TestTheDefaultRouteHasTheLowestMetricOfIPv4(t *testing.T) {
	t.Parallel()
	route := func(index int32, dst string, metric uint32) rtnl.Route {
		return rtnl.Route{Index: index, Dst: netip.MustParsePrefix(dst), Metric: metric, Type: unix.RTN_UNICAST, Table: unix.RT_TABLE_MAIN}
	}
	for want, routes := range map[int32][]rtnl.Route{
		0: {route(1, "10.0.0.0/8", 0)},
		1: {route(9, "::/0", 0), route(2, "0.0.0.0/0", 1<<31), route(1, "0.0.0.0/0", 100), route(3, "0.0.0.0/0", 200)},
		2: {route(9, "::/0", 1024), route(2, "::/0", 512), route(3, "10.0.0.0/8", 0)},
	} {
		if got := defaultRoute(routes); got.Index != want {
			t.Errorf("of %v: got %v, want that of interface %d", routes, got, want)
		}
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
	for path, id := range map[string]netns.ID{pod.Path: {Dev: 1, Ino: 1}, "/nonexistent": {}} { // nothing is read in another namespace, or in none
		if _, err := n.look(t.Context(), path, id, nil, []Port{portOf("mlx5_0", "ens1")}); err != nil {
			t.Errorf("%s with the ID %v: %v", path, id, err)
		}
	}
}
