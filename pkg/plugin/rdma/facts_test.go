// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// Indexes of the links of the tests of discovery.
const (
	r0, r1, bond, vlan, vlanOnBond = 2, 3, 4, 5, 6
)

func TestFactsFindTheDeviceOfAParent(t *testing.T) {
	t.Parallel()
	plain := [][]int32{{r0}}
	bonded := [][]int32{{bond}, {r0, r1}}
	siw := func(d *hca) *hca { d.Protocol = "iw"; return d }
	silent := func(d *hca) *hca { d.Ports[0].NetdevIndex, d.Ports[0].Netdev = 0, ""; return d }
	rxe0, rxe1 := roce(0, "rxe0", r0, "r0"), roce(1, "rxe1", r1, "r1")
	pciDevice := fstest.MapFS{
		"class/net/parent/device":                              symlink("../../../devices/0000:0b:00.0"),
		"devices/0000:0b:00.0/subsystem":                       symlink("../../bus/pci"),
		"bus/pci/devices/0000:0b:00.0/infiniband/mlx5_0/state": {},
	}
	onBond := fstest.MapFS{
		"class/net/parent/lower_r0":                            symlink("../r0"),
		"class/net/parent/lower_r1":                            symlink("../r1"),
		"class/net/r1/device":                                  symlink("../../../devices/0000:0b:00.1"),
		"devices/0000:0b:00.1/subsystem":                       symlink("../../bus/pci"),
		"class/net/r1/dev_port":                                {Data: []byte("1\n")},
		"bus/pci/devices/0000:0b:00.1/infiniband/mlx5_0/state": {},
	}
	twoPorts := silent(roce(0, "mlx5_0", 0, ""))
	twoPorts.Ports = append(twoPorts.Ports, nldev.Port{Number: 2, State: nldev.Active})
	noPorts := roce(0, "mlx5_0", 0, "")
	noPorts.Ports = nil
	oldKernel := roce(0, "rxe0", r0, "r0")
	oldKernel.Protocol = ""
	down := roce(0, "rxe0", r0, "r0")
	down.Ports[0].State = nldev.Down

	for _, c := range []struct {
		name    string
		layers  [][]int32
		devices []*hca
		sys     fstest.MapFS
		want    string // device/port and link, or what the error says
	}{
		{"a NIC", plain, []*hca{rxe1, rxe0}, nil, "rxe0/1 r0"},
		{"a NIC of none", [][]int32{{9}}, []*hca{rxe0, rxe1}, nil, "!no RDMA device belongs to it; there are: rxe0/1 on r0, rxe1/1 on r1"},
		{"a VLAN", [][]int32{{vlan}, {r0}}, []*hca{rxe0, rxe1}, nil, "rxe0/1 r0"},
		{"a bond with a device", bonded, []*hca{rxe0, rxe1, roce(2, "rxeb", bond, "bond0")}, nil, "rxeb/1 bond0"},
		{"a bond with a device that names a slave", bonded, []*hca{roce(2, "mlx5_bond_0", r1, "r1")}, nil, "mlx5_bond_0/1 r1"},
		{"a bond with a device for each slave", bonded, []*hca{rxe0, rxe1}, nil, "!want exactly one, got 2: rxe0/1 on r0, rxe1/1 on r1"},
		{"a VLAN on a bond", [][]int32{{vlanOnBond}, {bond}, {r0, r1}}, []*hca{roce(2, "mlx5_bond_0", r1, "r1")}, nil, "mlx5_bond_0/1 r1"},
		{"a NIC with another protocol too", plain, []*hca{siw(roce(7, "siw0", r0, "r0")), rxe0}, nil, "rxe0/1 r0"},
		{"a bond with another protocol", bonded, []*hca{siw(roce(7, "siw0", bond, "bond0")), rxe0}, nil, "rxe0/1 r0"},
		{"a NIC with another protocol only", plain, []*hca{siw(roce(7, "siw0", r0, "r0"))}, nil, `!"siw0/1": it speaks "iw", not RoCE`},
		{"a NIC with two devices", plain, []*hca{rxe0, roce(7, "mlx5_0", r0, "r0")}, nil, "!got 2: rxe0/1 on r0, mlx5_0/1 on r0"},
		{"a driver that names no interface", plain, []*hca{silent(roce(0, "mlx5_0", 0, "")), rxe1}, pciDevice, "mlx5_0/1 parent"},
		{"a bond of it, of a device with two ports", bonded, []*hca{twoPorts}, onBond, "mlx5_0/2 r1"},
		{"an interface behind the last port", bonded, []*hca{twoPorts}, merge(onBond, fstest.MapFS{
			"class/net/r1/dev_port": {Data: []byte("2\n")},
		}), "!no RDMA device belongs to it"},
		{"a bond of two interfaces of one port's hardware", bonded, []*hca{silent(roce(0, "mlx5_0", 0, ""))}, merge(onBond, fstest.MapFS{
			"class/net/r0/device": symlink("../../../devices/0000:0b:00.1"),
		}), "mlx5_0/1 r0"},
		{"a bond of two ports, with two interfaces of the first", bonded, []*hca{twoPorts}, merge(onBond, fstest.MapFS{
			"class/net/parent/lower_r2": symlink("../r2"),
			"class/net/r0/device":       symlink("../../../devices/0000:0b:00.1"),
			"class/net/r0/dev_port":     {Data: []byte("0\n")},
			"class/net/r2/device":       symlink("../../../devices/0000:0b:00.1"),
			"class/net/r2/dev_port":     {Data: []byte("0\n")},
		}), "!want exactly one, got 2: mlx5_0/1 on r0, mlx5_0/2 on r1"},
		{"an interface of it that does not tell its port", bonded, []*hca{twoPorts}, merge(onBond, fstest.MapFS{
			"class/net/r1/dev_port": {Data: []byte("?\n")},
		}), "!no RDMA device belongs to it"},
		{"a device without ports", plain, []*hca{noPorts}, pciDevice, "!no RDMA device belongs to it"},
		{"a device that another namespace has", plain, nil, pciDevice, "!no RDMA device belongs to it; there are: none"},
		{
			"a kernel that does not tell protocols", plain,
			[]*hca{oldKernel},
			merge(sysfs("rxe0", ""), fstest.MapFS{"class/infiniband/rxe0/ports/1/link_layer": {Data: []byte("Ethernet\n")}}),
			"rxe0/1 r0",
		},
		{
			"a port with RoCE off", plain,
			[]*hca{oldKernel},
			fstest.MapFS{"class/infiniband/rxe0/ports/1/link_layer": {Data: []byte("Ethernet\n")}},
			"!RoCE is off: the port has no GID table",
		},
		{
			"InfiniBand of such a kernel", plain,
			[]*hca{oldKernel},
			merge(sysfs("rxe0", ""), fstest.MapFS{"class/infiniband/rxe0/ports/1/link_layer": {Data: []byte("InfiniBand\n")}}),
			"!its link layer is InfiniBand",
		},
		{
			"a port of such a kernel that does not know what it is", plain,
			[]*hca{oldKernel},
			merge(sysfs("rxe0", ""), fstest.MapFS{"class/infiniband/rxe0/ports/1/link_layer": {Data: []byte("Unknown\n")}}),
			"!its link layer is Unknown",
		},
		{"a port of such a kernel that says nothing", plain, []*hca{oldKernel}, sysfs("rxe0", ""), "!its link layer is "},
		{"a port that is down", plain, []*hca{down}, nil, "!its state is DOWN, want ACTIVE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := (&node{devices: c.devices}).subsystem(t, c.sys)
			got, err := s.Facts(t.Context(), conf.RDMA{Mode: conf.RDMAAuto}, plan.Link{Name: "parent", Layers: c.layers}, false)
			part, fails := strings.CutPrefix(c.want, "!")
			text := portName(got.Device) + " " + string(got.Device.Link)
			switch {
			case fails && (cnierr.CodeOf(err) != cnierr.NoRDMA || !strings.Contains(err.Error(), part)):
				t.Errorf("got %v, want 103 with %q", err, part)
			case fails && errors.Is(err, ErrNoDevice) != strings.HasPrefix(part, "no RDMA device"):
				t.Errorf("%v: ErrNoDevice is for those that may be in a pod", err)
			case !fails && (err != nil || text != c.want):
				t.Errorf("got %s, %v, want %s", text, err, c.want)
			}
		})
	}
}

