// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package gids

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev/nldevtest"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// twoDevices is a kernel with two devices on one link.
func twoDevices(exclusive bool) nldevtest.Kernel {
	d := nldevtest.Device{Name: "mlx5_0", Netdev: "r0", NetdevIndex: 7}
	second := d
	second.Name = "mlx5_1"
	return nldevtest.Kernel{Devices: []nldevtest.Device{d, second}, Exclusive: exclusive}
}

// TestPortsAreThoseOfTheKernelWithTheirTables: of two ports, the second has no table.
func TestPortsAreThoseOfTheKernelWithTheirTables(t *testing.T) {
	t.Parallel()
	const dir = "class/infiniband/mlx5_0/"
	sys := fstest.MapFS{
		dir + "hca_type": {Data: []byte("MT4129\n")}, dir + "ports/1/gids/0": {Data: []byte("fe80:0000:0000:0000:0000:0000:0000:0001")},
		dir + "ports/1/gid_attrs/types/0": {Data: []byte("RoCE v2")}, dir + "ports/1/gid_attrs/ndevs/0": {Data: []byte("r0")},
	}
	var dials error
	of := func(exclusive bool) *rdma.Subsystem {
		s := rdma.New(rdma.Config{
			Sys: sys, Enter: func(fn func() error) error { return fn() },
			Dial: func() (*nldev.Conn, error) {
				if dials != nil {
					return nil, dials
				}
				return twoDevices(exclusive).Dial()
			},
		})
		t.Cleanup(s.Close)
		return s
	}
	port := func(index uint32, name string) Port {
		p := nldev.Port{Number: 1, State: nldev.Active, NetdevIndex: 7, Netdev: "r0"}
		return Port{Match: discover.Match{Device: nldev.Device{Index: index, Name: name, Protocol: "roce", Ports: []nldev.Port{p}}, Port: p, Link: "r0"}}
	}
	want := []Port{port(1, "mlx5_0"), port(2, "mlx5_1")}
	want[0].Model, want[0].Size = "MT4129", 1
	want[0].Entries = []gidtable.Entry{{GID: netip.MustParseAddr("fe80::1"), Type: gidtable.RoCEv2, Netdev: "r0"}}
	inPod, err := usable(t.Context(), of(false))
	if err != nil {
		t.Fatal(err)
	}
	for reader, exclusive := range map[plan.Place]bool{plan.Host: false, plan.Pod: true} { // the host reads its own files in both modes
		got, err := Ports(t.Context(), of(exclusive), plan.Host, reader)
		if err != nil {
			t.Fatal(err)
		}
		for _, ports := range [][]Port{got, inPod} {
			if diff := cmp.Diff(want, ports, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("exclusive %t (-want +got)\n%s", exclusive, diff)
			}
		}
	}
	sys[dir+"ports/1/gids/0"] = &fstest.MapFile{Data: []byte("no GID")}
	if _, err := Ports(t.Context(), of(false), plan.Host, plan.Host); err == nil {
		t.Error("a table that cannot be read has no entries")
	}
	dials = unix.EPROTONOSUPPORT
	_, err = Ports(t.Context(), of(false), plan.Host, plan.Host)
	if cnierr.CodeOf(err) != cnierr.NoRDMA || !strings.Contains(err.Error(), "the network namespace has none: the kernel has no RDMA") {
		t.Errorf("without RDMA: got %v", err)
	}
	dials = unix.EIO
	for _, ask := range []func() ([]Port, error){
		func() ([]Port, error) { return Ports(t.Context(), of(false), plan.Host, plan.Host) },
		func() ([]Port, error) { return usable(t.Context(), of(false)) },
	} {
		if ports, err := ask(); err == nil || cnierr.CodeOf(err) == cnierr.NoRDMA || len(ports) > 0 {
			t.Errorf("the kernel does not answer: got %v, %v", ports, err)
		}
	}
}

