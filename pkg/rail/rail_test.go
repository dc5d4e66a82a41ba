// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rail

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/rdma"
)

// portOf returns port 1 of a device with 16 places. Each GID is one of RoCE v2,
// or of v1 with "v1 " before it; "" is an empty place.
func portOf(device, netdev string, gids ...string) Port {
	p := Port{Device: device, Number: 1, Netdev: conf.LinkName(netdev), Size: 16}
	for i, g := range gids {
		if g == "" {
			continue
		}
		kind := rdma.RoCEv2
		if rest, ok := strings.CutPrefix(g, "v1 "); ok {
			g, kind = rest, rdma.RoCEv1
		}
		p.Entries = append(p.Entries, rdma.Entry{Index: i, GID: netip.MustParseAddr(g), Type: kind, Netdev: "net1"})
	}
	return p
}

func on(link string, addrs ...string) []Addr {
	var out []Addr
	for _, a := range addrs {
		out = append(out, Addr{conf.LinkName(link), netip.MustParseAddr(a)})
	}
	return out
}

// places returns rails as "net1 172.16.0.1 rxe0:1 3".
func placesOf(rails []Rail) map[string]int {
	out := map[string]int{}
	for _, r := range rails {
		out[string(r.Link)+" "+r.Addr.String()+" "+r.Port.String()] = r.Index
	}
	return out
}