// What a port speaks is not known without the sysfs of its namespace, if the kernel does not
// tell it.
func TestAPortOfWhichNothingIsKnownIsNotUsed(t *testing.T) {
	t.Parallel()
	d := roce(0, "rxe0", r0, "r0")
	d.Protocol, d.in = "", plan.Pod
	s := (&node{exclusive: true, devices: []*hca{d}}).subsystem(t, fstest.MapFS{})
	if err := s.Do(t.Context(), plan.InPod(plan.Port{Device: d.device()})[0]); cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("got %v, want code %d", err, cnierr.IO)
	}
}

// TestAnotherProtocolHasTheHintOfItsVendor: mlxconfig is for NVIDIA's NICs alone.
func TestAnotherProtocolHasTheHintOfItsVendor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ vendor, protocol, want string }{
		{"0x15b3", "ib", "mlxconfig -d 0000:0b:00.0 set LINK_TYPE_P1=2"},
		{"0x8086", "iw", "devlink dev param set pci/0000:0b:00.0 name enable_iwarp value false"},
		{"0x1ded", "iw", "eRDMA speaks RoCE only with"},
		{"0x1425", "iw", "cannot be switched to RoCE"}, // cxgb4
		{"0x1077", "ib", "cannot be switched to RoCE"}, // qib
		{"0x15b3", "usnic", "cannot be switched to RoCE"},
		{"0x1ded", "ib", "cannot be switched to RoCE"},
		{"0x8086", "opa", "cannot be switched to RoCE"},
		{"0x15b3", "", "mlxconfig -d 0000:0b:00.0 set LINK_TYPE_P1=2"}, // a kernel that does not tell protocols
		{"0x1077", "", "cannot be switched to RoCE"},
	} {
		d := roce(7, "dev0", r0, "r0")
		d.Protocol = c.protocol
		s := (&node{devices: []*hca{d}}).subsystem(t, fstest.MapFS{
			"class/infiniband/dev0": symlink("../../devices/pci0000:00/0000:0b:00.0/infiniband/dev0"),
			"devices/pci0000:00/0000:0b:00.0/infiniband/dev0/ports/1/gids/0":     {},
			"devices/pci0000:00/0000:0b:00.0/infiniband/dev0/ports/1/link_layer": {Data: []byte("InfiniBand\n")},
			"bus/pci/devices/0000:0b:00.0/vendor":                                {Data: []byte(c.vendor + "\n")},
		})
		_, err := s.Facts(t.Context(), conf.RDMA{Mode: conf.RDMAAuto}, plan.Link{Name: "parent", Layers: [][]int32{{r0}}}, false)
		var verdict *cnierr.Error
		if !errors.As(err, &verdict) || verdict.Code != cnierr.NoRDMA || !strings.Contains(verdict.Hint, c.want) {
			t.Errorf("%s of %s: got %+v, want %q", c.protocol, c.vendor, verdict, c.want)
		}
	}
}

