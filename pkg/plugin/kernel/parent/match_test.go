// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package parent

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// rails returns a request for n rails on NICs that fit p.
func rails(n int, p conf.Parent, order conf.Order) conf.Request {
	return conf.Request{Rails: make([]conf.Rail, n), Match: &conf.Match{Parent: p, Count: n, Order: order}}
}

// railNode is a node that lists its NICs in a wrong order: two PCI domains,
// buses above 9, two ports of one function, a virtual and two scalable
// functions, a virtio NIC, and links that are on no bus.
func railNode() (host, fstest.MapFS) {
	h := host{
		{Name: "lo", Type: unix.ARPHRD_LOOPBACK, Flags: unix.IFF_LOOPBACK},
		{Name: "rail10"},
		{Name: "rail9", Alias: "on no bus"},
		{Name: "zz", Dev: "0000:0a:00.0", Bus: "pci"},
		{Name: "far", Dev: "10000:01:00.0", Bus: "pci"},
		{Name: "yy", Dev: "0000:9a:00.0", Bus: "pci"},
		{Name: "a-port1", Dev: "0000:0b:00.0", Bus: "pci"},
		{Name: "b-port0", Dev: "0000:0b:00.0", Bus: "pci"},
		{Name: "vf", Dev: "0000:0a:01.2", Bus: "pci"},
		{Name: "sf10", Dev: "mlx5_core.sf.10", Bus: "auxiliary"},
		{Name: "sf9", Dev: "mlx5_core.sf.9", Bus: "auxiliary"},
		{Name: "virt"}, // a kernel that does not tell the device
		{Name: "mac0", Kind: "macvlan"},
	}
	for i := range h {
		h[i].Index, h[i].MTU = int32(i), 4200
		h[i].Flags |= unix.IFF_UP | unix.IFF_LOWER_UP
		if h[i].Type == 0 {
			h[i].Type = unix.ARPHRD_ETHER
		}
	}
	sys := fstest.MapFS{
		"class/net/b-port0/dev_port": {Data: []byte("0\n")},
		"class/net/a-port1/dev_port": {Data: []byte("1\n")},
	}
	symlink(sys, "bus/auxiliary/devices/mlx5_core.sf.9", "../../../devices/pci0000:00/0000:00:01.0/0000:0a:00.1/mlx5_core.sf.9")
	symlink(sys, "bus/auxiliary/devices/mlx5_core.sf.10", "../../../devices/pci0000:00/0000:00:01.0/0000:0a:00.1/mlx5_core.sf.10")
	symlink(sys, "class/net/virt/device", "../../../virtio3")
	symlink(sys, "virtio3/subsystem", "../bus/virtio")
	symlink(sys, "bus/virtio/devices/virtio3", "../../../devices/pci0000:00/0000:00:03.0/virtio3")
	return h, sys
}

// selected returns the names of the rails' links, and "!" for one with a fault.
func selected(t *testing.T, p Place, req conf.Request) ([]string, []error) {
	t.Helper()
	links, faults, err := Select(t.Context(), p, req)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for i, l := range links {
		name := string(l.Name)
		if faults[i] != nil {
			name = "!"
		}
		out = append(out, name)
	}
	return out, faults
}

func TestRailsAreInTheOrderOfThePCIBus(t *testing.T) {
	t.Parallel()
	h, sys := railNode()
	want := []string{"virt", "zz", "sf9", "sf10", "vf", "b-port0", "a-port1", "yy", "far", "rail9", "rail10"}
	unasked := func(context.Context) (nldev.System, error) {
		t.Error("asked for RDMA devices, which decide nothing")
		return nldev.System{}, nil
	}
	got, _ := selected(t, Place{h, nil, unasked, sys}, rails(11, conf.Parent{LinkTypes: []string{"ether"}}, conf.ByPCI))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	slices.Reverse(h)
	for i := range h {
		h[i].Index = int32(i)
	}
	got, _ = selected(t, Place{h, nil, noRDMA, sys}, rails(11, conf.Parent{LinkTypes: []string{"ether"}}, conf.ByPCI))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("listed the other way round (-want +got)\n%s", diff)
	}
}

