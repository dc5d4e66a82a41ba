// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package gids

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// portOf returns port 1 of a device with 16 places. Each GID is one of RoCE v2,
// or of v1 with "v1 " before it; "" is an empty place.
func portOf(device, netdev string, gids ...string) Port {
	m := discover.Match{Device: nldev.Device{Name: device}, Port: nldev.Port{Number: 1}, Link: conf.LinkName(netdev)}
	p := Port{Match: m, Size: 16, Model: "MT4129"}
	for i, g := range gids {
		if g == "" {
			continue
		}
		kind := gidtable.RoCEv2
		if rest, ok := strings.CutPrefix(g, "v1 "); ok {
			g, kind = rest, gidtable.RoCEv1
		}
		p.Entries = append(p.Entries, gidtable.Entry{Index: i, GID: netip.MustParseAddr(g), Type: kind, Netdev: "net1"})
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
	for _, r := range rails { // eth0 needs no entry
		if len(r.Notes) > 0 {
			t.Errorf("of %s it says %q", r.Link, r.Notes)
		}
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
		{"the first of two", []Port{portOf("mlx5_0", "", "172.16.0.6", "172.16.0.5")}, on("net1", "172.16.0.5", "172.16.0.6"), map[string]int{"net1 172.16.0.5 mlx5_0:1": 1}},
		{"one is IPv6 alone", []Port{both, portOf("mlx5_1", "", "fd01::5")}, addrs, map[string]int{"net1 fd00::5 mlx5_0:1": 1, "net2 fd01::5 mlx5_1:1": 0}},
		{
			"no common one",
			[]Port{portOf("mlx5_0", "", "172.16.0.5"), portOf("mlx5_1", "", "fd01::5")},
			addrs,
			map[string]int{"net1 172.16.0.5 mlx5_0:1": 0, "net2 fd01::5 mlx5_1:1": 0},
		},
		{
			"no common one, and one is both",
			[]Port{both, portOf("mlx5_1", "", "fd01::5"), portOf("mlx5_2", "", "172.18.0.5")},
			append(on("net3", "172.18.0.5"), addrs...),
			map[string]int{"net1 172.16.0.5 mlx5_0:1": 0, "net2 fd01::5 mlx5_1:1": 0, "net3 172.18.0.5 mlx5_2:1": 0},
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

func TestThePortOfTheBondIsChosenAndLogged(t *testing.T) {
	t.Parallel()
	ports := []Port{portOf("rxe0", "r0", "", "172.16.0.5"), portOf("rxe1", "r1", "172.16.0.5"), portOf("rxeb", "bond0", "", "", "172.16.0.5")}
	addr := on("net1", "172.16.0.5")
	for _, tc := range []struct {
		name  string
		hints Hints
		want  string
		says  string
	}{
		{"the record", Hints{Recorded: map[Addr]Recorded{addr[0]: {Device: "rxe1"}}, Slaves: []conf.LinkName{"r0", "r1"}}, "rxe1:1", "as ADD found it"},
		{"a record of another name", Hints{Recorded: map[Addr]Recorded{on("net7", "172.16.0.5")[0]: {Device: "rxe1"}}, Slaves: []conf.LinkName{"r0", "r1"}}, "rxe1:1", "as ADD found it"},
		{
			"two records of other names",
			Hints{Recorded: map[Addr]Recorded{on("net7", "172.16.0.5")[0]: {Device: "rxe1"}, on("net8", "172.16.0.5")[0]: {Device: "rxe0"}}, Slaves: []conf.LinkName{"r0", "r1"}},
			"rxeb:1", "it belongs to the bond",
		},
		{"the bond", Hints{Slaves: []conf.LinkName{"r0", "r1"}}, "rxeb:1", "it belongs to the bond"},
		{"only NICs of a bond", Hints{Slaves: []conf.LinkName{"r0", "r1", "bond0"}}, "rxe0:1", "one NIC of a bond that has no RDMA device of its own"},
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

func TestOfAnAddressThatExistsTwiceThePodsOwnIndexIsTaken(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr("172.16.0.5")
	const unknown = -1
	for _, tc := range []struct {
		name     string
		netdevs  []string // of the places 0 and 1
		recorded Recorded
		want     int
	}{
		{"by the interface", []string{"net9", "net1"}, Recorded{}, 1},
		{"by the interface, though it went elsewhere", []string{"net9", "net1"}, Recorded{Device: "mlx5_0", Place: place(0)}, 1},
		{"of equal names by what ADD found", []string{"net1", "net1"}, Recorded{Device: "mlx5_0", Place: place(1)}, 1},
		{"not by what ADD found on another device", []string{"net1", "net1"}, Recorded{Device: "mlx5_1", Place: place(1)}, unknown},
		{"of equal names without a record", []string{"net1", "net1"}, Recorded{}, unknown},
		{"of other names without a record", []string{"net8", "net9"}, Recorded{}, unknown},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := portOf("mlx5_0", "", "172.16.0.5", "172.16.0.5")
			for i, name := range tc.netdevs {
				p.Entries[i].Netdev = name
			}
			rails, err := Find([]Port{p}, on("net1", "172.16.0.5"), Hints{Recorded: map[Addr]Recorded{{"net1", addr}: tc.recorded}})
			if tc.want == unknown {
				_, second := Find([]Port{portOf("mlx5_2", "", "172.15.0.5"), p}, append(on("net0", "172.15.0.5"), on("net1", "172.16.0.5")...), Hints{Recorded: map[Addr]Recorded{{"net1", addr}: tc.recorded}})
				if fmt.Sprint(second) != fmt.Sprint(err) {
					t.Errorf("behind another rail: got %v, want %v", second, err)
				}
				if cnierr.CodeOf(err) != cnierr.NoGID || !strings.Contains(err.Error(), "mlx5_0:1 at 0 and 1") {
					t.Errorf("got %v, want code %d and both places", err, cnierr.NoGID)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if rails[0].Index != tc.want || !strings.Contains(strings.Join(rails[0].Notes, "\n"), "at 0 and 1") {
				t.Errorf("got place %d and %q, want %d and both places", rails[0].Index, rails[0].Notes, tc.want)
			}
		})
	}
}

func place(n int) *int { return &n }

// TestAnEntryOnAnotherNICIsNotThatOfTheInterface has another pod set the address on the
// first NIC, on an interface of another name.
func TestAnEntryOnAnotherNICIsNotThatOfTheInterface(t *testing.T) {
	t.Parallel()
	addrs := on("net1", "172.16.0.5", "fd00::5")
	for name, more := range map[string][]string{"nothing else": nil, "an entry of v1": {"v1 172.16.0.5"}, "another address of the interface": {"fd00::5"}} {
		foreign, own := portOf("mlx5_0", "", append([]string{"172.16.0.5"}, more...)...), portOf("mlx5_1", "", "", "172.16.0.5")
		foreign.Entries[0].Netdev = "eth7"
		rails, err := Find([]Port{foreign, own}, addrs, Hints{})
		if err != nil || rails[0].Port.Device.Name != "mlx5_1" || rails[0].Index != 1 {
			t.Fatalf("%s: got %v, %v, want mlx5_1 at 1", name, rails, err)
		}
		const note = "172.16.0.5 has entries in mlx5_0:1, mlx5_1:1: mlx5_1:1, because the entry there is of net1: another interface on this node has the address too"
		if diff := cmp.Diff([]string{note}, rails[0].Notes); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
	// The interface had another name when its entry was made: its other address tells the NIC.
	foreign, own := portOf("mlx5_0", "", "172.16.0.5"), portOf("mlx5_1", "", "172.16.0.5", "fd00::5")
	foreign.Entries[0].Netdev, own.Entries[0].Netdev = "eth7", "eth1"
	rails, err := Find([]Port{foreign, own}, addrs, Hints{})
	if err != nil || rails[0].Port.Device.Name != "mlx5_1" || !strings.Contains(rails[0].Notes[0], "because it has all addresses of net1") {
		t.Errorf("renamed: got %v, %v", rails, err)
	}
}

// TestWhatADDFoundIsThatOfTheInterface, or that of the only one that had the address.
func TestWhatADDFoundIsThatOfTheInterface(t *testing.T) {
	t.Parallel()
	one, two := on("net1", "172.16.0.5")[0], on("net2", "172.16.0.5")[0]
	h := Hints{Recorded: map[Addr]Recorded{one: {Device: "mlx5_0"}, two: {Device: "mlx5_1"}, on("net1", "172.16.0.6")[0]: {Device: "mlx5_2"}}}
	for a, want := range map[Addr]string{one: "mlx5_0", two: "mlx5_1", on("net3", "172.16.0.5")[0]: "", on("net3", "172.16.0.6")[0]: "mlx5_2", on("net3", "172.16.0.7")[0]: ""} {
		if got := h.recorded(a).Device; got != want {
			t.Errorf("%s %s: got %q, want %q", a.Link, a.Addr, got, want)
		}
	}
}

// TestAnAddressOnTwoNICsIsNotGuessed: two NICs have an entry of the address, each of an
// interface with the name of the pod's. The other one is that of another pod, or both are
// the NICs of a bond. In the pod, nothing tells which it is, unless the interface has more
// addresses.
func TestAnAddressOnTwoNICsIsNotGuessed(t *testing.T) {
	t.Parallel()
	ports := []Port{portOf("mlx5_0", "r0", "172.16.0.5", "172.18.0.5"), portOf("mlx5_1", "r1", "172.16.0.5", "fd00::5"), portOf("mlx5_2", "r2", "172.18.0.5")}
	ports[0].Entries[1].Netdev, ports[2].Entries[0].Netdev = "net7", "net0"
	_, err := Find(ports, slices.Concat(on("net1", "172.16.0.5"), on("net0", "172.18.0.5"), on("net7", "172.18.0.5")), Hints{})
	for _, want := range []string{`find RDMA device of "172.16.0.5"`, "mlx5_0:1, mlx5_1:1", "net1"} {
		if cnierr.CodeOf(err) != cnierr.NoGID || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want code %d and %q", err, cnierr.NoGID, want)
		}
	}
	if rails, err := Find(ports, on("net0", "172.18.0.5"), Hints{}); err != nil || rails[0].Port.Device.Name != "mlx5_2" {
		t.Errorf("another interface: got %v, %v", rails, err)
	}
	rails, err := Find(ports, on("net1", "172.16.0.5", "fd00::5", "fe80::7"), Hints{})
	if err != nil || rails[0].Port.Device.Name != "mlx5_1" || rails[0].Addr != netip.MustParseAddr("172.16.0.5") {
		t.Fatalf("with another address: got %v, %v", rails, err)
	}
	const note = "172.16.0.5 has entries in mlx5_0:1, mlx5_1:1: mlx5_1:1, because it has all addresses of net1: another interface on this node has the address too"
	if got := strings.Join(rails[0].Notes, "\n"); got != note {
		t.Errorf("it says %q, want %q", got, note)
	}
	ports[0].Link, ports[1].Link = "", "" // a pod does not see the interfaces of the host, and this one has a bond
	rails, err = Find(ports, on("net1", "172.16.0.5", "fd00::5"), Hints{Slaves: []conf.LinkName{"eth0"}})
	if err != nil || !slices.Equal(rails[0].Notes, []string{note}) {
		t.Errorf("in a pod with a bond: got %v, %v, want %q", rails, err, note)
	}
}

// TestRailsAreInTheOrderOfTheirNames has addresses as the kernel lists them when the index of
// net2 is 256: interfaces are in a table of 256 places.
func TestRailsAreInTheOrderOfTheirNames(t *testing.T) {
	t.Parallel()
	ports := []Port{portOf("mlx5_0", "", "172.16.0.5"), portOf("mlx5_1", "", "172.17.0.5"), portOf("mlx5_9", "", "172.25.0.5")}
	rails, err := Find(ports, slices.Concat(on("net2", "172.17.0.5"), on("net10", "172.25.0.5"), on("net1", "172.16.0.5")), Hints{})
	if err != nil || len(rails) != 3 || rails[0].Link != "net1" || rails[1].Link != "net2" || rails[2].Link != "net10" {
		t.Errorf("got %v, %v", rails, err)
	}
}

// TestTwoInterfacesOfAPodHaveTheSameAddress in two networks with the same subnet. Each has
// its own NIC and its own record.
func TestTwoInterfacesOfAPodHaveTheSameAddress(t *testing.T) {
	t.Parallel()
	a, b := portOf("mlx5_0", "", "172.16.0.5"), portOf("mlx5_1", "", "", "172.16.0.5")
	b.Entries[0].Netdev = "net2"
	addrs := append(on("net1", "172.16.0.5"), on("net2", "172.16.0.5")...)
	for name, h := range map[string]Hints{
		"in the pod":  {},
		"on the node": {Recorded: map[Addr]Recorded{addrs[0]: {Device: "mlx5_0", Place: place(0)}, addrs[1]: {Device: "mlx5_1", Place: place(1)}}},
	} {
		rails, err := Find([]Port{a, b}, addrs, h)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := map[string]int{"net1 172.16.0.5 mlx5_0:1": 0, "net2 172.16.0.5 mlx5_1:1": 1}
		if diff := cmp.Diff(want, placesOf(rails)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

func TestAPortThatIsDownIsReported(t *testing.T) {
	t.Parallel()
	for state, want := range map[nldev.State]string{nldev.Down: "mlx5_0:1 is DOWN, not ACTIVE", nldev.Init: "mlx5_0:1 is INIT, not ACTIVE", nldev.Active: "", 0: ""} {
		p := portOf("mlx5_0", "", "172.16.0.5")
		p.State = state
		rails, err := Find([]Port{p}, on("net1", "172.16.0.5"), Hints{})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(rails[0].Notes, "\n"); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("a port that is %q: it says %q, want %q", state, got, want)
		}
	}
}

func TestAnAddressThatLostItsEntryIsReported(t *testing.T) {
	t.Parallel()
	recorded := map[Addr]Recorded{
		{"net1", netip.MustParseAddr("172.16.0.5")}: {Device: "mlx5_0"},
		{"net2", netip.MustParseAddr("172.17.0.5")}: {Device: "mlx5_1"},
	}
	ports := []Port{portOf("mlx5_0", "", "172.16.0.5"), portOf("mlx5_1", "", "fe80::1")}
	rails, err := Find(ports, on("net1", "172.16.0.5"), Hints{Recorded: recorded})
	if err != nil {
		t.Fatal(err)
	}
	const want = "net2 172.17.0.5 is left out: it had an entry in mlx5_1 when the pod was made, and has none now; rocectl check shows more"
	if diff := cmp.Diff([]string{want}, rails[0].Notes); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if _, err := Find(ports, on("net2", "172.17.0.5"), Hints{Recorded: recorded}); !strings.Contains(fmt.Sprint(err), "172.17.0.5") {
		t.Errorf("all are lost: got %v", err)
	}
	off, full := portOf("mlx5_1", ""), portOf("mlx5_0", "", "172.16.0.9")
	off.Size, full.Size = 0, 1
	const cause = "none has an entry in mlx5_1:1, mlx5_0:1; RoCE is off on mlx5_1:1: it has no GID table"
	if _, err := Find([]Port{off, full}, on("net2", "172.17.0.5"), Hints{Recorded: recorded}); !strings.Contains(fmt.Sprint(err), cause) {
		t.Errorf("the table of another NIC is full: got %v, want %q", err, cause)
	}
}

func TestErrorsSayWhatThePodLacks(t *testing.T) {
	t.Parallel()
	v1 := portOf("mlx4_0", "", "v1 172.16.0.5")
	full := portOf("mlx5_0", "", "fe80::1", "172.16.0.9")
	full.Size = 2
	off := portOf("mlx5_2", "")
	off.Size = 0
	for _, tc := range []struct {
		name  string
		ports []Port
		addrs []Addr
		code  cnierr.Code
		want  string
		hint  string
	}{
		{"no device", nil, on("net1", "172.16.0.5"), cnierr.NoRDMA, "the network namespace has none", "rdma dev"},
		{
			"no entry",
			[]Port{portOf("mlx5_0", "", "fe80::1")},
			on("net1", "172.16.0.5", "fe80::1", "fd00::5"), cnierr.NoGID,
			`look for GIDs of "172.16.0.5, fd00::5": none has an entry in mlx5_0:1`, "child of an RDMA NIC",
		},
		{
			"full table",
			[]Port{portOf("mlx5_1", "", "fe80::1"), full},
			on("net1", "172.16.0.5"), cnierr.NoGID,
			"none has an entry in mlx5_1:1, mlx5_0:1, and the table of mlx5_0:1 is full, with 2 entries", "fewer pods",
		},
		{
			"RoCE is off",
			[]Port{portOf("mlx5_1", "", "fe80::1"), off},
			on("net1", "172.16.0.5"), cnierr.NoGID,
			"none has an entry in mlx5_1:1, mlx5_2:1; RoCE is off on mlx5_2:1: it has no GID table", rdma.TurnOnRoCE,
		},
		{
			"full table, and RoCE is off on another NIC",
			[]Port{off, full},
			on("net1", "172.16.0.5"), cnierr.NoGID, "the table of mlx5_0:1 is full, with 2 entries", "fewer pods",
		},
		{
			"v1 alone",
			[]Port{v1, portOf("mlx4_1", "", "", "v1 fd00::5")},
			on("net1", "172.16.0.5", "fd00::5"), cnierr.NoGID,
			`"172.16.0.5, fd00::5": there are only entries of RoCE v1: 172.16.0.5 in mlx4_0:1 at 0, fd00::5 in mlx4_1:1 at 1`, "roce_mode",
		},
		{"no address", []Port{v1}, on("lo", "127.0.0.1", "::1"), cnierr.NoGID, "its interfaces have no addresses", "--pid, --netns or --container"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := Find(tc.ports, tc.addrs, Hints{})
			if cnierr.CodeOf(err) != tc.code || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want code %d and %q", err, tc.code, tc.want)
			}
			var known *cnierr.Error
			if !errors.As(err, &known) || !strings.Contains(known.Hint, tc.hint) {
				t.Errorf("the hint is %+v, want %q in it", known, tc.hint)
			}
			if got := errors.Is(err, rdma.ErrNoDevice); got != (tc.code == cnierr.NoRDMA) {
				t.Errorf("errors.Is(%v, ErrNoDevice) is %t", err, got)
			}
		})
	}
}

func TestAnAddressThatExistsTwiceIsReported(t *testing.T) {
	t.Parallel()
	p := portOf("mlx5_0", "", "fe80::1", "172.16.0.5", "fe80::1", "172.16.0.5", "v1 172.16.0.6", "172.16.0.6")
	was := Recorded{Device: "mlx5_0", Place: place(1)}
	rails, err := Find([]Port{p}, on("net1", "172.16.0.5"), Hints{Recorded: map[Addr]Recorded{{"net1", netip.MustParseAddr("172.16.0.5")}: was}})
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

func TestAPortHasThePCIFunctionOfItsDevice(t *testing.T) {
	t.Parallel()
	link := func(target string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink}
	}
	sys := fstest.MapFS{
		"class/infiniband/mlx5_0/hca_type": {Data: []byte("MT4129\n")},
		"class/infiniband/mlx5_0/device":   link("../../../devices/0000:0b:00.0"),
		"devices/0000:0b:00.0/subsystem":   link("../../bus/pci"),
		"devices/0000:0b:00.0/virtfn0":     link("../0000:0b:00.2"),
		"class/infiniband/mlx5_2/device":   link("../../../devices/0000:0b:00.2"),
		"devices/0000:0b:00.2/subsystem":   link("../../bus/pci"),
		"devices/0000:0b:00.2/physfn":      link("../0000:0b:00.0"),
		"class/infiniband/mlx5_4/device":   link("../../../devices/mlx5_core.sf.4"),
		"devices/mlx5_core.sf.4/subsystem": link("../../bus/auxiliary"),
		"class/infiniband/rxe0/node_guid":  {Data: []byte("0\n")},
	}
	for device, want := range map[string]Port{
		"mlx5_0": {Function: "0000:0b:00.0", Model: "MT4129"},
		"mlx5_2": {Function: "0000:0b:00.2", Virtual: true},
		"mlx5_4": {},
		"rxe0":   {},
	} {
		want.Match = discover.Match{Device: nldev.Device{Name: device}, Link: "r0"}
		if diff := cmp.Diff(want, portIn(sys, want.Match)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", device, diff)
		}
	}
}