func TestFactsHaveAllThatADDNeeds(t *testing.T) {
	t.Parallel()
	sys := fstest.MapFS{
		"class/infiniband/mlx5_0/device": symlink("../../../devices/0000:0b:00.0"),
		"devices/0000:0b:00.0/subsystem": symlink("../../bus/pci"),
	}
	want := plan.RDMA{Device: plan.RDMADevice{Name: "mlx5_0", Index: 7, GUID: "5054:00ff:fe00:0007", Port: 1, Link: "r0", PCI: "0000:0b:00.0"}, Function: "0000:0b:00.0"}
	for _, exclusive := range []bool{false, true} { // where a move loses more
		n := &node{exclusive: exclusive, devices: []*hca{roce(7, "mlx5_0", r0, "r0")}}
		n.withSettings(t, "mlx5_0", "104", "96")
		if exclusive {
			sys = merge(sys, verbs("mlx5_0"), fstest.MapFS{"class/infiniband/mlx5_0/tc/1/traffic_class": {Data: []byte("96\n")}})
			want.Exclusive, want.UVerbs, want.TOS, want.TrafficClass = true, "uverbs-mlx5_0", octet(104), octet(96)
		}
		got, err := n.subsystem(t, sys).Facts(t.Context(), conf.RDMA{}, plan.Link{Layers: [][]int32{{r0}}}, false)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v (-want +got)\n%s", err, diff)
		}
	}
}