// railRDMA is the RDMA devices of railNode: numbers above 9, one device with two
// ports, and two that name a port of another.
func railRDMA(context.Context) (nldev.System, error) {
	return nldev.System{Devices: []nldev.Device{
		{Name: "mlx5_1", Ports: []nldev.Port{{Number: 1, NetdevIndex: 7}}},
		{Name: "mlx5_11", Ports: []nldev.Port{{Number: 1, NetdevIndex: 5}}},
		{Name: "mlx5_10", Ports: []nldev.Port{{Number: 1, NetdevIndex: 3}}},
		{Name: "mlx5_2", Ports: []nldev.Port{{Number: 1, NetdevIndex: 5}}},
		{Name: "mlx4_0", Ports: []nldev.Port{{Number: 1, NetdevIndex: 7}, {Number: 2, NetdevIndex: 6}}},
	}}, nil
}

func TestRailsAreInTheOrderOfTheirRDMADevices(t *testing.T) {
	t.Parallel()
	h, sys := railNode()
	sys["class/infiniband_verbs/uverbs7/ibdev"] = &fstest.MapFile{Data: []byte("mlx5_9\n")} // a pod has it
	sys["class/infiniband_verbs/uverbs7/device/net/vf/mtu"] = &fstest.MapFile{}
	p := Place{h, nil, railRDMA, sys}
	ofRDMA := conf.Parent{IfNames: []string{"?-port?", "zz", "yy", "vf"}}
	got, _ := selected(t, p, rails(5, ofRDMA, conf.ByRDMA))
	if diff := cmp.Diff([]string{"b-port0", "a-port1", "yy", "vf", "zz"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	_, _, err := Select(t.Context(), p, rails(2, conf.Parent{IfNames: []string{"zz", "far"}}, conf.ByRDMA))
	wantError(t, err, cnierr.BadParent, "rails.order")
	if err == nil || !strings.Contains(err.Error(), `"far"`) {
		t.Errorf("got %v, want it to name the NIC without RDMA device", err)
	}
	p.Ask = noRDMA
	_, _, err = Select(t.Context(), p, rails(1, conf.Parent{IfNames: []string{"zz"}}, conf.ByRDMA))
	wantError(t, err, cnierr.BadParent, "rails.order")
}

func TestAnotherNumberOfNICsIsAnErrorWithTheirNames(t *testing.T) {
	t.Parallel()
	h, sys := railNode()
	for n, want := range map[int]string{
		1: "want 1 NICs, got 2: rail9, rail10",
		3: "want 3 NICs, got 2: rail9, rail10; left out: a-port1 (ifNames a-port1), b-port0 (ifNames b-port0), far (ifNames far), sf9 (ifNames sf9), " +
			"sf10 (ifNames sf10), vf (ifNames vf), virt (ifNames virt), yy (ifNames yy), zz (ifNames zz)",
	} {
		_, _, err := Select(t.Context(), Place{h, nil, noRDMA, sys}, rails(n, conf.Parent{IfNames: []string{"rail*"}}, conf.ByPCI))
		wantError(t, err, cnierr.BadParent, "rails.count")
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestANearMissIsNamedWithWhatItHas: each NIC that is left out has the key that it does
// not fit, and its own value. NICs come before virtual links.
func TestANearMissIsNamedWithWhatItHas(t *testing.T) {
	t.Parallel()
	h, addrs, sys := gpuNode()
	match := conf.Parent{
		Vendors: []string{"15b3"}, DeviceIDs: []string{"101b"}, LinkTypes: []string{"ether"}, Drivers: []string{"mlx5_core"},
		Subnet: netip.MustParsePrefix("172.16.0.0/15"), IfNames: []string{"e*", "veth*"},
	}
	_, _, err := Select(t.Context(), Place{h, addrs, noRDMA, sys}, rails(8, match, conf.ByPCI))
	const want = "want 8 NICs, got 2: enp11s0f0np0, enp11s0f1np1; left out: bond0 (subnet none), eno1 (subnet 10.0.0.3/16), " +
		"enp11s0f0s88 (subnet none), enp11s0f0v0 (subnet none), ibp1 (subnet none), tun0 (subnet none), vethpod (vendors none)"
	if err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %v\nwant %s", err, want)
	}
	all := conf.Parent{
		Function: conf.Virtual, PCI: "0000:ff:00.0", Vendors: []string{"14e4"}, DeviceIDs: []string{"1021"}, Drivers: []string{"bnxt_en"},
		Subnet: netip.MustParsePrefix("10.1.0.0/16"), IfNames: []string{"rail9"}, LinkTypes: []string{"none"},
	}
	without := func(keys string) conf.Parent {
		p := all
		for key, unset := range map[string]func(){
			"subnet": func() { p.Subnet = netip.Prefix{} }, "ifNames": func() { p.IfNames = nil }, "linkTypes": func() { p.LinkTypes = nil },
			"function": func() { p.Function = "" }, "pci": func() { p.PCI = "" }, "vendors": func() { p.Vendors = nil }, "deviceIDs": func() { p.DeviceIDs = nil },
		} {
			if strings.Contains(keys, key) {
				unset()
			}
		}
		return p
	}
	for key, c := range map[string]struct {
		p    conf.Parent
		want string
	}{
		"all":                 {all, "enp11s0f1np1 (subnet 172.16.12.3/24 fd00:12::3/64)"},
		"names before types":  {without("subnet"), "enp11s0f0np0 (ifNames enp11s0f0np0 rail0 an-altname-of-more-than-15)"},
		"types before NICs":   {without("subnet ifNames"), "eno1 (linkTypes ether)"},
		"functions before ID": {without("subnet ifNames linkTypes"), "eno1 (function physical)"},
		"IDs before vendors":  {without("subnet ifNames linkTypes function"), "eno1 (pci 0000:01:00.0)"},
		"vendors before type": {without("subnet ifNames linkTypes function pci"), "eno1 (vendors 8086)"},
		"types before driver": {without("subnet ifNames linkTypes function pci vendors"), "eno1 (deviceIDs 1521)"},
		"the driver":          {without("subnet ifNames linkTypes function pci vendors deviceIDs"), "eno1 (drivers igb)"},
		"linkTypes":           {conf.Parent{LinkTypes: []string{"none"}}, "eno1 (linkTypes ether)"},
		"deviceIDs":           {conf.Parent{DeviceIDs: []string{"1021"}}, "enp11s0f0v0 (deviceIDs 101c)"},
		"vendors":             {conf.Parent{Vendors: []string{"14e4"}}, "eno1 (vendors 8086)"},
		"drivers":             {conf.Parent{Drivers: []string{"bnxt_en"}}, "enp11s0f0s88 (drivers mlx5_core.sf)"},
	} {
		_, _, err := Select(t.Context(), Place{h, addrs, noRDMA, sys}, rails(2, c.p, conf.ByPCI))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", key, err, c.want)
		}
	}
}

// lags is a node with two bonds of two ports each, in the wrong order, beside a single NIC.
func lags() (host, fstest.MapFS) {
	h := host{{Name: "lo", Type: unix.ARPHRD_LOOPBACK, Flags: unix.IFF_LOOPBACK}, {Name: "bond1", Kind: "bond"}, {Name: "bond0", Kind: "bond"}}
	sys := fstest.MapFS{}
	for i, name := range []string{"ens3f1np1", "ens1f0np0", "ens3f0np0", "ens1f1np1", "ens2np0"} {
		function := fmt.Sprintf("0000:0%c:00.%c", name[3], "10010"[i])
		l := rtnl.Link{Name: name, Dev: function, Bus: "pci"}
		if i < 4 {
			l.SlaveKind, l.Master = "bond", int32(1+i%2)
		}
		h = append(h, l)
		for file, id := range map[string]string{"vendor": "0x15b3", "device": "0x101d"} {
			sys["bus/pci/devices/"+function+"/"+file] = &fstest.MapFile{Data: []byte(id + "\n")}
		}
		symlink(sys, "bus/pci/devices/"+function+"/driver", "../../../bus/pci/drivers/mlx5_core")
	}
	for i := range h {
		h[i].Index, h[i].MTU = int32(i), 4200
		h[i].Flags |= unix.IFF_UP | unix.IFF_LOWER_UP
		if h[i].Type == 0 {
			h[i].Type = unix.ARPHRD_ETHER
		}
	}
	return h, sys
}

// TestABondStandsForItsSlaves: it has their hardware and the place of the first of them, and they
// fit nothing themselves.
func TestABondStandsForItsSlaves(t *testing.T) {
	t.Parallel()
	h, sys := lags()
	p := Place{h, nil, noRDMA, sys}
	for _, c := range []struct {
		match conf.Parent
		want  []string
	}{
		{conf.Parent{Vendors: []string{"15b3"}, LinkTypes: []string{"ether"}}, []string{"bond0", "ens2np0", "bond1"}},
		{conf.Parent{DeviceIDs: []string{"101d"}, Drivers: []string{"mlx5_core"}, Function: conf.Physical}, []string{"bond0", "ens2np0", "bond1"}},
		{conf.Parent{Vendors: []string{"15b3"}, IfNames: []string{"bond*"}}, []string{"bond0", "bond1"}},
		{conf.Parent{PCI: "0000:03:00.1"}, []string{"bond1"}},
		{conf.Parent{PCI: "0000:03:00.0"}, []string{"bond1"}},
	} {
		got, faults := selected(t, p, rails(len(c.want), c.match, conf.ByPCI))
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%+v: %v (-want +got)\n%s", c.match, faults, diff)
		}
	}
	for _, c := range []struct {
		match      conf.Parent
		count      int
		text, hint string
	}{
		{conf.Parent{Vendors: []string{"15b3"}}, 5, "want 5 NICs, got 3: bond0, bond1, ens2np0; 4 more are slaves of bonds: ens1f0np0, ens1f1np1, ens3f0np0, ens3f1np1; there is no", "count it once"},
		{conf.Parent{IfNames: []string{"ens?f*"}}, 4, "got 0: none; 4 more are slaves of bonds: ", "write bond0, bond1 in place of slaves"},
		{conf.Parent{PCI: "0000:ff:00.0"}, 4, "left out: bond0 (pci 0000:01:00.0), bond1 (pci 0000:03:00.0), ens2np0 (pci 0000:02:00.0)", "correct rails.match"},
		{conf.Parent{Vendors: []string{"14e4"}}, 4, "got 0: none; left out: bond0 (vendors 15b3), bond1 (vendors 15b3), ens2np0 (vendors 15b3)", "correct rails.match"},
	} {
		_, _, err := Select(t.Context(), p, rails(c.count, c.match, conf.ByPCI))
		wantError(t, err, cnierr.BadParent, c.hint)
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: got %v\nwant %s", c.match, err, c.text)
		}
	}
	_, err := selectOne(t.Context(), p, conf.Request{Rails: []conf.Rail{{Parent: conf.Parent{IfNames: []string{"ens1f1*"}}}}})
	wantError(t, err, cnierr.BadParent, "write bond0 in place of slaves")
}

