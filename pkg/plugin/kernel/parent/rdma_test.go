// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package parent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// noRDMA is a kernel without RDMA.
func noRDMA(context.Context) (nldev.System, error) {
	return nldev.System{}, unix.EPROTONOSUPPORT
}

// gpuRDMA has the RDMA devices of gpuNode: one port, two ports, a bond, and a
// device with a driver that names no interface. A pod has mlx5_9.
func gpuRDMA(context.Context) (nldev.System, error) {
	port := func(n uint32, index int32) nldev.Port {
		names := map[int32]string{1: "enp11s0f0np0", 7: "bondport"}
		return nldev.Port{Number: n, NetdevIndex: index, Netdev: names[index]}
	}
	return nldev.System{Devices: []nldev.Device{
		{Name: "mlx5_0", Ports: []nldev.Port{port(1, 1)}},
		{Name: "mlx4_0", Ports: []nldev.Port{port(1, 2), port(2, 3)}},
		{Name: "mlx5_bond_0", Ports: []nldev.Port{port(1, 7)}},
		{Name: "irdma0", Ports: []nldev.Port{port(1, 0)}},
	}}, nil
}

func TestMasterIsSelectedByItsRDMADevice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		p    conf.Parent
		want string // a name, or what the error says
	}{
		{conf.Parent{RDMA: "mlx5_0"}, "enp11s0f0np0"},
		{conf.Parent{RDMA: "mlx4_0"}, "!got 2: enp11s0f0v0, enp11s0f1np1"},
		{conf.Parent{RDMA: "mlx4_0", IfNames: []string{"*v0"}}, "enp11s0f0v0"},
		{conf.Parent{RDMA: "mlx5_0", IfNames: []string{"*v0"}}, "!left out: enp11s0f0np0 (ifNames"},
		{conf.Parent{RDMA: "mlx5_bond_0"}, "bond0"}, // the device names a slave, which cannot carry a macvlan
		{conf.Parent{RDMA: "irdma0"}, "eno1"},
		{conf.Parent{RDMA: "mlx5_9"}, "enp11s0f0s88"},
		{conf.Parent{RDMA: "rxe0"}, "!no RDMA device of this name has a network interface here"},
		{conf.Parent{RDMA: "nosuch"}, "!there are: mlx5_0 (enp11s0f0np0), mlx5_bond_0 (bondport)"},
	} {
		h, addrs, sys := gpuNode()
		for file, text := range map[string]string{
			"class/infiniband_verbs/uverbs0/ibdev":                   "irdma0\n",
			"class/infiniband_verbs/uverbs0/device/net/eno1/mtu":     "",
			"class/infiniband_verbs/uverbs1/ibdev":                   "mlx5_9\n",
			"class/infiniband_verbs/uverbs1/device/net/enp11s0f0s88": "",
			"class/infiniband_verbs/uverbs2/ibdev":                   "rxe0\n",
		} {
			sys[file] = &fstest.MapFile{Data: []byte(text)}
		}
		l, err := selectOne(t.Context(), Place{h, addrs, gpuRDMA, sys}, conf.Request{Rails: []conf.Rail{{Parent: c.p}}})
		part, fails := strings.CutPrefix(c.want, "!")
		switch {
		case fails && (err == nil || !strings.Contains(err.Error(), part)):
			t.Errorf("%+v: got %q, %v, want an error with %q", c.p, l.Name, err, part)
		case !fails && (err != nil || string(l.Name) != c.want):
			t.Errorf("%+v: got %q, %v, want %q", c.p, l.Name, err, c.want)
		}
	}
}

func TestSelectingByRDMADeviceOnANodeWithoutRDMA(t *testing.T) {
	t.Parallel()
	h, addrs, sys := gpuNode()
	_, err := selectOne(t.Context(), Place{h, addrs, noRDMA, sys}, conf.Request{Rails: []conf.Rail{{Parent: conf.Parent{RDMA: "mlx5_0"}}}})
	wantError(t, err, cnierr.NoRDMA, "rdma link show")
	if !errors.Is(err, nldev.ErrNoDevice) {
		t.Errorf("%v is not nldev.ErrNoDevice", err)
	}
}

// silent is a namespace that may not be asked for its links.
type silent struct{ host }

func (silent) Links(context.Context) ([]rtnl.Link, error) { return nil, errors.New("asked for links") }