// TestFactsHaveTheFunctionBelowADevice has devices that are not on the PCI bus
// themselves.
func TestFactsHaveTheFunctionBelowADevice(t *testing.T) {
	t.Parallel()
	sys := fstest.MapFS{
		"class/infiniband/rxe0":   symlink("../../devices/virtual/infiniband/rxe0"),
		"class/infiniband/rxe1":   symlink("../../devices/virtual/infiniband/rxe1"),
		"class/infiniband/mlx5_6": symlink("../../devices/pci0000:00/0000:00:01.0/0000:0a:00.1/mlx5_core.sf.4/infiniband/mlx5_6"),
		"class/net/r0":            symlink("../../devices/pci0000:00/10000:03:00.0/virtio2/net/r0"),
		"class/net/bond0":         symlink("../../devices/virtual/net/bond0"),
	}
	for want, d := range map[string]*hca{
		"rxe0 10000:03:00.0":  roce(0, "rxe0", r0, "r0"),
		"rxe1 ":               roce(1, "rxe1", bond, "bond0"),
		"mlx5_6 0000:0a:00.1": roce(2, "mlx5_6", r0, "eth0"),
		"mlx5_7 ":             roce(3, "mlx5_7", r0, ""), // sysfs has neither
	} {
		s := (&node{devices: []*hca{d}}).subsystem(t, sys)
		got, err := s.Facts(t.Context(), conf.RDMA{}, plan.Link{Layers: [][]int32{{d.Ports[0].NetdevIndex}}}, false)
		if have := got.Device.Name + " " + got.Function; err != nil || have != want || got.Device.PCI != "" {
			t.Errorf("got %s, %+v, %v, want %s", have, got, err, want)
		}
	}
}

func TestModeMustFitTheRequest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		want      conf.RDMAMode
		exclusive bool
		hint      string // "": it fits
	}{
		{conf.RDMAAuto, false, ""},
		{conf.RDMAAuto, true, ""},
		{conf.RDMAShared, false, ""},
		{conf.RDMAExclusive, true, ""},
		{conf.RDMAShared, true, "options ib_core netns_mode=1"},
		{conf.RDMAExclusive, false, "options ib_core netns_mode=0"},
	} {
		s := (&node{exclusive: c.exclusive, devices: []*hca{roce(0, "rxe0", r0, "r0")}}).subsystem(t, fstest.MapFS{})
		got, err := s.Facts(t.Context(), conf.RDMA{Mode: c.want}, plan.Link{Layers: [][]int32{{r0}}}, false)
		if mode := s.Mode(t.Context(), c.want); cnierr.CodeOf(mode) != cnierr.CodeOf(err) || hintOf(mode) != hintOf(err) {
			t.Errorf("%s, exclusive %t: the mode alone: got %v", c.want, c.exclusive, mode)
		}
		switch {
		case c.hint == "" && (err != nil || got.Exclusive != c.exclusive):
			t.Errorf("%s, exclusive %t: got %+v, %v", c.want, c.exclusive, got, err)
		case c.hint != "" && (cnierr.CodeOf(err) != cnierr.RDMAMode || !strings.Contains(hintOf(err), c.hint) ||
			!strings.Contains(hintOf(err), "rdma system set netns "+string(c.want))):
			t.Errorf("%s, exclusive %t: got %v, hint %q", c.want, c.exclusive, err, hintOf(err))
		}
	}
}