func TestRailsAreTheInterfacesThatHaveGIDs(t *testing.T) {
	t.Parallel()
	ports := []Port{
		portOf("mlx5_0", "", "fe80::1", "v1 172.16.0.5", "172.16.0.4", "172.16.0.5"),
		portOf("mlx5_1", "", "fe80::2", "172.17.0.5", "fd00::5"),
	}
	addrs := append(on("lo", "127.0.0.1"), on("eth0", "10.244.0.7")...)
	addrs = append(addrs, on("net1", "172.16.0.5", "fe80::1")...)
	addrs = append(addrs, on("net2", "fd00::5", "172.17.0.5")...)
	rails, err := Find(ports, addrs, Hints{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"net1 172.16.0.5 mlx5_0:1": 3, "net2 172.17.0.5 mlx5_1:1": 1}
	if diff := cmp.Diff(want, placesOf(rails)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestRailsAreOfOneFamilyIfTheyCanBe(t *testing.T) {
	t.Parallel()
	both := portOf("mlx5_0", "", "172.16.0.5", "fd00::5")
	addrs := append(on("net1", "172.16.0.5", "fd00::5"), on("net2", "fd01::5")...)
	for _, tc := range []struct {
		name  string
		ports []Port
		addrs []Addr
		want  map[string]int
	}{
		{"both", []Port{both}, addrs[:2], map[string]int{"net1 172.16.0.5 mlx5_0:1": 0}},
		{"one is IPv6 alone", []Port{both, portOf("mlx5_1", "", "fd01::5")}, addrs, map[string]int{"net1 fd00::5 mlx5_0:1": 1, "net2 fd01::5 mlx5_1:1": 0}},
		{
			"no common one",
			[]Port{portOf("mlx5_0", "", "172.16.0.5"), portOf("mlx5_1", "", "fd01::5")},
			addrs,
			map[string]int{"net1 172.16.0.5 mlx5_0:1": 0, "net2 fd01::5 mlx5_1:1": 0},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			rails, err := Find(tc.ports, tc.addrs, Hints{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, placesOf(rails)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestOfSeveralPortsTheBondsIsChosenAndItIsSaid(t *testing.T) {
	t.Parallel()
	ports := []Port{portOf("rxe0", "r0", "", "172.16.0.5"), portOf("rxe1", "r1", "172.16.0.5"), portOf("rxeb", "bond0", "", "", "172.16.0.5")}
	addr := on("net1", "172.16.0.5")
	for _, tc := range []struct {
		name  string
		hints Hints
		want  string
		says  string
	}{
		{"the record", Hints{Recorded: map[netip.Addr]string{addr[0].Addr: "rxe1"}, Slaves: []conf.LinkName{"r0", "r1"}}, "rxe1:1", "as ADD found it"},
		{"the bond", Hints{Slaves: []conf.LinkName{"r0", "r1"}}, "rxeb:1", "it belongs to the bond"},
		{"nothing known", Hints{}, "rxe0:1", "as the first of them; rocectl env on the node"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			rails, err := Find(ports, addr, tc.hints)
			if err != nil {
				t.Fatal(err)
			}
			if got := rails[0].Port.String(); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			note := strings.Join(rails[0].Notes, "\n")
			if !strings.Contains(note, "rxe0:1, rxe1:1, rxeb:1: "+tc.want+", ") || !strings.Contains(note, tc.says) {
				t.Errorf("it says %q, want all ports and %q", note, tc.says)
			}
		})
	}
}

func TestErrorsSayWhatThePodLacks(t *testing.T) {
	t.Parallel()
	v1 := portOf("mlx4_0", "", "v1 172.16.0.5")
	for _, tc := range []struct {
		name  string
		ports []Port
		addrs []Addr
		code  cnierr.Code
		want  string
	}{
		{"no device", nil, on("net1", "172.16.0.5"), cnierr.NoRDMA, "the network namespace has none"},
		{
			"no entry",
			[]Port{portOf("mlx5_0", "", "fe80::1")},
			on("net1", "172.16.0.5", "fe80::1", "fd00::5"), cnierr.NoGID,
			`look for GIDs of "172.16.0.5, fd00::5": none has an entry in mlx5_0:1`,
		},
		{"v1 alone", []Port{v1}, on("net1", "172.16.0.5"), cnierr.NoGID, "there are only entries of RoCE v1: 172.16.0.5 in mlx4_0:1 at 0"},
		{"no address", []Port{v1}, on("lo", "127.0.0.1", "::1"), cnierr.NoGID, "its interfaces have no addresses"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := Find(tc.ports, tc.addrs, Hints{})
			if cnierr.CodeOf(err) != tc.code || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want code %d and %q", err, tc.code, tc.want)
			}
			if got := errors.Is(err, rdma.ErrNoDevice); got != (tc.code == cnierr.NoRDMA) {
				t.Errorf("errors.Is(%v, ErrNoDevice) is %t", err, got)
			}
		})
	}
}

func TestAnAddressThatStandsTwiceIsSaid(t *testing.T) {
	t.Parallel()
	p := portOf("mlx5_0", "", "fe80::1", "172.16.0.5", "fe80::1", "172.16.0.5", "v1 172.16.0.6", "172.16.0.6")
	rails, err := Find([]Port{p}, on("net1", "172.16.0.5"), Hints{})
	if err != nil {
		t.Fatal(err)
	}
	if rails[0].Index != 1 || len(rails[0].Notes) != 1 || !strings.Contains(rails[0].Notes[0], "1 and 3") {
		t.Errorf("got index %d and %q", rails[0].Index, rails[0].Notes)
	}
	want := map[netip.Addr][]int{netip.MustParseAddr("172.16.0.5"): {1, 3}}
	if diff := cmp.Diff(want, p.twice(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("twice (-want +got)\n%s", diff)
	}
}

func TestOwnersAreToldByAddressAndThenByInterface(t *testing.T) {
	t.Parallel()
	pod := Owner{ContainerID: "c1", Link: "net1", Addr: netip.MustParseAddr("172.16.0.5")}
	host := Owner{Link: "r0", Addr: netip.MustParseAddr("fe80::1")}
	vlan := Owner{Link: "r0.100", Addr: netip.MustParseAddr("fe80::1")}
	all := []Owner{host, vlan, pod}
	for _, tc := range []struct {
		name  string
		entry rdma.Entry
		want  []Owner
	}{
		{"by address", rdma.Entry{GID: pod.Addr, Netdev: "net1"}, []Owner{pod}},
		{"renamed in the pod", rdma.Entry{GID: pod.Addr, Netdev: "x"}, []Owner{pod}},
		{"by interface", rdma.Entry{GID: vlan.Addr, Netdev: "r0.100"}, []Owner{vlan}},
		{"nobody", rdma.Entry{GID: netip.MustParseAddr("172.16.0.9"), Netdev: "net1"}, []Owner{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, ownersOf(tc.entry, all), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
