// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package parent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// host is a namespace in which the index of a link is its position.
type host []rtnl.Link

func (h host) LinksByName(_ context.Context, names ...string) []rtnl.Named {
	var out []rtnl.Named
	for _, name := range names {
		found := rtnl.Named{Err: unix.ENODEV}
		for _, l := range h {
			if l.Has(name) {
				found = rtnl.Named{Link: l}
			}
		}
		out = append(out, found)
	}
	return out
}

func (h host) LinkByIndex(_ context.Context, index int32) (rtnl.Link, error) {
	if int(index) >= len(h) {
		return rtnl.Link{}, unix.ENODEV
	}
	return h[index], nil
}

func (h host) Links(context.Context) ([]rtnl.Link, error) { return h, nil }

func (h host) RoutesOf(context.Context, uint8, uint32) ([]rtnl.Route, error) { return nil, nil }

// gpuNode is a node with two ports of one adapter, a virtual function and a
// scalable function of it, another vendor's NIC, a bond of two ports, a pod's
// link, a macvlan and an IPoIB link.
func gpuNode() (host, []rtnl.Address, fstest.MapFS) {
	h := host{
		{Name: "lo", Type: unix.ARPHRD_LOOPBACK, Flags: unix.IFF_LOOPBACK, MTU: 65536},
		{Name: "enp11s0f0np0", AltNames: []string{"rail0", "an-altname-of-more-than-15"}, Dev: "0000:0b:00.0", Bus: "pci"},
		{Name: "enp11s0f1np1", Dev: "0000:0b:00.1", Bus: "pci"},
		{Name: "enp11s0f0v0", Dev: "0000:0b:00.2", Bus: "pci"},
		{Name: "enp11s0f0s88", Dev: "mlx5_core.sf.4", Bus: "auxiliary"},
		{Name: "eno1"}, // a kernel that does not tell the device
		{Name: "bond0", Kind: "bond"},
		{Name: "bondport", SlaveKind: "bond", Master: 6, Dev: "0000:0c:00.0", Bus: "pci"},
		{Name: "vethpod", Kind: "veth"},
		{Name: "mac0", Kind: "macvlan"},
		{Name: "ibp1", Type: unix.ARPHRD_INFINIBAND, Dev: "0000:0d:00.0", Bus: "pci"},
		{Name: "ipv0", Kind: "ipvlan"},
		{Name: "tun0", Kind: "tun", Type: unix.ARPHRD_NONE},
	}
	for i := range h {
		l := &h[i]
		l.Index = int32(i)
		l.Flags |= unix.IFF_UP | unix.IFF_LOWER_UP
		if l.Type == 0 {
			l.Type, l.MTU = unix.ARPHRD_ETHER, 4200
		}
	}
	addrs := []rtnl.Address{
		{Index: 1, Prefix: netip.MustParsePrefix("172.16.11.3/24")},
		{Index: 2, Prefix: netip.MustParsePrefix("172.16.12.3/24")},
		{Index: 2, Prefix: netip.MustParsePrefix("fd00:12::3/64")},
		{Index: 5, Prefix: netip.MustParsePrefix("10.0.0.3/16")},
		{Index: 8, Prefix: netip.MustParsePrefix("172.16.11.200/32")},
	}
	sys := fstest.MapFS{}
	device := func(dir, vendor, id, driver string) {
		if vendor != "" {
			sys[dir+"/vendor"] = &fstest.MapFile{Data: []byte(vendor + "\n")}
			sys[dir+"/device"] = &fstest.MapFile{Data: []byte(id + "\n")}
		}
		symlink(sys, dir+"/driver", "../../../bus/x/drivers/"+driver)
	}
	device("bus/pci/devices/0000:0b:00.0", "0x15b3", "0x101b", "mlx5_core")
	device("bus/pci/devices/0000:0b:00.1", "0x15b3", "0x101b", "mlx5_core")
	device("bus/pci/devices/0000:0b:00.2", "0x15b3", "0x101c", "mlx5_core")
	device("bus/auxiliary/devices/mlx5_core.sf.4", "", "", "mlx5_core.sf")
	device("bus/pci/devices/0000:01:00.0", "0x8086", "0x1521", "igb")
	device("bus/pci/devices/0000:0d:00.0", "0x15b3", "0x101b", "mlx5_core")
	symlink(sys, "class/net/eno1/device", "../../../0000:01:00.0")
	return h, addrs, sys
}