// TestABondHasThePlaceOfItsFirstSlaveOnTheBus lists the second first, and has a NIC between them.
func TestABondHasThePlaceOfItsFirstSlaveOnTheBus(t *testing.T) {
	t.Parallel()
	all := []rtnl.Link{
		{Name: "slave9", Index: 1, SlaveKind: "team", Master: 3, Dev: "0000:09:00.0", Bus: "pci"},
		{Name: "slave1", Index: 2, SlaveKind: "team", Master: 3, Dev: "0000:01:00.0", Bus: "pci"},
		{Name: "team0", Index: 3, Kind: "team"},
		{Name: "nic5", Index: 4, Dev: "0000:05:00.0", Bus: "pci"},
		{Name: "port0", Index: 5, SlaveKind: "bridge", Master: 6, Dev: "0000:00:00.0", Bus: "pci"},
		{Name: "br10", Index: 6, Kind: "bridge"},
		{Name: "br9", Index: 7, Kind: "bridge"},
	}
	links := []rtnl.Link{all[5], all[6], all[3], all[2]}
	SortByPCI(links, all, fstest.MapFS{})
	if diff := cmp.Diff([]rtnl.Link{all[2], all[3], all[6], all[5]}, links); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for id, want := range map[string]bool{
		"0000:0b:00.2": true, "10000:01:1f.7": true, "0000:0b:00": false, "0000:0b:00.2.1": false, "0000:0b:zz.2": false, "pci0000:00": false, "100000000:0:0.0": false,
	} {
		if got, ok := parsePCI(id); ok != want || !ok && got != (pciID{}) {
			t.Errorf("%q: got %v, %t", id, got, ok)
		}
	}
}

