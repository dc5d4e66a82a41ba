// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nic

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

var update = flag.Bool("update", false, "rewrite the golden in testdata")

// tree is a sysfs that is built function by function.
type tree struct{ fstest.MapFS }

func (t tree) write(name, content string) {
	t.MapFS[name] = &fstest.MapFile{Data: []byte(content + "\n")}
}

func (t tree) link(name, target string) {
	t.MapFS[name] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink}
}

// function puts a PCI function at the end of a way below a host bridge.
func (t tree) function(way, vendor, device, class string, numa int) {
	address := path.Base(way)
	t.link("bus/pci/devices/"+address, "../../../devices/"+way)
	for file, content := range map[string]string{"vendor": vendor, "device": device, "class": class, "numa_node": fmt.Sprint(numa)} {
		t.write("devices/"+way+"/"+file, content)
	}
}

// nic adds an mlx5 NIC to a node.
func (n *Node) nic(t tree, way, name, device string, numa int) {
	t.function(way, "0x15b3", "0x1021", "0x020000", numa)
	t.link("class/net/"+name, "../../devices/"+way+"/net/"+name)
	t.write("devices/"+way+"/net/"+name+"/speed", "400000")
	t.link("class/infiniband/"+device, "../../devices/"+way+"/infiniband/"+device)
	t.write("devices/"+way+"/infiniband/"+device+"/ports/1/link_layer", "Ethernet")
	t.write("devices/"+way+"/infiniband/"+device+"/ports/1/gids/0", "0000:0000:0000:0000:0000:ffff:ac10:0b01")
	t.write("devices/"+way+"/infiniband/"+device+"/ports/1/gid_attrs/types/0", "RoCE v2")
	t.write("devices/"+way+"/infiniband/"+device+"/ports/1/gids/1", "0000:0000:0000:0000:0000:0000:0000:0000")
	index := int32(len(n.Links) + 1)
	n.Links = append(n.Links, rtnl.Link{
		Index: index, Name: name, MTU: 9000, Type: unix.ARPHRD_ETHER, Flags: unix.IFF_UP, Dev: path.Base(way), Bus: "pci",
	})
	n.RDMA.Devices = append(n.RDMA.Devices, nldev.Device{
		Name: device, Protocol: "roce", Ports: []nldev.Port{{Number: 1, State: nldev.Active, NetdevIndex: index, Netdev: name}},
	})
}

// bond makes a bond of interfaces.
func (n *Node) bond(index int32, slaves ...int) {
	for _, i := range slaves {
		n.Links[i].SlaveKind, n.Links[i].Master = "bond", index
	}
	n.Links = append(n.Links, rtnl.Link{Index: index, Name: fmt.Sprint("bond", index-9), Kind: "bond", MTU: 9000, Type: unix.ARPHRD_ETHER, Flags: unix.IFF_UP})
}

// gpuServer is a node with two sockets. Each has two PCIe switches with two NICs and
// two GPUs. The NICs are not in the order of the bus. It has a graphics chip of its own.
func gpuServer() Node {
	t := tree{fstest.MapFS{}}
	n := Node{Sys: t.MapFS, Driver: func(string) (Driver, error) { return Driver{"mlx5_core", "6.8.0", "28.39.1002"}, nil }}
	for i := 7; i >= 0; i-- {
		bus := 0x10 + i/2*0x20
		upstream := fmt.Sprintf("pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0", bus, bus, bus+1)
		slot := func(port, at int) string {
			return fmt.Sprintf("%s/0000:%02x:%02x.0/0000:%02x:00.0", upstream, bus+2, port, bus+at)
		}
		n.nic(t, slot(i%2, 3+i%2), fmt.Sprintf("ens%df0np0", i+1), fmt.Sprintf("mlx5_%d", 7-i), i/4)
		t.function(slot(4+i%2, 5+i%2), "0x10de", "0x2330", []string{"0x030200", "0x030000"}[i%2], i/4) // 3D, or with outputs for screens
	}
	t.function("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0", "0x10de", "0x22a3", "0x068000", 0) // a switch of NVLink
	t.function("pci0000:00/0000:00:1c.0/0000:02:00.0", "0x1a03", "0x2000", "0x030000", 0)
	return n
}