// selectOne selects the link of an attachment with one interface.
func selectOne(ctx context.Context, p Place, req conf.Request) (plan.Link, error) {
	links, faults, err := Select(ctx, p, req)
	if err != nil {
		return plan.Link{}, err
	}
	return links[0], faults[0]
}

func symlink(sys fstest.MapFS, name, target string) {
	sys[name] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink}
}

func TestSelectorMustMatchExactlyOne(t *testing.T) {
	t.Parallel()
	subnet := netip.MustParsePrefix
	for _, c := range []struct {
		p    conf.Parent
		want string // a name, or what the error lists
	}{
		{conf.Parent{Name: "bond0"}, "bond0"},
		{conf.Parent{Name: "rail0"}, "enp11s0f0np0"},
		{conf.Parent{Name: "an-altname-of-more-than-15"}, "enp11s0f0np0"},
		{conf.Parent{Name: "nosuch"}, `!"nosuch": there is no such interface`},
		{conf.Parent{Name: "mac0"}, "mac0"}, // named, a macvlan is fine

		{conf.Parent{Subnet: subnet("172.16.12.0/24")}, "enp11s0f1np1"},
		{conf.Parent{Subnet: subnet("172.16.0.0/16"), IfNames: []string{"enp*f0*"}}, "enp11s0f0np0"},
		{conf.Parent{Subnet: subnet("172.16.0.0/16")}, "!want exactly one NIC, got 3: enp11s0f0np0, enp11s0f1np1, vethpod"},
		{conf.Parent{Subnet: subnet("fd00:12::/64")}, "enp11s0f1np1"},
		{conf.Parent{Subnet: subnet("10.0.0.0/24")}, "!no NIC has all"}, // the NIC's prefix is wider

		{conf.Parent{PCI: "0000:0b:00.1"}, "enp11s0f1np1"},
		{conf.Parent{PCI: "0000:0B:00.1"}, "enp11s0f1np1"},
		{conf.Parent{PCI: "0000:01:00.0"}, "eno1"},
		{conf.Parent{PCI: "mlx5_core.sf.4"}, "enp11s0f0s88"},
		{conf.Parent{PCI: "0000:ff:00.0"}, "!left out: bond0 (pci 0000:0c:00.0), eno1 (pci 0000:01:00.0), enp11s0f0np0 (pci 0000:0b:00.0)"},

		{conf.Parent{IfNames: []string{"eno*"}}, "eno1"},
		{conf.Parent{IfNames: []string{"rail?"}}, "enp11s0f0np0"},
		{conf.Parent{IfNames: []string{"lo", "mac0", "ipv0"}}, "!no NIC has all"},
		{conf.Parent{IfNames: []string{"[", "bond0"}}, "bond0"},

		{conf.Parent{Vendors: []string{"8086"}}, "eno1"},
		{conf.Parent{Vendors: []string{"0X15B3"}, DeviceIDs: []string{"101C"}}, "enp11s0f0v0"},
		{conf.Parent{Vendors: []string{"8086", "15b3"}, DeviceIDs: []string{"1521"}}, "eno1"},
		{conf.Parent{Vendors: []string{"8086"}, DeviceIDs: []string{"101b"}}, "!no NIC has all"},
		{conf.Parent{Vendors: []string{""}}, "!no NIC has all"},
		{conf.Parent{Drivers: []string{"igb"}}, "eno1"},
		{conf.Parent{Drivers: []string{"mlx5_core.sf"}}, "enp11s0f0s88"},
		{conf.Parent{Drivers: []string{"mlx5_core"}}, "!got 4: enp11s0f0np0, enp11s0f0v0, enp11s0f1np1, ibp1"},
		{conf.Parent{Drivers: []string{"mlx5_core"}, LinkTypes: []string{"ether"}, DeviceIDs: []string{"101b"}, IfNames: []string{"*np1"}}, "enp11s0f1np1"},
		{conf.Parent{LinkTypes: []string{"infiniband"}}, "!InfiniBand"},
	} {
		h, addrs, sys := gpuNode()
		l, err := selectOne(t.Context(), Place{h, addrs, noRDMA, sys}, conf.Request{Rails: []conf.Rail{{Parent: c.p}}})
		part, fails := strings.CutPrefix(c.want, "!")
		switch {
		case fails && (err == nil || !strings.Contains(err.Error(), part)):
			t.Errorf("%+v: got %q, %v, want an error with %q", c.p, l.Name, err, part)
		case !fails && (err != nil || string(l.Name) != c.want):
			t.Errorf("%+v: got %q, %v, want %q", c.p, l.Name, err, c.want)
		}
	}
}