// TestErrorsOfTheKernelHaveTheirCodesAndHints has those with a code, too, which stay as they are.
func TestErrorsOfTheKernelHaveTheirCodesAndHints(t *testing.T) {
	t.Parallel()
	known := cnierr.New(cnierr.NoGID, "x", "y", "z", "known")
	for _, c := range []struct {
		err  error
		code cnierr.Code
		hint string
		text string
	}{
		{unix.EPERM, cnierr.IO, needsRoot, `move "mlx5_0": operation not permitted`},
		{unix.EACCES, cnierr.IO, needsRoot, `move "mlx5_0": permission denied`},
		{unix.EIO, cnierr.IO, "", `move "mlx5_0": input/output error`},
		{unix.ENOMEM, cnierr.TryAgain, "load of the node", `move "mlx5_0": cannot allocate memory`},
		{unix.ENOBUFS, cnierr.TryAgain, "load of the node", `move "mlx5_0": no buffer space available`},
		{unix.EAGAIN, cnierr.TryAgain, "load of the node", `move "mlx5_0": resource temporarily unavailable`},
		{context.Canceled, cnierr.TryAgain, "load of the node", `move "mlx5_0": context canceled`},
		{context.DeadlineExceeded, cnierr.TryAgain, "load of the node", `move "mlx5_0": context deadline exceeded`},
		{nlsock.ErrInterrupted, cnierr.TryAgain, "load of the node", `move "mlx5_0": ` + nlsock.ErrInterrupted.Error()},
		{unix.EPROTONOSUPPORT, cnierr.NoRDMA, discover.LoadDriver, `move "mlx5_0": the kernel has no RDMA: no module of an RDMA NIC is loaded`},
		{fmt.Errorf("%w beside it", known), cnierr.NoGID, "z", `x "y": known beside it`},
	} {
		err := classify("move", "mlx5_0", c.err)
		if cnierr.CodeOf(err) != c.code || !errors.Is(err, c.err) || err.Error() != c.text || !strings.Contains(hintOf(err), c.hint) || c.hint == "" && hintOf(err) != "" {
			t.Errorf("%v: got %d, %v, hint %q", c.err, cnierr.CodeOf(err), err, hintOf(err))
		}
	}
	if err := classify("move", "mlx5_0", nil); err != nil {
		t.Errorf("no error is %v", err)
	}
}

func TestFactsOfAKernelWithoutRDMA(t *testing.T) {
	t.Parallel()
	s := (&node{noRDMA: true}).subsystem(t, fstest.MapFS{})
	_, err := s.Facts(t.Context(), conf.RDMA{Mode: conf.RDMAAuto}, plan.Link{Name: "r0"}, false)
	if cnierr.CodeOf(err) != cnierr.NoRDMA || !errors.Is(err, ErrNoDevice) || !strings.Contains(hintOf(err), "mode") {
		t.Errorf("got %v, hint %q", err, hintOf(err))
	}
}

// TestDeviceOfAParentInThePodIsFound is a virtual function.
// Another plugin moved its interface into the pod. Its RDMA device is still in the host, or there, too.
func TestDeviceOfAParentInThePodIsFound(t *testing.T) {
	t.Parallel()
	const device, pci = "class/infiniband/mlx5_3/device", "bus/pci/devices/0000:0b:00.2/infiniband/mlx5_3"
	host := fstest.MapFS{
		pci + "/state":                   {},
		device:                           symlink("../../../devices/0000:0b:00.2"),
		"devices/0000:0b:00.2/subsystem": symlink("../../bus/pci"),
	}
	for in, sys := range map[plan.Place]fs.FS{plan.Host: host, plan.Pod: fstest.MapFS{}} {
		n := &node{exclusive: true, devices: []*hca{roce(0, "mlx5_0", r0, "r0"), roce(3, "mlx5_3", 0, "")}}
		n.devices[1].in = in
		n.withSettings(t, "mlx5_3", "0", "96")
		link(t, filepath.Join(n.files, "sysfs/class/net/vf0/device"), "../../../devices/0000:0b:00.2")
		link(t, filepath.Join(n.files, "sysfs/devices/0000:0b:00.2/subsystem"), "../../bus/pci")
		if in == plan.Pod {
			link(t, filepath.Join(n.files, "sysfs", device), "../../../devices/0000:0b:00.2")
			link(t, filepath.Join(n.files, "sysfs", pci), "mlx5_3")
		}
		got, err := n.subsystem(t, sys).Facts(t.Context(), conf.RDMA{Mode: conf.RDMAAuto}, plan.Link{Name: "vf0", Layers: [][]int32{{r0}}}, true)
		if err != nil || got.Device.Name != "mlx5_3" || got.Device.PCI != "0000:0b:00.2" {
			t.Errorf("namespace %d: got %+v, %v, want mlx5_3, whatever has the index of vf0 in the host", in, got.Device, err)
		}
		if class := got.TrafficClass; (class != nil) != (in == plan.Pod) || class != nil && *class != 96 {
			t.Errorf("namespace %d: got the traffic class %v, which only the pod's sysfs has", in, class)
		}
	}
}

