// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package discover

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// device returns a device with a port for each network interface, "" for one that names none.
func device(name, protocol string, index int32, netdevs ...string) nldev.Device {
	d := nldev.Device{Name: name, Protocol: protocol}
	for i, netdev := range netdevs {
		p := nldev.Port{Number: uint32(i) + 1, State: nldev.Active, Netdev: netdev}
		if netdev != "" {
			p.NetdevIndex = index + int32(i)
		}
		d.Ports = append(d.Ports, p)
	}
	return d
}

func words(ms []Match) string { return strings.Join(texts(ms), " ") }

// tree returns a sysfs: a target with "->" is a link, else the text of a file.
func tree(files map[string]string) fstest.MapFS {
	out := fstest.MapFS{}
	for name, text := range files {
		if target, ok := strings.CutPrefix(text, "->"); ok {
			out[name] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink}
		} else {
			out[name] = &fstest.MapFile{Data: []byte(text + "\n")}
		}
	}
	return out
}

func TestThePortOfAParentIsInItsFirstLayerWithAny(t *testing.T) {
	t.Parallel()
	mlx0, mlx1 := device("mlx5_0", "roce", 2, "r0"), device("mlx4_0", "roce", 3, "r1", "r2")
	bond := device("mlx5_bond_0", "roce", 9, "bond0")
	siw, old := device("siw0", "iw", 2, "r0"), device("rxe0", "", 2, "r0")
	lone := Match{Device: nldev.Device{Name: "lone"}, Port: nldev.Port{Number: 3}, Link: "parent"}
	for name, c := range map[string]struct {
		devices []nldev.Device
		layers  [][]int32
		related []Match
		want    string // "device/port link", or what the error says
	}{
		"the second port":                     {[]nldev.Device{mlx0, mlx1}, [][]int32{{4}}, nil, "mlx4_0/2 r2"},
		"a bond before its slaves":            {[]nldev.Device{mlx0, bond}, [][]int32{{9}, {2, 3}}, nil, "mlx5_bond_0/1 bond0"},
		"a slave of a bond without a device":  {[]nldev.Device{mlx0, mlx1}, [][]int32{{9}, {2}}, nil, "mlx5_0/1 r0"},
		"RoCE before another protocol":        {[]nldev.Device{siw, mlx0}, [][]int32{{2}}, nil, "mlx5_0/1 r0"},
		"RoCE below another protocol":         {[]nldev.Device{siw, mlx1}, [][]int32{{2}, {3}}, nil, "mlx4_0/1 r1"},
		"another protocol alone":              {[]nldev.Device{siw}, [][]int32{{2}}, []Match{lone}, "siw0/1 r0"},
		"a kernel that tells no protocol":     {[]nldev.Device{siw, old}, [][]int32{{2}}, nil, "rxe0/1 r0"},
		"the hardware, if no port names it":   {[]nldev.Device{mlx0}, [][]int32{{7}}, []Match{lone}, "lone/3 parent"},
		"the port before the hardware":        {[]nldev.Device{mlx0}, [][]int32{{2}}, []Match{lone}, "mlx5_0/1 r0"},
		"several in a layer":                  {[]nldev.Device{mlx0, mlx1}, [][]int32{{2, 3}}, nil, "want exactly one, got 2: mlx5_0/1 on r0, mlx4_0/1 on r1"},
		"several on the hardware":             {nil, nil, []Match{lone, {Device: mlx0, Port: nldev.Port{Number: 1}}}, "want exactly one, got 2: lone/3 on parent, mlx5_0/1"},
		"none, and others":                    {[]nldev.Device{mlx0, device("irdma0", "roce", 0, "")}, [][]int32{{7}}, nil, "no RDMA device belongs to it; there are: mlx5_0/1 on r0, irdma0/1"},
		"none, and a port without a link":     {[]nldev.Device{device("irdma0", "roce", 0, "")}, [][]int32{{7}}, nil, "no RDMA device belongs to it; there are: irdma0/1"},
		"none, and no others":                 {nil, [][]int32{{7}}, nil, "no RDMA device belongs to it; there are: none"},
		"the layers of another namespace":     {[]nldev.Device{mlx0}, nil, nil, "no RDMA device belongs to it; there are: mlx5_0/1 on r0"},
		"a device without ports is no device": {[]nldev.Device{{Name: "x"}}, [][]int32{{0}}, nil, "no RDMA device belongs to it; there are: none"},
	} {
		asked := 0
		before := words(Ports(c.devices))
		m, err := Port(c.devices, plan.Link{Name: "parent", Layers: c.layers}, func() []Match { asked++; return c.related })
		if err == nil && m.String()+" "+string(m.Link) != c.want || asked > 1 || words(Ports(c.devices)) != before {
			t.Errorf("%s: got %s %s, want %s, and the hardware was asked for %d times", name, m, m.Link, c.want, asked)
		}
		if err == nil {
			continue
		}
		if cnierr.CodeOf(err) != cnierr.NoRDMA || err.Error() != `find RDMA device of "parent": `+c.want || errors.Is(err, nldev.ErrNoDevice) != strings.HasPrefix(c.want, "no ") {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
}

// TestWhatIsRelatedIsOnTheHardwareOfTheLinksBelow has a NIC, one with two ports, a VLAN on a bond of
// its interfaces, and hardware on the auxiliary bus, of which the device is in another namespace.
func TestWhatIsRelatedIsOnTheHardwareOfTheLinksBelow(t *testing.T) {
	t.Parallel()
	links := tree(map[string]string{
		"class/net/r0/device": "->../../../devices/0000:0b:00.0", "devices/0000:0b:00.0/subsystem": "->../../bus/pci",
		"class/net/p0/device": "->../../../devices/0000:0c:00.0", "devices/0000:0c:00.0/subsystem": "->../../bus/pci", "class/net/p0/dev_port": "0",
		"class/net/p1/device": "->../../../devices/0000:0c:00.0", "class/net/p1/dev_port": "1",
		"class/net/p2/device": "->../../../devices/0000:0c:00.0", "class/net/p2/dev_port": "2",
		"class/net/bond0/lower_p1": "->../p1", "class/net/bond0/lower_p0": "->../p0", "class/net/vlan0/lower_bond0": "->../bond0", "class/net/bond0/upper_vlan0": "->../vlan0",
		"class/net/twice/lower_a": "->../a", "class/net/twice/lower_r0": "->../r0",
		"class/net/a/device":   "->../../../devices/0000:0b:00.0",
		"class/net/sf0/device": "->../../../devices/mlx5_core.sf.4", "devices/mlx5_core.sf.4/subsystem": "->../../bus/auxiliary",
		"class/net/usb0/device":     "->../../../devices/1-1", // no subsystem
		"class/net/ring/lower_ring": "->../ring", "class/net/ring/r0": "no link below it",
		"class/net/q0/device": "->../../../devices/0000:0c:00.0", "class/net/x0/device": "->../../../devices/0000:0c:00.0", "class/net/x0/dev_port": "0",
		"class/net/three/lower_p0": "->../p0", "class/net/three/lower_r0": "->../r0", "class/net/three/lower_x0": "->../x0",
	})
	all := tree(map[string]string{
		"bus/pci/devices/0000:0b:00.0/infiniband/mlx5_0/state":         "",
		"bus/pci/devices/0000:0c:00.0/infiniband/mlx4_0/state":         "",
		"bus/auxiliary/devices/mlx5_core.sf.4/infiniband/mlx5_6/state": "",
		"bus/auxiliary/devices/mlx5_core.sf.4/infiniband/mlx5_7/state": "",
	})
	devices := []nldev.Device{
		device("mlx5_0", "roce", 0, ""), device("mlx4_0", "roce", 0, "", ""), device("mlx5_6", "roce", 0, ""), {Name: "mlx5_7"},
	}
	for link, want := range map[conf.LinkName]string{
		"r0": "mlx5_0/1 on r0", "p0": "mlx4_0/1 on p0", "p1": "mlx4_0/2 on p1", "p2": "", "bond0": "mlx4_0/1 on p0 mlx4_0/2 on p1", "vlan0": "mlx4_0/1 on p0 mlx4_0/2 on p1",
		"twice": "mlx5_0/1 on a", "sf0": "mlx5_6/1 on sf0", "usb0": "", "ring": "", "q0": "", "three": "mlx4_0/1 on p0 mlx5_0/1 on r0", "nosuch": "",
	} {
		if got := words(Related(devices, link, links, all)); got != want {
			t.Errorf("%s: got %q, want %q", link, got, want)
		}
	}
	for hardware, want := range map[string]string{"0000:0b:00.0": "mlx5_0", "mlx5_core.sf.4": "mlx5_6 mlx5_7", "0000:0d:00.0": ""} {
		var got []string
		for _, d := range On(devices, hardware, all) {
			got = append(got, d.Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("on %s: got %q, want %q", hardware, got, want)
		}
	}
	if len(devices) != 4 || devices[0].Name != "mlx5_0" || devices[1].Name != "mlx4_0" {
		t.Errorf("the devices were changed: %+v", devices)
	}
}

func TestFilesOfSysfsAreRead(t *testing.T) {
	t.Parallel()
	sys := tree(map[string]string{
		"class/infiniband_verbs/uverbs0/ibdev": "mlx5_1", "class/infiniband_verbs/uverbs1/ibdev": "mlx5_0", "class/infiniband_verbs/abi_version": "6",
		"class/infiniband/mlx5_0":                   "->../../devices/pci0000:00/0000:00:03.0/0000:0b:00.2/infiniband/mlx5_0",
		"class/infiniband/rxe0":                     "->../../devices/virtual/infiniband/rxe0",
		"class/net/ens1":                            "->../../devices/pci0000:00/0000:00:04.0/virtio2/net/ens1",
		"class/net/lo":                              "->../../devices/virtual/net/lo",
		"class/infiniband/mlx5_6/device":            "->../../../mlx5_core.sf.4",
		"class/infiniband/mlx5_6/node_guid":         " 1 ",
		"class/infiniband/half/device":              "->../../../none",
		"class/infiniband/mlx5_core.sf.4/subsystem": "",
		"mlx5_core.sf.4/subsystem":                  "->../bus/auxiliary",
	})
	want := []File{
		{Name: "uverbs0", Device: "mlx5_1", Dir: "class/infiniband_verbs/uverbs0"}, {Name: "uverbs1", Device: "mlx5_0", Dir: "class/infiniband_verbs/uverbs1"},
	}
	if diff := cmp.Diff(want, Files(sys)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, c := range []struct{ device, link, want string }{
		{"mlx5_0", "ens1", "0000:0b:00.2"}, {"rxe0", "ens1", "0000:00:04.0"}, {"rxe0", "lo", ""}, {"nosuch", "ens1", "0000:00:04.0"}, {"nosuch", "", ""},
	} {
		if got := Function(sys, c.device, conf.LinkName(c.link)); got != c.want {
			t.Errorf("%s and %s: got the function %q, want %q", c.device, c.link, got, c.want)
		}
	}
	for device, want := range map[string]string{"mlx5_6": "auxiliary mlx5_core.sf.4", "half": " ", "rxe0": " "} {
		if bus, name := Hardware(sys, device); bus+" "+name != want {
			t.Errorf("%s: got the hardware %q of %q, want %q", device, name, bus, want)
		}
	}
	if is, none := Text(sys, "class/infiniband/mlx5_6/node_guid"), Text(sys, "nosuch"); is != "1" || none != "" {
		t.Errorf("got the texts %q and %q", is, none)
	}
}

func TestWhatMakesAPortSpeakRoCEIsSaidForTheNICsThatCan(t *testing.T) {
	t.Parallel()
	const never = "this one cannot be switched to RoCE"
	for _, c := range []struct{ vendor, protocol, want string }{
		{"0x15b3", "ib", "switch the port to Ethernet: mlxconfig -d 0000:0b:00.2 set LINK_TYPE_P2=2, then mlxfwreset -d 0000:0b:00.2 reset; "},
		{"0x15b3", "iw", never},
		{"0x8086", "ib", never},
		{"0x1ded", "ib", never},
		{"0x1077", "iw", never},
		{"0x8086", "iw", "E810: devlink dev param set pci/0000:0b:00.2 name enable_iwarp value false cmode runtime"},
		{"0x1ded", "iw", "eRDMA speaks RoCE only with"},
	} {
		sys := tree(map[string]string{
			"class/infiniband/dev0":               "->../../devices/pci0000:00/0000:0b:00.2/infiniband/dev0",
			"bus/pci/devices/0000:0b:00.2/vendor": c.vendor,
		})
		m := Match{Device: nldev.Device{Name: "dev0", Protocol: c.protocol}, Port: nldev.Port{Number: 2}, Link: "ens1"}
		if got := ToRoCE(m, sys); !strings.Contains(got, c.want) {
			t.Errorf("%s of %s: got %s, want %s", c.protocol, c.vendor, got, c.want)
		}
	}
	for protocol, want := range map[string]bool{"": false, "roce": false, "iw": true, "ib": true, "opa": true} {
		if got := Other(nldev.Device{Protocol: protocol}); got != want {
			t.Errorf("%q is another protocol than RoCE: %t", protocol, got)
		}
	}
}