func TestRailsThatCannotServeKeepTheirNumbers(t *testing.T) {
	t.Parallel()
	h, sys := railNode()
	h[5].Flags, h[3].Flags = 0, 0             // yy and zz
	h[3].SlaveKind, h[3].Master = "bridge", 1 // that zz is down is not the reason
	got, faults := selected(t, Place{h, nil, noRDMA, sys}, rails(3, conf.Parent{IfNames: []string{"yy", "zz", "far"}}, conf.ByPCI))
	if diff := cmp.Diff([]string{"!", "!", "far"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	wantError(t, faults[0], cnierr.BadParent, "use rail10 as master")
	wantError(t, faults[1], cnierr.BadParent, "ip link set yy up")
}

// counting counts what a namespace is asked.
type counting struct {
	host
	asked map[string]int
}

func (c counting) LinksByName(ctx context.Context, names ...string) []rtnl.Named {
	c.asked["names"]++
	return c.host.LinksByName(ctx, names...)
}

func (c counting) Links(ctx context.Context) ([]rtnl.Link, error) {
	c.asked["links"]++
	return c.host.Links(ctx)
}

func TestNothingIsAskedTwice(t *testing.T) {
	t.Parallel()
	h, sys := railNode()
	h[1].Kind, h[2].Kind = "bond", "bond" // their layers are looked for
	asked := map[string]int{}
	p := Place{counting{h, asked}, nil, func(ctx context.Context) (nldev.System, error) {
		asked["rdma"]++
		return railRDMA(ctx)
	}, sys}
	req := conf.Request{}
	for _, m := range []conf.Parent{
		{RDMA: "mlx5_2"}, {Name: "rail9"}, {Name: "rail10"}, {RDMA: "mlx5_10"}, {Name: "nosuch"}, {IfNames: []string{"vf"}}, {RDMA: "nosuch"},
	} {
		req.Rails = append(req.Rails, conf.Rail{Parent: m})
	}
	got, faults := selected(t, p, req)
	if diff := cmp.Diff([]string{"yy", "rail9", "rail10", "zz", "!", "vf", "!"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	wantError(t, faults[4], cnierr.BadParent, "key master")
	wantError(t, faults[6], cnierr.NoRDMA, "rdma link show")
	if diff := cmp.Diff(map[string]int{"names": 1, "links": 1, "rdma": 1}, asked); diff != "" {
		t.Errorf("questions (-want +got)\n%s", diff)
	}
}

// refusing refuses one question: the one after so many others.
type refusing struct {
	host
	after *int
}

func (r refusing) next() (err error) {
	if *r.after == 0 {
		err = unix.EIO
	}
	*r.after--
	return err
}

func (r refusing) LinksByName(ctx context.Context, names ...string) []rtnl.Named {
	out := r.host.LinksByName(ctx, names...)
	for i := range out {
		if err := r.next(); err != nil {
			out[i] = rtnl.Named{Err: err}
		}
	}
	return out
}

func (r refusing) LinkByIndex(ctx context.Context, index int32) (rtnl.Link, error) {
	l, err := r.host.LinkByIndex(ctx, index)
	return l, errors.Join(r.next(), err)
}

func (r refusing) Links(context.Context) ([]rtnl.Link, error) { return r.host, r.next() }

func (r refusing) RoutesOf(context.Context, uint8, uint32) ([]rtnl.Route, error) {
	return []rtnl.Route{{Table: unix.RT_TABLE_MAIN, Dst: netip.MustParsePrefix("0.0.0.0/0"), Type: unix.RTN_UNICAST, Index: 3}}, r.next()
}

func (r refusing) rdma(ctx context.Context) (nldev.System, error) {
	known, err := railRDMA(ctx)
	return known, errors.Join(r.next(), err)
}

func TestANamespaceThatRefusesAnAnswerIsAllRailsFailure(t *testing.T) {
	t.Parallel()
	one := func(p conf.Parent) conf.Request { return conf.Request{Rails: []conf.Rail{{Parent: p}}} }
	onVLAN := one(conf.Parent{Name: "zz"})
	onVLAN.VLAN = 120
	for name, req := range map[string]conf.Request{
		"by name": one(conf.Parent{Name: "zz"}), "a bond": one(conf.Parent{Name: "vf"}), "a port": one(conf.Parent{Name: "yy"}), "a VLAN": onVLAN,
		"by pattern": one(conf.Parent{IfNames: []string{"zz"}}), "by RDMA device": one(conf.Parent{RDMA: "mlx5_2"}), "by route": one(conf.Parent{}),
		"by the PCI bus": rails(2, conf.Parent{IfNames: []string{"rail*"}}, conf.ByPCI), "by RDMA devices": rails(2, conf.Parent{IfNames: []string{"rail*"}}, conf.ByRDMA),
	} {
		for n := 0; ; n++ {
			h, sys := railNode()
			h.linked("vf").Kind = "bond"
			h.linked("yy").SlaveKind, h.linked("yy").Master = "bridge", 1
			after := n
			r := refusing{h, &after}
			_, _, err := Select(t.Context(), Place{r, nil, r.rdma, sys}, req)
			if after >= 0 {
				if n == 0 {
					t.Errorf("%s: nothing was asked", name)
				}
				break
			}
			if !errors.Is(err, unix.EIO) {
				t.Errorf("%s, question %d: got %v", name, n, err)
			}
		}
	}
}

func (h host) linked(name string) *rtnl.Link {
	return &h[slices.IndexFunc(h, func(l rtnl.Link) bool { return l.Name == name })]
}

func TestAddressesThatReachBeyondTheLink(t *testing.T) {
	t.Parallel()
	h, sys := railNode()
	address := func(index int32, s string, scope uint8, flags uint32) rtnl.Address {
		return rtnl.Address{Index: index, Prefix: netip.MustParsePrefix(s), Scope: scope, Flags: flags}
	}
	addrs := []rtnl.Address{
		address(3, "fd00:1::1/64", unix.RT_SCOPE_UNIVERSE, unix.IFA_F_PERMANENT),
		address(3, "fd00:1::77/64", unix.RT_SCOPE_UNIVERSE, unix.IFA_F_TEMPORARY),
		address(3, "fd00:1::78/64", unix.RT_SCOPE_UNIVERSE, unix.IFA_F_DADFAILED),
		address(3, "fe80::1/64", unix.RT_SCOPE_LINK, 0),
		address(3, "172.16.11.3/24", unix.RT_SCOPE_UNIVERSE, unix.IFA_F_PERMANENT),
		address(3, "172.16.11.4/24", unix.RT_SCOPE_UNIVERSE, unix.IFA_F_SECONDARY),
		address(3, "169.254.0.3/16", unix.RT_SCOPE_LINK, 0),
		address(4, "172.16.12.3/24", unix.RT_SCOPE_UNIVERSE, 0),
	}
	l, err := selectOne(t.Context(), Place{h, addrs, noRDMA, sys}, conf.Request{Rails: []conf.Rail{{Parent: conf.Parent{Name: "zz"}}}})
	want := []netip.Prefix{netip.MustParsePrefix("172.16.11.3/24"), netip.MustParsePrefix("172.16.11.4/24"), netip.MustParsePrefix("fd00:1::1/64")}
	if diff := cmp.Diff(want, l.Addrs, cmpopts.EquateComparable(netip.Prefix{})); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

func TestNamesAreComparedByTheValueOfTheirNumbers(t *testing.T) {
	t.Parallel()
	sorted := []string{"", "1", "02", "2", "10", "99999999999999999999", "eth", "eth0", "eth1.5", "eth1.10", "eth1v2", "eth1v10", "eth2", "mlx5_2", "mlx5_10", "mlx5_30", "mlx5_256", "mlx5_70000", "mlx5_5000000000", "mlx5_bond_0", "å1"}
	for i, a := range sorted {
		for j, b := range sorted {
			if got := Natural(a, b); got != cmpInt(i, j) {
				t.Errorf("%q and %q compare as %d", a, b, got)
			}
		}
	}
}

func cmpInt(a, b int) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
