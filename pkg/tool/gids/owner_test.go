// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package gids

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

func TestOwnersAreIdentifiedByAddressAndThenByInterface(t *testing.T) {
	t.Parallel()
	pod := Owner{ContainerID: "c1", Link: "net1", Addr: netip.MustParseAddr("172.16.0.5"), recorded: Recorded{Device: "mlx5_0", Place: place(3)}}
	twin := pod
	twin.ContainerID, twin.recorded = "c2", Recorded{Device: "mlx5_0", Place: place(1)}
	host := Owner{Link: "r0", Addr: netip.MustParseAddr("fe80::1")}
	vlan := Owner{Link: "r0.100", Addr: netip.MustParseAddr("fe80::1")}
	entry := func(place int, addr netip.Addr, netdev string) gidtable.Entry {
		return gidtable.Entry{Index: place, GID: addr, Type: gidtable.RoCEv2, Netdev: netdev}
	}
	stranger, none := netip.MustParseAddr("172.16.0.9"), []Owner{}
	for _, tc := range []struct {
		name    string
		entries []gidtable.Entry
		all     []Owner
		want    [][]Owner // of each entry
	}{
		{"by address", []gidtable.Entry{entry(2, pod.Addr, "net1")}, []Owner{host, pod}, [][]Owner{{pod}}},
		{"renamed in the pod", []gidtable.Entry{entry(2, pod.Addr, "x")}, []Owner{host, pod}, [][]Owner{{pod}}},
		{
			"by interface",
			[]gidtable.Entry{entry(0, host.Addr, "r0"), entry(2, vlan.Addr, "r0.100")},
			[]Owner{host, vlan, pod},
			[][]Owner{{host}, {vlan}},
		},
		{"the one of a VLAN alone", []gidtable.Entry{entry(2, vlan.Addr, "r0.100")}, []Owner{host, vlan}, [][]Owner{{vlan}}},
		{"no owner", []gidtable.Entry{entry(2, stranger, "net1")}, []Owner{host, pod}, [][]Owner{none}},
		{
			"a stranger has the pod's address too",
			[]gidtable.Entry{entry(2, pod.Addr, "net9"), entry(4, pod.Addr, "net1")},
			[]Owner{host, pod},
			[][]Owner{none, {pod}},
		},
		{
			"and calls its interface so too",
			[]gidtable.Entry{entry(2, pod.Addr, "net1"), entry(3, pod.Addr, "net1")},
			[]Owner{pod},
			[][]Owner{none, {pod}},
		},
		{
			"where ADD did not find it",
			[]gidtable.Entry{entry(5, pod.Addr, "net1"), entry(6, pod.Addr, "net1")},
			[]Owner{pod},
			[][]Owner{{pod}, {pod}},
		},
		{
			"two pods on record",
			[]gidtable.Entry{entry(1, pod.Addr, "net1"), entry(3, pod.Addr, "net1")},
			[]Owner{pod, twin},
			[][]Owner{{twin}, {pod}},
		},
		{
			"of v1 and v2",
			[]gidtable.Entry{{Index: 2, GID: pod.Addr, Type: gidtable.RoCEv1, Netdev: "net1"}, entry(3, pod.Addr, "net1")},
			[]Owner{pod},
			[][]Owner{{pod}, {pod}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := portOf("mlx5_0", "r0")
			p.Entries = tc.entries
			for i, e := range tc.entries {
				if diff := cmp.Diff(tc.want[i], p.ownersOf(e, tc.all), cmp.AllowUnexported(Owner{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
					t.Errorf("place %d (-want +got)\n%s", e.Index, diff)
				}
			}
		})
	}
}

// TestTablesHaveTheOwnersOfTheirEntries has an address of the host, one of a pod on record, one of
// a pod without a record, and one that two interfaces have. Strangers are not asked about the first two.
func TestTablesHaveTheOwnersOfTheirEntries(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr
	host, pod := Owner{Link: "r1", Addr: addr("fd00::1")}, Owner{ContainerID: "c1", Link: "net1", Addr: addr("172.16.0.5")}
	strangers := []Owner{{Netns: "/proc/7/ns/net", Link: "eth1", Addr: addr("172.16.0.9")}, {Netns: "/proc/7/ns/net", Link: "eth2", Addr: pod.Addr}}
	first, second, holder := portOf("mlx5_10", "r2"), portOf("mlx5_2", "r1", "fd00::1", "v1 172.16.0.5", "172.16.0.5", "172.16.0.9", "", "172.16.0.9"), Owner{ContainerID: "c3"}
	first.Number, first.Hidden, first.Size = 2, true, 256
	got := tables([]Port{first, second}, &holder, []Owner{host, pod}, func() []Owner { return strangers })
	entry := func(index int, gid, kind string, ipv4 netip.Addr, owner Owner) Entry {
		return Entry{Index: index, GID: gid, IPv4: ipv4, Type: kind, Netdev: "net1", Owners: []Owner{owner}}
	}
	const mapped5, mapped9 = "0000:0000:0000:0000:0000:ffff:ac10:0005", "0000:0000:0000:0000:0000:ffff:ac10:0009"
	want := []Table{
		{Device: "mlx5_2", Port: 1, Netdev: "r1", Holder: &holder, Size: 16, Twice: map[netip.Addr][]int{strangers[0].Addr: {3, 5}}, Entries: []Entry{
			entry(0, "fd00:0000:0000:0000:0000:0000:0000:0001", gidtable.RoCEv2, netip.Addr{}, host),
			entry(1, mapped5, gidtable.RoCEv1, pod.Addr, pod),
			entry(2, mapped5, gidtable.RoCEv2, pod.Addr, pod),
			entry(3, mapped9, gidtable.RoCEv2, strangers[0].Addr, strangers[0]),
			entry(5, mapped9, gidtable.RoCEv2, strangers[0].Addr, strangers[0]),
		}},
		{Device: "mlx5_10", Port: 2, Netdev: "r2", Holder: &holder, Size: 256, Hidden: true, Entries: []Entry{}, Twice: map[netip.Addr][]int{}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Owner{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestAnAddressOfAFillerIsNotAlwaysOne has a pod without a record that has such an address.
func TestAnAddressOfAFillerIsNotAlwaysOne(t *testing.T) {
	t.Parallel()
	p, addr := portOf("mlx5_0", "r0"), plan.FillerRange.Addr()
	p.Entries = []gidtable.Entry{{Index: 1, GID: addr, Type: gidtable.RoCEv2, Netdev: "net1"}, {Index: 2, GID: addr, Type: gidtable.RoCEv2, Netdev: string(plan.Child{Parent: "r0"}.Fillers().Name)}}
	stranger := Owner{Link: "net1", Addr: addr}
	is := tables([]Port{p}, nil, nil, func() []Owner { return []Owner{stranger} })[0].Entries
	if is[0].Filler || len(is[0].Owners) != 1 || !is[1].Filler || len(is[1].Owners) > 0 {
		t.Errorf("got %+v, want a pod and a filler", is)
	}
	p.Entries = p.Entries[1:]
	tables([]Port{p}, nil, nil, func() []Owner { t.Error("strangers are asked for a filler"); return nil })
	if !p.hasFillers() || portOf("mlx5_0", "r0", "172.16.0.5").hasFillers() {
		t.Error("a port with a filler has none, or one without it has one")
	}
}

// TestThePortsOwnEntryIsTheHosts has an interface without addresses, as one that
// is down or has no IPv6: the kernel keeps the entry of its MAC.
func TestThePortsOwnEntryIsTheHosts(t *testing.T) {
	t.Parallel()
	own := netip.MustParseAddr("fe80::1")
	for _, tc := range []struct {
		name  string
		entry gidtable.Entry
		want  []Owner
	}{
		{"v1", gidtable.Entry{Index: 0, GID: own, Type: gidtable.RoCEv1, Netdev: "r0"}, []Owner{{Link: "r0", Addr: own}}},
		{"v2", gidtable.Entry{Index: 1, GID: own, Type: gidtable.RoCEv2, Netdev: "r0"}, []Owner{{Link: "r0", Addr: own}}},
		{"a pod's link of its name", gidtable.Entry{Index: 2, GID: own, Type: gidtable.RoCEv2, Netdev: "r0"}, []Owner{}},
		{"another interface", gidtable.Entry{Index: 0, GID: own, Type: gidtable.RoCEv2, Netdev: "net1"}, []Owner{}},
		{"an address", gidtable.Entry{Index: 0, GID: netip.MustParseAddr("fd00::1"), Type: gidtable.RoCEv2, Netdev: "r0"}, []Owner{}},
	} {
		p := portOf("mlx5_0", "r0")
		p.Entries = []gidtable.Entry{tc.entry}
		if diff := cmp.Diff(tc.want, p.ownersOf(tc.entry, nil), cmp.AllowUnexported(Owner{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got)\n%s", tc.name, diff)
		}
	}
	p := portOf("mlx5_0", "") // its interface is in another namespace
	if got := p.ownersOf(gidtable.Entry{GID: own}, nil); len(got) != 0 {
		t.Errorf("without interface: got %+v", got)
	}
}

func TestDevicesThatAreInNoNamespaceAreReported(t *testing.T) {
	t.Parallel()
	moved := func(container, name string, index uint32) record.Record {
		d := plan.RDMADevice{Name: name, Index: index, GUID: "5054:00ff:fe00:0001", Port: 1}
		if container == "e" {
			d.GUID = "5054:00ff:fe00:0009" // another device, at the index of the former one
		}
		pod := conf.Pod{Namespace: "ml", Name: container}
		return record.Record{Attachment: conf.Attachment{ContainerID: conf.ContainerID(container), IfName: "net1"}, Pod: pod, Plan: plan.Plan{Ops: plan.InPod(plan.Move{Device: d})}}
	}
	renamed := portOf("renamed", "")
	renamed.Device.GUID, renamed.Device.Index = "5054:00ff:fe00:0001", 1
	seen := []Port{renamed}
	got := Node{Records: []record.Record{moved("a", "mlx5_1", 1), moved("b", "mlx5_2", 2), moved("c", "mlx5_2", 2), moved("d", "mlx5_3", 3), moved("e", "mlx5_4", 1)}}.missing(seen)
	lost := func(container, device string) Table {
		return Table{
			Device: device, Port: 1, Missing: true, Entries: []Entry{},
			Holder: &Owner{Pod: conf.Pod{Namespace: "ml", Name: container}, ContainerID: conf.ContainerID(container), Link: "net1"},
		}
	}
	want := []Table{lost("b", "mlx5_2"), lost("d", "mlx5_3"), lost("e", "mlx5_4")}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Owner{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