func (h host) named(t *testing.T, name string) rtnl.Link {
	t.Helper()
	n := h.LinksByName(t.Context(), name)[0]
	if n.Err != nil {
		t.Fatal(n.Err)
	}
	return n.Link
}

func TestLayersGoDownToTheNICs(t *testing.T) {
	t.Parallel()
	lower := func(i int32) rtnl.Lower { return rtnl.Lower{Index: i, NSID: rtnl.NoNSID} }
	h := host{
		{Name: "none"},
		{Name: "r0", SlaveKind: "bond", Master: 3},
		{Name: "r1", SlaveKind: "bond", Master: 3},
		{Name: "bond0", Kind: "bond", Lower: lower(0)},
		{Name: "bond0.100", Kind: "vlan", Lower: lower(3)},
		{Name: "mac0", Kind: "macvlan", Lower: lower(4)},
		{Name: "far", Kind: "vlan", Lower: rtnl.Lower{Index: 1, NSID: 0}},
		{Name: "veth0", Kind: "veth", Lower: lower(1)},
		{Name: "team0", Kind: "team"},
		{Name: "t0", SlaveKind: "team", Master: 8},
		{Name: "br0", Kind: "bridge"},
		{Name: "b0", SlaveKind: "bridge", Master: 10},
	}
	for i := range h {
		h[i].Index = int32(i)
	}
	for name, want := range map[string][][]int32{
		"bond0.100": {{4}, {3}, {1, 2}},
		"mac0":      {{5}, {4}, {3}, {1, 2}},
		"bond0":     {{3}, {1, 2}},
		"team0":     {{8}, {9}},
		"far":       {{6}},
	} {
		l := h.named(t, name)
		got, err := Layers(t.Context(), h, l)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got)\n%s", name, err, diff)
		}
	}
	for _, name := range []string{"r0", "veth0", "br0"} {
		l := h.named(t, name)
		got, err := Layers(t.Context(), silent{h}, l)
		if diff := cmp.Diff([][]int32{{l.Index}}, got); err != nil || diff != "" {
			t.Errorf("%s stands on nothing, and nothing is asked: %v (-want +got)\n%s", name, err, diff)
		}
	}
}

func TestTheCarrierOfAPodsLinkHasTheDeviceOfItsFunction(t *testing.T) {
	t.Parallel()
	pod := host{
		{Name: "none"},
		{Name: "net1", Index: 1, Dev: "0000:0b:00.2", Bus: "pci"},
		{Name: "net2", Index: 2, Dev: "virtio3", Bus: "virtio"},
		{Name: "net3", Index: 3, Kind: "macvlan", Lower: rtnl.Lower{Index: 1, NSID: rtnl.NoNSID}},
		{Name: "net4", Index: 4, Kind: "macvlan", Lower: rtnl.Lower{Index: 99, NSID: rtnl.NoNSID}},
		{Name: "net5", Index: 5, Kind: "macvlan", Lower: rtnl.Lower{Index: 1, NSID: 3}},
		{Name: "net6", Index: 6, Dev: "mlx5_core.sf.4", Bus: "auxiliary"},
		{Name: "net7", Index: 7, Kind: "vlan", Lower: rtnl.Lower{Index: 1, NSID: 4}, Dev: "0000:0b:00.3", Bus: "usb"},
	}
	in := Pod{pod, host{{Name: "none"}, {Name: "eth0", Index: 1, Dev: "0000:0b:00.0", Bus: "pci"}}, 3}
	for _, tt := range []struct{ link, known, want string }{
		{"net1", "", "0000:0b:00.2"},
		{"net1", "mlx5_7", "mlx5_7"},
		{"net2", "", ""},
		{"net3", "", "0000:0b:00.2"},
		{"net5", "", ""},
		{"net6", "", "mlx5_core.sf.4"},
		{"net7", "", ""},
	} {
		if got, err := Carrier(t.Context(), in, pod.named(t, tt.link), tt.known); got.Device != tt.want || got.InPod == (tt.link == "net5") || err != nil {
			t.Errorf("%+v: got %+v, %v", tt, got, err)
		}
	}
	if _, err := Carrier(t.Context(), in, pod.named(t, "net4"), ""); !errors.Is(err, unix.ENODEV) {
		t.Errorf("got %v, want what the namespace said", err)
	}
}