// TestWhatIsSelectedIsKnownWhole also says that nothing more is asked about a NIC that is named.
func TestWhatIsSelectedIsKnownWhole(t *testing.T) {
	t.Parallel()
	h, addrs, sys := gpuNode()
	h[1].Address, h[10].Address = []byte{2, 0, 0, 0, 0, 1}, make([]byte, 20)
	got, err := selectOne(t.Context(), Place{silent{h}, addrs, noRDMA, sys}, conf.Request{Rails: []conf.Rail{{Parent: conf.Parent{Name: "rail0"}}}})
	want := plan.Link{
		Name: "enp11s0f0np0", MAC: conf.MAC{2, 0, 0, 0, 0, 1}, MTU: 4200, Index: 1, Layers: [][]int32{{1}},
		Addrs: []netip.Prefix{netip.MustParsePrefix("172.16.11.3/24")},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Prefix{})); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	if got := MAC(h[10]); got != (conf.MAC{}) {
		t.Errorf("an IPoIB link has the MAC %s", got)
	}
}

func TestLinksOfPodsAndOfRoceAreNoNICs(t *testing.T) {
	t.Parallel()
	h := host{
		{Name: "lo", Flags: unix.IFF_LOOPBACK},
		{Name: "a", Kind: "macvlan"},
		{Name: "b", Kind: "macvtap"},
		{Name: "c", Kind: "ipvlan"},
		{Name: "d", Kind: "ipvtap"},
		{Name: "e", Kind: "vlan", Alias: plan.VLANMark},
		{Name: "f", Kind: "vlan"},
		{Name: "g", Kind: "dummy", Alias: plan.VLANMark},
		{Name: "h"},
	}
	req := conf.Request{Rails: []conf.Rail{{Parent: conf.Parent{IfNames: []string{"*"}}}}}
	_, err := selectOne(t.Context(), Place{h, nil, noRDMA, fstest.MapFS{}}, req)
	wantText(t, err, "select master: want exactly one NIC, got 3: f, g, h")
	req.VLAN = 120
	_, err = selectOne(t.Context(), Place{h, nil, noRDMA, fstest.MapFS{}}, req)
	wantText(t, err, "select master: want exactly one NIC, got 2: g, h")
}

func TestRepresentorsAreKnownByTheirPorts(t *testing.T) {
	t.Parallel()
	for port, want := range map[string]bool{
		"pf0vf0": true, "pf12sf88": true, "c1pf0vf3": true, "c10pf0sf3": true,
		"": false, "p0": false, "pf0": false, "pf0x1": false, "vf0": false, "sf0": false, "c1pf0": false, "c1vf0": false, "xpf0vf0": false, "1pf0vf0": false,
	} {
		if got := Representor(port); got != want {
			t.Errorf("%q: %t", port, got)
		}
	}
}

// TestHardwareIsOnTheEthernetLinksAlone has an IPoIB link of the same vendor.
func TestHardwareIsOnTheEthernetLinksAlone(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]struct{ vendors, ids []string }{
		"enp11s0f0np0 enp11s0f1np1 enp11s0f0v0": {vendors: []string{"15b3"}},
		"enp11s0f0np0 enp11s0f1np1":             {vendors: []string{"15b3", "8086"}, ids: []string{"101b"}},
		"eno1":                                  {ids: []string{"1521"}},
		"bond1 bond0 ens2np0":                   {ids: []string{"101d"}}, // on another node
	} {
		h, _, sys := gpuNode()
		if strings.HasPrefix(want, "bond") {
			h, sys = lags()
		}
		var got []string
		for _, l := range Hardware(h, c.vendors, c.ids, sys) {
			got = append(got, l.Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%+v: got %q, want %q", c, got, want)
		}
	}
}

