// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package gids

import (
	"context"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// TestTheAddressOfADefaultRouteStays has the kernel add a privacy address, which it lists
// before the one that stays.
func TestTheAddressOfADefaultRouteStays(t *testing.T) {
	t.Parallel()
	node := kerneltest.NewNode(t)
	node.NIC("eth1")
	node.IP("addr add fd00:9::5/64 dev eth1 nodad")
	node.NIC("eth0")
	node.IP("addr add 10.1.0.5/24 dev eth0")
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
	if local := (linkRoute{Link: "eth0", Dst: netip.MustParsePrefix("10.1.0.5/32")}); slices.Contains(v.Routes, local) {
		t.Errorf("got the routes %v, want none to the own address", v.Routes)
	}
	if len(v.Slaves) > 0 {
		t.Errorf("%v are called slaves of a bond", v.Slaves)
	}
	// Of two addresses of IPv4 the first one counts, and none that is valid on the link alone.
	node.IP("addr add 10.1.0.6/24 dev eth0")
	node.IP("route add default via 10.1.0.1 dev eth0")
	if v, err = viewHere(t.Context()); err != nil || v.OutAddr != netip.MustParseAddr("10.1.0.5") {
		t.Errorf("of IPv4: got %s, %v", v.OutAddr, err)
	}
	node.IP("addr flush dev eth0")
	node.IP("addr add 10.1.0.5/24 dev eth0 scope link")
	node.IP("route add default dev eth0")
	if v, err = viewHere(t.Context()); err != nil || v.Out != "eth0" || v.OutAddr.IsValid() {
		t.Errorf("of the link alone: got %q %s, %v", v.Out, v.OutAddr, err)
	}
	here, err := addrsHere(t.Context())
	if err != nil || !slices.Equal(here, v.Addrs) {
		t.Errorf("got the addresses %v, %v, want %v", here, err, v.Addrs)
	}
	past, end := context.WithCancel(t.Context())
	end()
	if _, err := viewHere(past); err == nil {
		t.Error("a view that could not be read")
	}
	if _, err := addrsHere(past); err == nil {
		t.Error("addresses that could not be read")
	}
	for ctx, codes := range map[context.Context][]cnierr.Code{past: {cnierr.IO}, t.Context(): {cnierr.NoRDMA, cnierr.NoGID}} { // it has no files of RDMA devices
		if got, err := (Node{Sys: fstest.MapFS{}}).Here(ctx, ""); !slices.Contains(codes, cnierr.CodeOf(err)) || len(got.Rails) > 0 {
			t.Errorf("got %+v, %v, want one of the codes %d", got, err, codes)
		}
	}
	if _, err := (Node{}).owners(past); cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("owners that could not be read: %v", err)
	}
}

