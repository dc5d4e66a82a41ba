// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package parent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
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
		{Name: "mac1", Kind: "macvlan", Lower: lower(10)},
		{Name: "mac2", Kind: "macvlan", Lower: lower(7)},
		{Name: "bond1", Kind: "bond"},
		{Name: "v0", Kind: "vlan", SlaveKind: "bond", Master: 14, Lower: lower(11)},
		{Name: "v1", Kind: "vlan", SlaveKind: "bond", Master: 14, Lower: lower(9)},
		{Name: "v2", Kind: "vlan", SlaveKind: "bond", Master: 14, Lower: lower(11)},
		{Name: "tap0", Kind: "macvtap", Lower: lower(1)},
		{Name: "round", Kind: "vlan", Lower: lower(19)}, // what no kernel lists
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
		"mac1":      {{12}, {10}},
		"mac2":      {{13}, {7}},
		"bond1":     {{14}, {15, 16, 17}, {9, 11}},
		"tap0":      {{18}, {1}},
		"round":     slices.Repeat([][]int32{{19}}, len(h)+1),
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

func TestTheCarrierOfAPodsLinkIsKnownWhole(t *testing.T) {
	t.Parallel()
	here := func(i int32) rtnl.Lower { return rtnl.Lower{Index: i, NSID: rtnl.NoNSID} }
	pod := host{
		{Name: "none"},
		{Name: "net1", Dev: "0000:0b:00.2", Bus: "pci"},
		{Name: "net2", Dev: "virtio3", Bus: "virtio"},
		{Name: "net3", Kind: "macvlan", Lower: here(1)},
		{Name: "net4", Kind: "macvlan", Lower: here(99)},
		{Name: "net5", Kind: "macvlan", Lower: rtnl.Lower{Index: 3, NSID: 3}},
		{Name: "net6", Dev: "mlx5_core.sf.4", Bus: "auxiliary"},
		{Name: "net7", Kind: "vlan", Lower: rtnl.Lower{Index: 1, NSID: 4}, Dev: "0000:0b:00.3", Bus: "usb"},
		{Name: "net8", Kind: "ipvlan", Lower: here(3)},
		{Name: "net9", Kind: "veth", Lower: rtnl.Lower{Index: 2, NSID: 3}},
		{Name: "net10", Kind: "vlan", Lower: here(0), Dev: "0000:0b:00.4", Bus: "pci"}, // what it is on is unknown
		{Name: "net11", Kind: "bond"},
		{Name: "slave", SlaveKind: "bond", Master: 11},
		{Name: "net13", Kind: "macvtap", Lower: rtnl.Lower{Index: 4, NSID: 3}},
		{Name: "round", Kind: "macvtap", Lower: here(14)},
	}
	for i := range int32(maxStack) { // as many as there can be, one on the other
		lower := here(1)
		if i > 0 {
			lower = here(14 + i)
		}
		pod = append(pod, rtnl.Link{Name: fmt.Sprint("up", i), Kind: "macvlan", Lower: lower})
	}
	node := host{
		{Name: "none"},
		{Name: "eth0", Dev: "0000:0b:00.0", Bus: "pci"},
		{Name: "host9"},
		{Name: "eth0.100", Kind: "vlan", Lower: here(1)},
		{Name: "eth1", Dev: "0000:0c:00.0", Bus: "pci"},
	}
	for i, h := range []host{pod, node} {
		for j := range h {
			h[j].Index, h[j].MTU, h[j].Address = int32(j), 4000+j, []byte{2, 0, 0, 0, byte(i), byte(j)}
		}
	}
	in := Pod{pod, node, 3}
	inPod := func(i int32, device string, layers ...[]int32) plan.Link {
		return plan.Link{
			Name: conf.LinkName(pod[i].Name), MAC: conf.MAC{2, 0, 0, 0, 0, byte(i)}, MTU: 4000 + int(i), Layers: append([][]int32{{i}}, layers...),
			Device: device, InPod: true,
		}
	}
	onNode := func(i int32, layers ...[]int32) plan.Link {
		return plan.Link{
			Name: conf.LinkName(node[i].Name), MAC: conf.MAC{2, 0, 0, 0, 1, byte(i)}, MTU: 4000 + int(i), Layers: append([][]int32{{i}}, layers...),
		}
	}
	for _, tt := range []struct {
		link, known string
		want        plan.Link
	}{
		{"net1", "", inPod(1, "0000:0b:00.2")},
		{"net1", "mlx5_7", inPod(1, "mlx5_7")},
		{"net2", "", inPod(2, "")},
		{"net3", "", inPod(1, "0000:0b:00.2")},
		{"net5", "", onNode(3, []int32{1})},
		{"net6", "", inPod(6, "mlx5_core.sf.4")},
		{"net7", "", inPod(7, "")},
		{"net8", "", inPod(1, "0000:0b:00.2")},
		{"net9", "", inPod(9, "")},
		{"net10", "", inPod(10, "0000:0b:00.4")},
		{"net11", "", inPod(11, "", []int32{12})},
		{"net13", "", onNode(4)},
		{"up7", "", inPod(1, "0000:0b:00.2")},
		{"round", "", inPod(14, "", slices.Repeat([][]int32{{14}}, len(pod))...)}, // what no kernel lists
	} {
		got, err := Carrier(t.Context(), in, pod.named(t, tt.link), tt.known)
		if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
			t.Errorf("%s, %q: %v (-want +got)\n%s", tt.link, tt.known, err, diff)
		}
	}
	if _, err := Carrier(t.Context(), in, pod.named(t, "net4"), ""); !errors.Is(err, unix.ENODEV) {
		t.Errorf("got %v, want what the namespace said", err)
	}
	in.Links = silent{pod}
	if _, err := Carrier(t.Context(), in, pod.named(t, "net11"), ""); err == nil || err.Error() != "asked for links" {
		t.Errorf("got %v, want what the namespace said", err)
	}
}

func TestTheFramesOfASlaveGoToItsBond(t *testing.T) {
	t.Parallel()
	h, _, _ := gpuNode()
	h[5].SlaveKind, h[5].Master = "bridge", 6
	for index, want := range map[int32]int32{1: 1, 5: 5, 7: 6, 99: 99} {
		if got := Top(h, index); got != want {
			t.Errorf("link %d: got %d, want %d", index, got, want)
		}
	}
}