// TestDeviceIDNamesTheHardware has several devices, and a link that none of
// them tells to be its own.
func TestDeviceIDNamesTheHardware(t *testing.T) {
	t.Parallel()
	sys := fstest.MapFS{
		"bus/pci/devices/10000:0b:00.2/infiniband/mlx5_3/state":        {},
		"bus/pci/devices/0000:0c:00.0/infiniband/mlx5_4/state":         {},
		"bus/pci/devices/0000:0c:00.0/infiniband/mlx5_5/state":         {},
		"bus/pci/devices/0000:0d:00.0/net/eth1/mtu":                    {},
		"bus/auxiliary/devices/mlx5_core.sf.4/infiniband/mlx5_6/state": {},
		"class/infiniband/mlx5_6/device":                               symlink("../../../devices/mlx5_core.sf.4"),
		"devices/mlx5_core.sf.4/subsystem":                             symlink("../../bus/auxiliary"),
	}
	var devices []*hca
	for i := range 7 {
		devices = append(devices, roce(uint32(i), fmt.Sprintf("mlx5_%d", i), 0, ""))
	}
	devices[5].Ports[0].NetdevIndex = r1
	for _, c := range []struct {
		id     string
		layers [][]int32
		want   string // or what the error says
	}{
		{"10000:0b:00.2", nil, "mlx5_3"},
		{"mlx5_core.sf.4", nil, "mlx5_6"},
		{"0000:0c:00.0", [][]int32{{r1}}, "mlx5_5"},
		{"0000:0c:00.0", nil, "want exactly one, got 2: mlx5_4/1, mlx5_5/1"},
		{"0000:0d:00.0", [][]int32{{r1}}, "mlx5_5"}, // as of a bond: its device is another function's
		{"0000:0d:00.0", nil, "no RDMA device"},
	} {
		s := (&node{devices: devices}).subsystem(t, sys)
		got, err := s.Facts(t.Context(), conf.RDMA{Mode: conf.RDMAAuto}, plan.Link{Name: "net1", Device: c.id, Layers: c.layers}, false)
		if err != nil && !strings.Contains(err.Error(), c.want) || err == nil && got.Device.Name != c.want {
			t.Errorf("%s: got %+v, %v, want %s", c.id, got.Device, err, c.want)
		}
		if c.want == "mlx5_6" && (got.Device.Auxiliary != c.id || got.Device.PCI != "") {
			t.Errorf("%s is told as %+v", c.id, got.Device)
		}
	}
}

// Facts of the rails of an attachment share an answer of the kernel, until something is done.
func TestFactsAreAskedForAgainAfterAnOperation(t *testing.T) {
	t.Parallel()
	for name, verb := range map[string]func(*Subsystem, context.Context, plan.Op) error{"do": (*Subsystem).Do, "undo": (*Subsystem).Undo} {
		n, op := movable()
		s := n.subsystem(t, verbs("mlx5_0", "mlx5_1"))
		facts := func() error {
			_, err := s.Facts(t.Context(), conf.RDMA{}, plan.Link{Layers: [][]int32{{r1}}}, false)
			return err
		}
		must(t, facts())
		n.devices[1].Ports[0].State = nldev.Down
		if err := facts(); err != nil {
			t.Errorf("%s: asked again before anything was done: %v", name, err)
		}
		must(t, verb(s, t.Context(), plan.OnHost(op)[0]))
		if err := facts(); cnierr.CodeOf(err) != cnierr.NoRDMA || !strings.Contains(err.Error(), "DOWN") {
			t.Errorf("%s: got %v, want that the port is down", name, err)
		}
	}
}

func link(t *testing.T, name, target string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(name), 0o700))
	must(t, os.Symlink(target, name))
}

func TestErrorsListOnlySomeDevices(t *testing.T) {
	t.Parallel()
	var devices []*hca
	for i := range 40 {
		devices = append(devices, roce(uint32(i), fmt.Sprintf("mlx5_%d", i), int32(100+i), fmt.Sprintf("vf%d", i)))
	}
	s := (&node{devices: devices}).subsystem(t, fstest.MapFS{})
	_, err := s.Facts(t.Context(), conf.RDMA{Mode: conf.RDMAAuto}, plan.Link{Name: "r0", Layers: [][]int32{{r0}}}, false)
	if err == nil || !strings.HasSuffix(err.Error(), "mlx5_11/1 on vf11, and 28 more") {
		t.Errorf("got %v", err)
	}
}