// TestAVirtioNICIsSelectedAsLspciShowsIt: its virtio device has numbers of its own.
func TestAVirtioNICIsSelectedAsLspciShowsIt(t *testing.T) {
	t.Parallel()
	h, addrs, sys := gpuNode()
	h = append(h, rtnl.Link{Index: int32(len(h)), Name: "virt", Type: unix.ARPHRD_ETHER, MTU: 4200, Flags: unix.IFF_UP | unix.IFF_LOWER_UP, Dev: "virtio3", Bus: "virtio"})
	symlink(sys, "bus/virtio/devices/virtio3", "../../../devices/pci0000:00/0000:00:03.0/virtio3")
	for name, id := range map[string]string{
		"devices/pci0000:00/0000:00:03.0/virtio3/vendor": "0x1af4", "devices/pci0000:00/0000:00:03.0/virtio3/device": "0x0001",
		"bus/pci/devices/0000:00:03.0/vendor": "0x1af4", "bus/pci/devices/0000:00:03.0/device": "0x1041",
	} {
		sys[name] = &fstest.MapFile{Data: []byte(id + "\n")}
	}
	symlink(sys, "devices/pci0000:00/0000:00:03.0/virtio3/driver", "../../../../bus/virtio/drivers/virtio_net")
	for _, p := range []conf.Parent{{PCI: "0000:00:03.0"}, {Vendors: []string{"1af4"}, DeviceIDs: []string{"1041"}}, {Drivers: []string{"virtio_net"}}} {
		l, err := selectOne(t.Context(), Place{h, addrs, noRDMA, sys}, conf.Request{Rails: []conf.Rail{{Parent: p}}})
		if err != nil || l.Name != "virt" {
			t.Errorf("%+v: got %q, %v", p, l.Name, err)
		}
	}
	// Without PCI, it is what it is on its bus; a scalable function is not the NIC that it is of.
	h = append(h, rtnl.Link{Index: int32(len(h)), Name: "mmio", Type: unix.ARPHRD_ETHER, MTU: 4200, Flags: unix.IFF_UP | unix.IFF_LOWER_UP, Dev: "virtio0", Bus: "virtio"})
	symlink(sys, "bus/virtio/devices/virtio0", "../../../devices/platform/a003e00.virtio_mmio/virtio0")
	rail, railSys := railNode()
	for name, on := range map[string]Place{"virtio0": {h, addrs, noRDMA, sys}, "mlx5_core.sf.9": {rail, nil, noRDMA, railSys}} {
		l, err := selectOne(t.Context(), on, conf.Request{Rails: []conf.Rail{{Parent: conf.Parent{PCI: name}}}})
		if err != nil || l.Name != map[string]conf.LinkName{"virtio0": "mmio", "mlx5_core.sf.9": "sf9"}[name] {
			t.Errorf("%s: got %q, %v", name, l.Name, err)
		}
	}
	_, err := selectOne(t.Context(), Place{h, addrs, noRDMA, sys}, conf.Request{Rails: []conf.Rail{{Parent: conf.Parent{DeviceIDs: []string{"9999"}, IfNames: []string{"virt"}}}}})
	if err == nil || !strings.Contains(err.Error(), "virt (deviceIDs 1041)") {
		t.Errorf("got %v, want the ID of the PCI function", err)
	}
}