func TestRailsOfAGPUServer(t *testing.T) {
	t.Parallel()
	ports := gpuServer().Inventory()
	if len(ports) != 8 {
		t.Fatalf("got %d ports, want 8", len(ports))
	}
	for i, p := range ports {
		pair := i / 2 * 2
		want := []GPU{
			{fmt.Sprintf("GPU%d", pair), fmt.Sprintf("0000:%02x:00.0", 0x15+i/2*0x20), PIX},
			{fmt.Sprintf("GPU%d", pair+1), fmt.Sprintf("0000:%02x:00.0", 0x16+i/2*0x20), PIX},
		}
		if diff := cmp.Diff(want, p.GPUs); diff != "" {
			t.Errorf("rail %d (-want +got)\n%s", i, diff)
		}
		if p.Rail == nil || *p.Rail != i || string(p.Netdev) != fmt.Sprintf("ens%df0np0", i+1) || p.NUMA == nil || *p.NUMA != i/4 {
			t.Errorf("rail %d: %+v", i, p)
		}
	}
	zero, numa := 0, 0
	want := Details{
		Rail: &zero, Netdev: "ens1f0np0", PCI: "0000:13:00.0", NUMA: &numa, Device: "mlx5_7", Number: 1, LinkLayer: "Ethernet", State: "ACTIVE",
		Speed: 400000, MTU: 9000, VendorID: "15b3", DeviceID: "1021", Model: "ConnectX-7", Driver: Driver{"mlx5_core", "6.8.0", "28.39.1002"},
		GPUs: ports[0].GPUs, GIDs: GIDs{Used: 1, Size: 2, Width: 1},
	}
	if diff := cmp.Diff(want, ports[0]); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestDistancesAreThoseOfNvidiaSmi(t *testing.T) {
	t.Parallel()
	s := tree{fstest.MapFS{}}
	n := Node{Sys: s.MapFS}
	const nic = "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0"
	s.function(nic, "0x15b3", "0x1021", "0x020000", 0)
	for _, c := range []struct {
		way  string
		numa int
		want Distance
	}{
		{"pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0", 0, PIX},
		{"pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:02.0/0000:20:00.0/0000:21:01.0/0000:22:00.0", 0, PXB},
		{"pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:03.0/0000:24:00.0/0000:25:00.0", 0, PXB},
		{"pci0000:10/0000:10:02.0/0000:30:00.0", 0, PHB},
		{"pci0000:40/0000:40:01.0/0000:41:00.0", 0, NODE},
		{"pci0000:80/0000:80:01.0/0000:81:00.0", 1, SYS},
	} {
		s.function(c.way, "0x1002", "0x74a1", []string{"0x038000", "0x120000"}[c.numa], c.numa)
		if got := n.distance(path.Base(nic), path.Base(c.way)); got != c.want {
			t.Errorf("%s: got %s, want %s", c.way, got, c.want)
		}
	}
	for _, pair := range [][2]string{{path.Base(nic), "0000:ff:00.0"}, {"0000:ff:00.0", path.Base(nic)}} {
		if got := n.distance(pair[0], pair[1]); got != "" {
			t.Errorf("a function that is not there is at the distance %q", got)
		}
	}
	if got := n.distance(path.Base(nic), path.Base(nic)); got != PIX {
		t.Errorf("a function is at the distance %s of itself", got)
	}
	s.write("bus/pci/devices/0000:ff:01.0/class", "0x030200") // nothing tells where it is
	if got := n.nearest(path.Base(nic)); len(n.gpus()) != 7 || len(got) != 1 || got[0].PCI != "0000:14:00.0" || got[0].Name != "GPU0" {
		t.Errorf("nearest: %+v", got)
	}
}

func TestNVIDIAsDriverHidesEntriesOfPods(t *testing.T) {
	t.Parallel()
	s := tree{fstest.MapFS{}}
	n := Node{Sys: s.MapFS}
	n.nic(s, "pci0000:00/0000:00:01.0/0000:01:00.0", "ens1", "mlx5_0", 0)
	for _, want := range []GIDs{{Used: 1, Size: 2, Width: 1}, {Used: 1, Size: 2, Width: 1, Hidden: true}} {
		if got := n.Inventory()[0].GIDs; got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		s.write("module/mlx_compat/refcnt", "12")
	}
}

// equalsGolden compares ports with a file that has a line for each of them, and how much of its
// table is free.
func equalsGolden(t *testing.T, name string, ports []Details) {
	t.Helper()
	var got strings.Builder
	for _, p := range ports {
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&got, "%s %q %q %d %s\n", p, p.Cables(), Rate(p.Speed), p.GIDs.Free(), b)
	}
	if *update {
		if err := os.WriteFile("testdata/"+name, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/" + name)
	if diff := cmp.Diff(string(want), got.String()); err != nil || diff != "" {
		t.Errorf("%v; if the ports should differ, run make golden (-want +got)\n%s", err, diff)
	}
}

// TestPortsThatAreNoRail have no number, and come after the rails: InfiniBand, the ports
// of a bond, a representor. A device that a pod has keeps its number. A virtual function is
// left out.
func TestPortsThatAreNoRail(t *testing.T) {
	t.Parallel()
	s := tree{fstest.MapFS{}}
	n := Node{Sys: s.MapFS, Driver: func(netdev string) (Driver, error) {
		if netdev == "ibp3s0" {
			return Driver{Name: "half an answer"}, errors.New("no driver")
		}
		return Driver{Name: "mlx5_core of " + netdev}, nil
	}, QoS: func(netdev string) (QoS, error) { return QoS{PFC: Priorities(len(netdev))}, nil }}
	n.nic(s, "pci0000:00/0000:00:01.0/0000:01:00.0", "ens1", "mlx5_0", 0)
	n.nic(s, "pci0000:00/0000:00:02.0/0000:02:00.0", "ens2", "mlx5_1", 0)
	n.nic(s, "pci0000:00/0000:00:03.0/0000:03:00.0", "ibp3s0", "mlx5_2", -1)
	n.nic(s, "pci0000:00/0000:00:04.0/0000:04:00.2", "ens4v0", "mlx5_3", 0)
	n.nic(s, "pci0000:00/0000:00:05.0/0000:05:00.0", "ens5", "mlx5_4", 0)
	n.nic(s, "pci0000:00/0000:00:01.0/0000:01:00.1", "ens6", "mlx5_5", 0)
	n.nic(s, "pci0000:00/0000:00:04.0/0000:04:00.3", "ens4v1", "mlx5_6", 0)
	n.bond(9, 0, 5)
	n.Links[2].Type = unix.ARPHRD_INFINIBAND
	n.RDMA.Devices[2].Ports[0].NetdevIndex = 0
	const ib = "devices/pci0000:00/0000:00:03.0/0000:03:00.0/"
	s.write(ib+"infiniband/mlx5_2/ports/1/link_layer", "InfiniBand")
	s.link(ib+"infiniband/mlx5_2/device", "../../../0000:03:00.0")
	s.write("devices/pci0000:00/0000:00:04.0/0000:04:00.2/physfn/vendor", "0x15b3")
	// A pod has mlx5_4: only the files for programs show it. Another one has a virtual function.
	n.RDMA.Devices = slices.Delete(n.RDMA.Devices[:6], 4, 5)
	s.write("devices/pci0000:00/0000:00:04.0/0000:04:00.3/physfn/vendor", "0x15b3")
	s.write("class/infiniband_verbs/uverbs6/ibdev", "mlx5_6")
	s.link("class/infiniband_verbs/uverbs6/device", "../../../devices/pci0000:00/0000:00:04.0/0000:04:00.3")
	// In switchdev mode the device of the physical function has the ports of representors.
	n.Links = append(n.Links, rtnl.Link{Index: 10, Name: "ens2r0", PhysPort: "pf0vf0", MTU: 9000, Type: unix.ARPHRD_ETHER, Dev: "0000:02:00.0", Bus: "pci"})
	s.link("class/net/ens2r0", "../../devices/pci0000:00/0000:00:02.0/0000:02:00.0/net/ens2r0")
	s.write("devices/pci0000:00/0000:00:02.0/0000:02:00.0/infiniband/mlx5_1/ports/2/link_layer", "Ethernet")
	n.RDMA.Devices[1].Ports = append(n.RDMA.Devices[1].Ports, nldev.Port{Number: 2, State: nldev.Active, NetdevIndex: 10, Netdev: "ens2r0"})
	s.write("class/infiniband_verbs/uverbs4/ibdev", "mlx5_4")
	s.link("class/infiniband_verbs/uverbs4/device", "../../../devices/pci0000:00/0000:00:05.0/0000:05:00.0")
	n.Addresses = []rtnl.Address{{Index: 2, Prefix: netip.MustParsePrefix("172.16.12.1/24")}, {Index: 2, Prefix: netip.MustParsePrefix("fe80::1/64")}, {Index: 2, Prefix: netip.MustParsePrefix("fd00::1/64")}}
	for at, mbits := range map[string]string{
		"1.0/0000:01:00.0/net/ens1": "999", "2.0/0000:02:00.0/net/ens2": "2500", "3.0/0000:03:00.0/net/ibp3s0": "-1", "1.0/0000:01:00.1/net/ens6": "1000",
	} {
		s.write("devices/pci0000:00/0000:00:0"+at+"/speed", mbits)
	}

	// iWARP is behind ens2 too. Nothing tells where two devices are, and several links are beside crowd0.
	for i, name := range []string{"irdma0", "nowhere10", "nowhere9", "crowd0"} {
		n.RDMA.Devices = append(n.RDMA.Devices, nldev.Device{Name: name, Protocol: []string{"iw", "", "", ""}[i], Ports: []nldev.Port{{Number: 1, NetdevIndex: []int32{2, 0, 0, 0}[i]}}})
	}
	s.write("class/infiniband/crowd0/device/net/ens1/mtu", "1500")
	s.write("class/infiniband/crowd0/device/net/ens2/mtu", "1500")
	for i, name := range []string{"mlx5_0", "mlx5_1", ""} { // devices that are present, and one that goes away
		s.write(fmt.Sprintf("class/infiniband_verbs/uverbs%d/ibdev", i), name)
	}
	s.function("pci0000:00/0000:00:06.0/0000:06:00.0", "0x8086", "0x1593", "0x020000", 0)
	n.Links = append(n.Links, rtnl.Link{Index: 11, Name: "eno1", Type: unix.ARPHRD_ETHER, Dev: "0000:06:00.0", Bus: "pci"})

	equalsGolden(t, "ports.txt", n.Inventory())
	if others := n.Others(n.Inventory()[:1]); !slices.Equal(others, []string{"bond0", "ens4v0", "ens4v1", "ens5"}) {
		t.Errorf("other NICs of the type of ens2: %q", others)
	}
}

// TestALAGIsOneRail has what rdma link prints in public listings of nodes with RoCE LAG: the
// device of mlx5 names a slave, and that of bnxt_re names the bond.
func TestALAGIsOneRail(t *testing.T) {
	t.Parallel()
	const nvidia, broadcom = "mlx5_bond_%d", "bnxt_re_bond%d"
	for name, c := range map[string]struct {
		device string
		single bool // the node has a NIC that is in no bond
		want   []string
	}{
		"mlx5": {nvidia, false, []string{
			"0 mlx5_bond_0/1 bond0 0000:01:00.0 mlx5_core [ens1f0np0 ens1f1np1] [172.16.9.1/24]", "1 mlx5_bond_1/1 bond1 0000:02:00.0 mlx5_core [ens2f0np0 ens2f1np1] [172.16.10.1/24]",
		}},
		"bnxt_re": {broadcom, false, []string{
			"0 bnxt_re_bond0/1 bond0 0000:01:00.0 mlx5_core [ens1f0np0 ens1f1np1] [172.16.9.1/24]", "1 bnxt_re_bond1/1 bond1 0000:02:00.0 mlx5_core [ens2f0np0 ens2f1np1] [172.16.10.1/24]",
		}},
		"mlx5 beside a single NIC": {nvidia, true, []string{
			"0 mlx5_bond_0/1 bond0 0000:01:00.0 mlx5_core [ens1f0np0 ens1f1np1] [172.16.9.1/24]", "1 mlx5_bond_1/1 bond1 0000:02:00.0 mlx5_core [ens2f0np0 ens2f1np1] [172.16.10.1/24]",
			"2 mlx5_2/1 ens3f0np0 0000:03:00.0 mlx5_core [] []",
		}},
	} {
		s := tree{fstest.MapFS{}}
		n := Node{Sys: s.MapFS, Driver: func(netdev string) (Driver, error) {
			return Driver{Name: map[bool]string{true: "bonding", false: "mlx5_core"}[netdev[:4] == "bond"]}, nil
		}}
		for i := range 2 {
			function := fmt.Sprintf("pci0000:00/0000:00:0%d.0/0000:0%d:00.", i+1, i+1)
			n.nic(s, function+"0", fmt.Sprintf("ens%df0np0", i+1), fmt.Sprintf(c.device, i), 0)
			n.nic(s, function+"1", fmt.Sprintf("ens%df1np1", i+1), "gone", 0)
			n.RDMA.Devices = n.RDMA.Devices[:i+1] // the other slave has none
		}
		if c.single {
			n.nic(s, "pci0000:00/0000:00:03.0/0000:03:00.0", "ens3f0np0", "mlx5_2", 0)
		}
		for i := range 2 {
			index := int32(9 + i)
			n.bond(index, 2*i, 2*i+1)
			n.Addresses = append(n.Addresses, rtnl.Address{Index: index, Prefix: netip.MustParsePrefix(fmt.Sprintf("172.16.%d.1/24", index))})
			if c.device == broadcom {
				n.RDMA.Devices[i].Ports[0].NetdevIndex = index
			}
		}
		var got []string
		for _, d := range n.Inventory() {
			if d.Rail == nil || d.Bond != "" {
				t.Errorf("%s: %s is no rail, or in a bond: %+v", name, d, d)
				continue
			}
			if cables := d.Cables(); len(d.Slaves) > 0 && len(cables) != 2 || len(d.Slaves) == 0 && cables[0] != string(d.Netdev) {
				t.Errorf("%s: the cables of %s are those of %q", name, d, cables)
			}
			got = append(got, fmt.Sprintf("%d %s %s %s %s %v %v", *d.Rail, d, d.Netdev, d.PCI, d.Name, d.Slaves, d.Addresses))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}

// TestABondWithADeviceAndDevicesOfItsSlaves: what names the bond carries. Slaves with a device each
// carry nothing.
func TestABondWithADeviceAndDevicesOfItsSlaves(t *testing.T) {
	t.Parallel()
	s := tree{fstest.MapFS{}}
	n := Node{Sys: s.MapFS}
	for i := range 5 {
		n.nic(s, fmt.Sprintf("pci0000:00/0000:00:0%d.0/0000:0%d:00.%d", i/2+1, i/2+1, i%2), fmt.Sprint("ens", i), fmt.Sprint("mlx5_", i), 0)
	}
	n.bond(9, 0, 1)
	n.bond(10, 2, 3)
	n.bond(11, 4)
	n.RDMA.Devices[1].Ports[0].NetdevIndex = 9
	if p := (Port{}); p.Cables() != nil || (Details{LinkLayer: "Ethernet"}).Ethernet() {
		t.Errorf("a port without an interface has the cables of %q, and is one of Ethernet", p.Cables())
	}
	n.RDMA.Devices = append(n.RDMA.Devices, nldev.Device{Name: "siw4", Protocol: "iw", Ports: []nldev.Port{{Number: 1, NetdevIndex: 11}}})
	var got []string
	for _, p := range n.Ports() {
		got = append(got, fmt.Sprintf("%s %t %t %s %q", p, p.Carries, p.Bonded(), p.Interface().Name, p.Cables()))
	}
	want := []string{
		`mlx5_0/1 false true ens0 ["ens0"]`, `mlx5_1/1 true false bond0 ["ens0" "ens1"]`,
		`mlx5_2/1 false true ens2 ["ens2"]`, `mlx5_3/1 false true ens3 ["ens3"]`,
		`mlx5_4/1 true true bond2 ["ens4"]`, `siw4/1 false false bond2 ["ens4"]`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestADeviceOfIWARPIsNoRail has three NICs, of which the first speaks iWARP: irdma can, eRDMA
// and cxgb4 speak nothing else.
func TestADeviceOfIWARPIsNoRail(t *testing.T) {
	t.Parallel()
	s := tree{fstest.MapFS{}}
	n := Node{Sys: s.MapFS}
	for i, device := range []string{"irdma0", "mlx5_0", "mlx5_1"} {
		n.nic(s, fmt.Sprintf("pci0000:00/0000:00:0%d.0/0000:0%d:00.0", i+1, i+1), fmt.Sprint("ens", i+1), device, 0)
	}
	n.RDMA.Devices[0].Protocol = "iw"
	for i, d := range n.Inventory() {
		switch {
		case d.Device == "irdma0" && d.Rail != nil:
			t.Errorf("%s is rail %d", d, *d.Rail)
		case d.Device != "irdma0" && (d.Rail == nil || *d.Rail != i || d.Device != fmt.Sprint("mlx5_", i)):
			t.Errorf("row %d: %+v", i, d)
		}
	}
}

// TestThisMachine reads the machine of the test, whatever it is.
func TestThisMachine(t *testing.T) {
	t.Parallel()
	n, err := Live(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range n.Inventory() {
		if p.Device == "" || p.State == "" {
			t.Errorf("%+v", p)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Live(over); !errors.Is(err, context.Canceled) || cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("got %v of a call that is over", err)
	}
	if _, err := ReadDriver("lo"); err == nil {
		t.Error("the loopback interface has a driver")
	}
}

// TestTheNodeIsThatOfItsNamespace is not parallel, because it counts open files.
func TestTheNodeIsThatOfItsNamespace(t *testing.T) {
	node := kerneltest.NewNode(t)
	node.NIC("ens1")
	node.IP("addr add 172.16.1.3/24 dev ens1")
	before := cnitest.OpenFiles(t)
	n, err := Live(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l := n.first(func(l rtnl.Link) bool { return l.Name == "ens1" })
	if l == nil || n.Link(l.Index) != l || !slices.ContainsFunc(n.Addresses, func(a rtnl.Address) bool {
		return a.Index == l.Index && a.Prefix == netip.MustParsePrefix("172.16.1.3/24")
	}) {
		t.Errorf("got %+v", n)
	}
	if d, err := n.Driver("ens1"); err != nil || d.Name != "veth" || d.Version != "1.0" {
		t.Errorf("the driver of a veth is %+v, %v", d, err)
	}
	if q, err := n.QoS("ens1"); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("a veth has %s, %v", q, err)
	}
	if after := cnitest.OpenFiles(t); after != before {
		t.Errorf("%d files are open, %d were", after, before)
	}
}

// TestModelsHaveTheNamesOfTheList compares them with pci.ids, where it is installed.
func TestModelsHaveTheNamesOfTheList(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile("/usr/share/misc/pci.ids")
	if err != nil {
		t.Skip(err)
	}
	vendor, known := "", 0
	for line := range strings.Lines(string(list)) {
		switch id, name, _ := strings.Cut(strings.TrimSpace(line), "  "); {
		case strings.HasPrefix(line, "#"):
		case !strings.HasPrefix(line, "\t"):
			vendor = id
		case !strings.HasPrefix(line, "\t\t") && Model(vendor, id) != "":
			known++
			if !strings.Contains(name, Model(vendor, id)) {
				t.Errorf("%s:%s is %q, and not %s", vendor, id, name, Model(vendor, id))
			}
		}
	}
	if known < 20 {
		t.Errorf("only %d of the models are in the list", known)
	}
}