// TestANodeTellsWhatItsPodsHave in shared mode: it has r0 with an address, a pod on record with net1, and
// a pod without a record. A record has the second device, and one a device that is gone.
func TestANodeTellsWhatItsPodsHave(t *testing.T) {
	t.Parallel()
	ns := kerneltest.NewNode(t)
	ns.NIC("r0")
	ns.IP("addr add 172.16.0.9/24 dev r0")
	pod, stranger := ns.PodAt(filepath.Join(t.TempDir(), "pod")), ns.PodAt(filepath.Join(t.TempDir(), "stranger"))
	for addr, in := range map[string]*kerneltest.Netns{"172.16.0.5": pod, "198.51.100.177": stranger} {
		in.IP("link add net1 type veth peer name peer")
		in.IP("link set net1 up")
		in.IP("link set peer up")
		in.IP("addr add " + addr + "/24 dev net1")
		in.IP("route add default dev net1")
	}
	idOf := func(in *kerneltest.Netns) netns.ID {
		there, err := netns.At(in.Path)
		if err != nil {
			t.Fatal(err)
		}
		return there.ID
	}
	sys := fstest.MapFS{}
	for i, e := range []struct{ addr, netdev string }{{"ac10:0009", "r0"}, {"ac10:0005", "net1"}, {"c633:64b1", "net1"}} {
		const dir = "class/infiniband/mlx5_0/ports/1/"
		sys[fmt.Sprint(dir, "gids/", i)] = &fstest.MapFile{Data: []byte("0000:0000:0000:0000:0000:ffff:" + e.addr)}
		sys[fmt.Sprint(dir, "gid_attrs/types/", i)] = &fstest.MapFile{Data: []byte("RoCE v2")}
		sys[fmt.Sprint(dir, "gid_attrs/ndevs/", i)] = &fstest.MapFile{Data: []byte(e.netdev)}
	}
	rec := record.Record{Attachment: conf.Attachment{ContainerID: "c1", IfName: "net1"}, Pod: conf.Pod{Namespace: "ml", Name: "job"}, Netns: pod.Path, NetnsID: idOf(pod)}
	found := plan.GID{Device: plan.RDMADevice{Name: "mlx5_0"}}
	for _, addr := range []string{"172.16.0.5", "172.16.0.6"} { // the second one is lost
		found.Targets = append(found.Targets, plan.GIDTarget{Link: "net1", Addr: netip.MustParseAddr(addr), Index: place(1)})
	}
	found.Targets = append(found.Targets, plan.GIDTarget{Link: "net2", Addr: netip.MustParseAddr("172.17.0.6"), Index: place(1)})
	rec.Plan.Interfaces = []plan.Interface{{Name: "net1", Addresses: []plan.LeasedAddress{{Prefix: netip.MustParsePrefix("172.16.0.5/24")}}}}
	rec.Plan.Ops = plan.InPod(found, plan.Move{Device: plan.RDMADevice{Name: "mlx5_1", Index: 2, Port: 1}}, plan.Move{Device: plan.RDMADevice{Name: "mlx5_7", Index: 7, Port: 1}})
	n := Node{Sys: sys, Records: []record.Record{rec}, Dial: twoDevices(false).Dial}

	here, err := n.Here(t.Context(), "")
	if diff := cmp.Diff(map[string]int{"r0 172.16.0.9 mlx5_0:1": 0}, placesOf(here.Rails)); err != nil || diff != "" || here.Out != "" {
		t.Errorf("here: %+v, %v (-want +got)\n%s", here, err, diff)
	}
	there, err := n.At(t.Context(), pod.Path, "")
	if diff := cmp.Diff(map[string]int{"net1 172.16.0.5 mlx5_0:1": 1}, placesOf(there.Rails)); err != nil || diff != "" || there.Out != "net1" || there.OutAddr != netip.MustParseAddr("172.16.0.5") {
		t.Fatalf("in the pod: %+v, %v (-want +got)\n%s", there, err, diff)
	}
	if notes := there.Rails[0].Notes; len(notes) != 2 || !strings.HasPrefix(notes[0], "net1 172.16.0.6 is left out") || !strings.HasPrefix(notes[1], "net2 172.17.0.6 is left out") {
		t.Errorf("of the pod it says %q", notes)
	}
	if one, err := n.At(t.Context(), pod.Path, "net1"); err != nil || len(one.Rails[0].Notes) != 1 {
		t.Errorf("of net1 it says %+v, %v", one, err)
	}
	for path, only := range map[string]conf.LinkName{pod.Path: "net9", "/proc/thread-self/ns/net": "net9"} {
		if _, err := n.At(t.Context(), path, only); cnierr.CodeOf(err) != cnierr.BadConfig {
			t.Errorf("of %s in %s: got %v", only, path, err)
		}
	}

	got, err := n.Tables(t.Context())
	entry := func(index int, addr, netdev string, o Owner) Entry {
		a := netip.MustParseAddr(addr)
		o.Link, o.Addr = conf.LinkName(netdev), a
		return Entry{Index: index, GID: plan.GIDText(a), IPv4: a, Type: gidtable.RoCEv2, Netdev: netdev, Owners: []Owner{o}}
	}
	owner := Owner{Pod: rec.Pod, ContainerID: "c1", ID: rec.NetnsID, recorded: Recorded{"mlx5_0", place(1)}}
	without := Table{Device: "mlx5_1", Port: 1, Netdev: "r0", Entries: []Entry{}, Twice: map[netip.Addr][]int{}}
	held, lost := without, Table{Device: "mlx5_7", Port: 1, Missing: true, Entries: []Entry{}}
	held.Holder = &Owner{Pod: rec.Pod, ContainerID: "c1", Link: "net1"}
	lost.Holder = held.Holder
	want := []Table{{Device: "mlx5_0", Port: 1, Netdev: "r0", Size: 3, Twice: without.Twice, Entries: []Entry{
		entry(0, "172.16.0.9", "r0", Owner{}), entry(1, "172.16.0.5", "net1", owner), entry(2, "198.51.100.177", "net1", Owner{Netns: stranger.Path, ID: idOf(stranger)}),
	}}, without, held, lost}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Owner{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}

	n.Records[0].NetnsID = netns.ID{Dev: 1, Ino: 1} // of a pod that has gone, with another namespace at its path
	got, err = n.Tables(t.Context())
	if err != nil || len(got) != 3 || got[2].Device != "mlx5_7" {
		t.Errorf("the pod is gone: got %+v, %v", got, err)
	}
	sys["class/infiniband/mlx5_0/ports/1/gids/1"] = &fstest.MapFile{Data: []byte("no GID")}
	for _, ask := range []func() error{
		func() error { _, err := n.Here(t.Context(), ""); return err },
		func() error { _, err := n.At(t.Context(), pod.Path, ""); return err },
		func() error { _, err := n.Tables(t.Context()); return err },
	} {
		if err := ask(); err == nil || cnierr.CodeOf(err) == cnierr.NoGID {
			t.Errorf("a table that cannot be read: got %v", err)
		}
	}
}