// TestRepresentorsAreSelectedByTheirNamesAlone has a NIC in switchdev mode: the
// representors of its functions have its PCI address.
func TestRepresentorsAreSelectedByTheirNamesAlone(t *testing.T) {
	t.Parallel()
	nic := func(index int32, name, port string) rtnl.Link {
		return rtnl.Link{
			Index: index, Name: name, PhysPort: port, Dev: "0000:0b:00.0", Bus: "pci",
			MTU: 4200, Type: unix.ARPHRD_ETHER, Flags: unix.IFF_UP | unix.IFF_LOWER_UP,
		}
	}
	h := host{
		nic(1, "uplink", "p0"), nic(2, "rep0", "pf0vf0"), nic(3, "rep1", "pf0sf88"), nic(4, "rep2", "c1pf0vf3"),
	}
	h[2].AltNames = []string{"pod7"}
	for _, tc := range []struct {
		p    conf.Parent
		want conf.LinkName
	}{
		{conf.Parent{PCI: "0000:0b:00.0"}, "uplink"},
		{conf.Parent{PCI: "0000:0b:00.0", IfNames: []string{"*"}}, "uplink"},
		{conf.Parent{IfNames: []string{"rep1"}}, "rep1"},
		{conf.Parent{IfNames: []string{"rep9", "pod7"}}, "rep1"},
		{conf.Parent{Name: "rep2"}, "rep2"},
	} {
		got, err := selectOne(t.Context(), Place{h, nil, noRDMA, fstest.MapFS{}}, conf.Request{Rails: []conf.Rail{{Parent: tc.p}}})
		if err != nil || got.Name != tc.want {
			t.Errorf("%+v: got %q, %v, want %q", tc.p, got.Name, err, tc.want)
		}
	}
}

func TestErrorsListOnlySomeNames(t *testing.T) {
	t.Parallel()
	var h host
	for i := range 40 {
		h = append(h, rtnl.Link{Name: fmt.Sprintf("nic%02d", i), Type: unix.ARPHRD_ETHER})
	}
	_, err := selectOne(t.Context(), Place{h, nil, noRDMA, fstest.MapFS{}}, conf.Request{Rails: []conf.Rail{{Parent: conf.Parent{IfNames: []string{"nic*"}}}}})
	if err == nil || !strings.HasSuffix(err.Error(), "nic11, and 28 more") {
		t.Errorf("got %v", err)
	}
}

func TestLinksThatCannotCarryAMacvlan(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		code cnierr.Code
		hint string
		text string
	}{
		{"lo", cnierr.BadParent, "Ethernet", `use master "lo": its link layer is loopback, and macvlan needs Ethernet`},
		{"tun0", cnierr.BadParent, "Ethernet", `use master "tun0": its link layer is none, and macvlan needs Ethernet`},
		{"ipv0", cnierr.BadParent, "the NIC below it", `use master "ipv0": it is an ipvlan, which shares its MAC and drops frames for any other`},
		{"tap0", cnierr.BadParent, "the NIC below it", `use master "tap0": it is an ipvtap, which shares its MAC and drops frames for any other`},
		{"bondport", cnierr.BadParent, "use bond0 as master, or remove bondport from it", `use master "bondport": it is a port of the bond "bond0", which takes its frames`},
		{"teamport", cnierr.BadParent, "use vlan0 as master", `use master "teamport": it is a port of the team "vlan0", which takes its frames`},
		{"orphan", cnierr.BadParent, "use openvswitch as master", `use master "orphan": it is a port of the openvswitch "openvswitch", which takes its frames`},
		{"ibp1", cnierr.NoRDMA, "IPoIB", `use master "ibp1": its link layer is InfiniBand, and macvlan and RoCE need Ethernet`},
		{"vlan0", cnierr.BadParent, `"vlan": 7`, `use master "vlan0": roce has made this VLAN for pods of other networks, and removes it with the last of them`},
	} {
		h, addrs, sys := gpuNode()
		for _, l := range []rtnl.Link{
			{Name: "vlan0", Kind: "vlan", VLAN: 7, Alias: plan.VLANMark},
			{Name: "tap0", Kind: "ipvtap"},
			{Name: "teamport", SlaveKind: "team", Master: 13},
			{Name: "orphan", SlaveKind: "openvswitch", Master: 99},
		} {
			l.Type, l.Flags = unix.ARPHRD_ETHER, unix.IFF_UP|unix.IFF_LOWER_UP
			h = append(h, l)
		}
		_, err := selectOne(t.Context(), Place{h, addrs, noRDMA, sys}, conf.Request{Rails: []conf.Rail{{Parent: conf.Parent{Name: conf.LinkName(c.name)}}}})
		wantError(t, err, c.code, c.hint)
		wantText(t, err, c.text)
	}
}