// TestStrangersAreThePodsWithoutARecord: all namespaces but the own one.
func TestStrangersAreThePodsWithoutARecord(t *testing.T) {
	t.Parallel()
	node := kerneltest.NewNode(t)
	node.NIC("eth7")
	node.IP("addr add 192.0.2.9/24 dev eth7")
	known, other := node.PodAt(filepath.Join(t.TempDir(), "known")), node.PodAt(filepath.Join(t.TempDir(), "other"))
	for _, pod := range []*kerneltest.Netns{known, other} {
		pod.IP("link add eth1 type veth peer name eth2")
		pod.IP("addr add 192.0.2.7/24 dev eth1")
	}
	idOf := func(pod *kerneltest.Netns) netns.ID {
		there, err := netns.At(pod.Path)
		if err != nil {
			t.Fatal(err)
		}
		return there.ID
	}
	own, err := netns.OwnID()
	if err != nil {
		t.Fatal(err)
	}
	var got []Owner
	for _, o := range (Node{Records: []record.Record{{NetnsID: idOf(known)}}}).strangers(t.Context()) {
		if o.ID == idOf(known) || o.ID == own {
			t.Errorf("%+v is called a stranger", o)
		}
		if o.ID == idOf(other) && !o.Addr.IsLoopback() && !o.Addr.IsLinkLocalUnicast() {
			got = append(got, o)
		}
	}
	if want := (Owner{Netns: other.Path, Link: "eth1", Addr: netip.MustParseAddr("192.0.2.7"), ID: idOf(other)}); !slices.Equal(got, []Owner{want}) {
		t.Errorf("got %+v, want %+v", got, want)
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
	there, err := netns.At(pod.Path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.look(t.Context(), pod.Path, there.ID, nil, []Port{portOf("mlx5_0", "ens1")}); err == nil {
		t.Error("no error with the ID of the namespace")
	}
	// What only the pod sees is added. A port without a table is left as it is.
	const dir = "class/infiniband/mlx5_0/ports/1/"
	n.Sys = fstest.MapFS{
		dir + "gids/0": {Data: []byte("0000:0000:0000:0000:0000:ffff:ac10:0005")}, dir + "gid_attrs/types/0": {Data: []byte("RoCE v2")}, dir + "gid_attrs/ndevs/0": {Data: []byte("net1")},
	}
	want := []Port{portOf("mlx5_0", "ens1", "172.16.0.5"), portOf("mlx5_9", "ens9"), portOf("mlx5_0", "ens1", "172.16.0.5"), portOf("mlx5_0", "ens1", "172.16.0.5"), portOf("mlx5_0", "ens1", "172.16.0.5")}
	want[0].Hidden, want[3].Hidden, want[4].Hidden = true, true, true
	got := []Port{portOf("mlx5_0", "ens1"), want[1], want[2], want[3], portOf("mlx5_0", "ens1")}
	held, err := n.look(t.Context(), pod.Path, there.ID, nil, got)
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); err != nil || diff != "" || len(held) > 0 {
		t.Errorf("%v, %v (-want +got)\n%s", held, err, diff)
	}
}

// reads is a sysfs that counts how often a file is read.
type reads struct {
	fstest.MapFS
	of map[string]int
}

func (r reads) Open(name string) (fs.File, error) {
	r.of[name]++
	return r.MapFS.Open(name)
}

// TestANamespaceIsLookedAtOnce has two attachments of a pod, each with a device. The host lacks the
// entries of another device that both have, or none.
func TestANamespaceIsLookedAtOnce(t *testing.T) {
	t.Parallel()
	node := kerneltest.NewNode(t)
	pod := node.PodAt(filepath.Join(t.TempDir(), "pod"))
	there, err := netns.At(pod.Path)
	if err != nil {
		t.Fatal(err)
	}
	const gid = "class/infiniband/mlx5_9/ports/1/gids/0"
	sys := reads{fstest.MapFS{gid: {Data: []byte("0000:0000:0000:0000:0000:0000:0000:0000")}}, map[string]int{}}
	n := Node{Sys: sys, fillers: filepath.Join(t.TempDir(), "fillers"), Dial: twoDevices(false).Dial}
	for _, lacks := range []bool{false, true} {
		n.Records, sys.of[gid] = nil, 0
		for i := range uint32(2) {
			rec := record.Record{Netns: pod.Path, NetnsID: there.ID, Plan: plan.Plan{Ops: plan.InPod(plan.Move{Device: plan.RDMADevice{Index: i + 1, Port: 1}})}}
			if lacks {
				target := plan.GIDTarget{Link: "net1", Addr: netip.MustParseAddr("172.16.0.5"), Index: place(3)}
				rec.Plan.Ops = append(rec.Plan.Ops, plan.InPod(plan.GID{Device: plan.RDMADevice{Name: "mlx5_9"}, Targets: []plan.GIDTarget{target}})...)
			}
			n.Records = append(n.Records, rec)
		}
		held, tables, err := n.views(t.Context(), []Port{portOf("mlx5_9", "ens9")}, nil)
		var names []string
		for _, p := range held {
			names = append(names, p.Device.Name)
		}
		if want := map[bool]int{true: 1}[lacks]; err != nil || !slices.Equal(names, []string{"mlx5_0", "mlx5_1"}) || len(tables) != 2 || sys.of[gid] != want {
			t.Errorf("lacks %t: %d reads of the table, devices %q, %v, error %v", lacks, sys.of[gid], names, tables, err)
		}
	}
	sys.MapFS[gid] = &fstest.MapFile{Data: []byte("no GID")}
	if _, _, err := n.views(t.Context(), []Port{portOf("mlx5_9", "ens9")}, nil); err == nil {
		t.Error("a table that cannot be read is no error")
	}
	node.PodAt(n.fillers) // it is looked at if the host shows no filler
	filler := gidtable.Entry{GID: plan.FillerRange.Addr(), Type: gidtable.RoCEv2, Netdev: string(plan.Child{Parent: "ens9"}.Fillers().Name)}
	for want, entries := range [][]gidtable.Entry{{filler}, nil} {
		host := portOf("mlx5_9", "ens9")
		n.Records, sys.of[gid], host.Entries = nil, 0, entries
		if _, _, err := n.views(t.Context(), []Port{host}, nil); sys.of[gid] != want || (err != nil) != (want > 0) {
			t.Errorf("the host shows the fillers %v: %d reads of the table, error %v", entries, sys.of[gid], err)
		}
	}
}