func TestLinksThatCarryNothingNow(t *testing.T) {
	t.Parallel()
	req := conf.Request{MTU: 4200, Rails: []conf.Rail{{Parent: conf.Parent{Name: "bond0"}}}}
	for _, c := range []struct {
		change func(*rtnl.Link)
		code   cnierr.Code
		hint   string
		text   string
	}{
		{func(l *rtnl.Link) { l.Flags = 0 }, cnierr.BadParent, "ip link set bond0 up", `use master "bond0": it is down`},
		{func(l *rtnl.Link) { l.Flags = unix.IFF_UP }, cnierr.BadParent, "ethtool bond0", `use master "bond0": it is up but has no carrier`},
		{
			func(l *rtnl.Link) { l.MTU = 4199 }, cnierr.BadConfig, "set mtu to at most 4199, or raise the master's: ip link set bond0 mtu 4200",
			`check "mtu": want at most 4199, the MTU of master "bond0", got 4200`,
		},
	} {
		h, addrs, sys := gpuNode()
		if _, err := selectOne(t.Context(), Place{h, addrs, noRDMA, sys}, req); err != nil {
			t.Fatal(err)
		}
		c.change(&h[6])
		_, err := selectOne(t.Context(), Place{h, addrs, noRDMA, sys}, req)
		wantError(t, err, c.code, c.hint)
		wantText(t, err, c.text)
	}
}

func TestWithoutMasterAndDefaultRouteTheKeyIsNamed(t *testing.T) {
	t.Parallel()
	h, addrs, sys := gpuNode()
	_, err := selectOne(t.Context(), Place{h, addrs, noRDMA, sys}, conf.Request{Rails: []conf.Rail{{}}})
	wantError(t, err, cnierr.BadParent, "key master")
}

// routed is a node with these routes.
type routed struct {
	host
	routes []rtnl.Route
}

func (r routed) RoutesOf(_ context.Context, family uint8, table uint32) ([]rtnl.Route, error) {
	return slices.DeleteFunc(slices.Clone(r.routes), func(is rtnl.Route) bool { return rtnl.Family(is.Dst.Addr()) != family || is.Table != table }), nil
}

func TestMasterOfTheDefaultRoute(t *testing.T) {
	t.Parallel()
	route := func(dst string, index int32, metric uint32) rtnl.Route {
		return rtnl.Route{Table: unix.RT_TABLE_MAIN, Dst: netip.MustParsePrefix(dst), Index: index, Metric: metric, Type: unix.RTN_UNICAST}
	}
	none := []rtnl.Route{route("10.0.0.0/8", 1, 0), route("0.0.0.0/0", 1, 0), route("0.0.0.0/0", 1, 0)}
	none[1].Table, none[2].Type = 100, unix.RTN_UNREACHABLE
	for name, c := range map[string]struct {
		routes []rtnl.Route
		want   conf.LinkName
	}{
		"the lowest metric":     {[]rtnl.Route{route("0.0.0.0/0", 1, 20), route("0.0.0.0/0", 5, 10), route("0.0.0.0/0", 2, 30)}, "eno1"},
		"the first of a metric": {[]rtnl.Route{route("0.0.0.0/0", 2, 20), route("0.0.0.0/0", 5, 20)}, "enp11s0f1np1"},
		"IPv4 before IPv6":      {[]rtnl.Route{route("::/0", 1, 0), route("0.0.0.0/0", 5, 100)}, "eno1"},
		"IPv6 alone":            {[]rtnl.Route{route("::/0", 5, 1024)}, "eno1"},
		"none":                  {nil, ""},
	} {
		h, addrs, sys := gpuNode()
		got, err := selectOne(t.Context(), Place{routed{h, append(none, c.routes...)}, addrs, noRDMA, sys}, conf.Request{Rails: []conf.Rail{{}}})
		if got.Name != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: got %q, %v, want %q", name, got.Name, err, c.want)
		}
	}
}

func wantText(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

func wantError(t *testing.T, err error, code cnierr.Code, hint string) {
	t.Helper()
	var e *cnierr.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Hint, hint) {
		t.Errorf("got %+v, want code %d and a hint with %q", e, code, hint)
	}
}
