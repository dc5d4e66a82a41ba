// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// TestWhatIsKnownOfEachKind has a line for each: its name, who does it, its link, and
// what is said of it.
func TestWhatIsKnownOfEachKind(t *testing.T) {
	t.Parallel()
	var got strings.Builder
	for _, op := range plan.InPod(
		plan.VLAN{Name: "v"}, plan.Child{Name: "m"}, plan.Veth{Name: "e"}, plan.Adopt{Link: "a"}, plan.Sysctl{Link: "s"}, plan.Up{Link: "u"},
		plan.Neighbour{Link: "n"}, plan.Conflict{}, plan.Address{Link: "d"}, plan.Align{}, plan.Route{Link: "r"}, plan.Rule{}, plan.Orphans{},
		plan.Carriers{}, plan.Gateway{}, plan.Move{Link: "o"}, plan.Port{Link: "p"}, plan.GID{Targets: []plan.GIDTarget{{Link: "g"}}},
		plan.DeviceInfo{}, plan.Announce{}, nil,
	) {
		fmt.Fprintf(&got, "%s %d %s", op.Name(), op.By(), op.Link())
		one := plan.Ops{op}
		for _, is := range []struct {
			what string
			true bool
		}{
			{"marked", op.Marked()},
			{"stays", op.Stays()},
			{"routing", op.Routing()},
			{"foreign", op.Foreign()},
			{"looks", len(one.Changes()) == 0},
			{"makes a link", len(one.Links()) == 1 && len(one.OnLinks()) == 0},
		} {
			if is.true {
				got.WriteString(", " + is.what)
			}
		}
		got.WriteString("\n")
	}
	const want = `vlan 0 v, marked, makes a link
macvlan 0 m, marked, makes a link
veth 0 e, marked, makes a link
adopt 0 a, foreign
sysctl 0 s, routing
up 0 u
neighbour 0 n, routing
conflict 1 
address 0 d
align 3 
route 0 r, marked, routing
rule 0 , marked, routing
orphans 0 
carriers 0 
gateway 1 
move 2 o, stays
port 2 p, looks
gid 2 g, looks
deviceinfo 2 
announce 1 
 0 
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !(plan.Op{Shared: true, Kind: plan.Route{}}).Stays() {
		t.Error("what other pods share is undone by repair")
	}
	if op := plan.InPod(plan.Up{})[0]; !plan.Is[plan.Up](op) || plan.Is[plan.Rule](op) {
		t.Error("the kind of an operation is another one")
	}
}

// TestAnOperationIsOfItsInterface, by its link or, for a rule, by the address.
func TestAnOperationIsOfItsInterface(t *testing.T) {
	t.Parallel()
	addr := func(last byte) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, last}), 24) }
	p := plan.Plan{
		Interfaces: []plan.Interface{
			{Name: "net1", Addresses: []plan.LeasedAddress{{Prefix: addr(1)}, {Prefix: addr(2)}}},
			{Name: "net1-1", Addresses: []plan.LeasedAddress{{Prefix: addr(3)}}},
		},
		Ops: plan.InPod(
			plan.Child{Name: "net1"}, plan.Child{Name: "net1-1"}, plan.Rule{From: netip.PrefixFrom(addr(2).Addr(), 32), Priority: 2},
			plan.Rule{From: netip.PrefixFrom(addr(3).Addr(), 32), Priority: 3}, plan.Rule{From: netip.PrefixFrom(addr(4).Addr(), 32), Priority: 4}, plan.Conflict{},
		),
	}
	names := func(ops plan.Ops) string {
		var out []string
		for _, op := range ops {
			text := op.Name() + string(op.Link())
			if r, is := op.Kind.(plan.Rule); is {
				text += fmt.Sprint(r.Priority)
			}
			out = append(out, text)
		}
		return strings.Join(out, " ")
	}
	got := []string{names(p.Of(p.Interfaces[0])), names(p.Of(p.Interfaces[1])), names(p.Of(p.Interfaces...)), names(p.OfNone()), fmt.Sprint(p.Addresses())}
	want := []string{
		"macvlannet1 rule2", "macvlannet1-1 rule3", "macvlannet1 macvlannet1-1 rule2 rule3", "rule4 conflict",
		fmt.Sprint([]plan.LeasedAddress{{Prefix: addr(1)}, {Prefix: addr(2)}, {Prefix: addr(3)}}),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhatALostRecordLeavesToUndo(t *testing.T) {
	t.Parallel()
	at := conf.Attachment{ContainerID: "c1", IfName: "net1"}
	ops := plan.Unrecorded(at)
	mark := plan.Mark(at)
	veth, _ := ops[0].Kind.(plan.Veth)
	want := append(plan.OnHost(plan.Veth{Name: veth.Name, Mark: mark}), plan.InPod(plan.Child{Name: "net1", Mark: mark}, plan.Orphans{Link: "net1", Mark: mark})...)
	if diff := cmp.Diff(want, ops, sameAddrs); diff != "" || veth.Name == "" || mark == "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if other := plan.Unrecorded(conf.Attachment{ContainerID: "c2", IfName: "net1"})[0].Kind.(plan.Veth); other.Name == veth.Name {
		t.Errorf("two attachments have the link %s on the host", other.Name)
	}
}

// DEL and repair show operations that no plan has.
func TestCommandsOfWhatNoPlanHas(t *testing.T) {
	t.Parallel()
	v4, v6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	rail := plan.AlignRail{Link: "net1", Device: plan.RDMADevice{Name: "mlx5_0", Port: 2}, At: []int{4, 7}}
	other := plan.AlignRail{Link: "net2", Device: plan.RDMADevice{Name: "mlx5_1", Port: 1}}
	got := plan.InPod(
		plan.Orphans{Link: "net1", Mark: "roce:c1/net1"}, plan.Carriers{Addresses: []netip.Addr{v4, v6}}, plan.Up{Link: "net1", MTU: 1280},
		plan.Align{Index: conf.EqualIndex, Rails: []plan.AlignRail{rail, other}},
	).Commands("pod")
	want := []string{
		"# rules of protocol 82 from the addresses of net1 in pod (ip -n pod rule show protocol 82)",
		"# macvlans and ipvlans in pod with 10.0.0.1, fd00::1 (ip -n pod -d addr show)",
		"ip -n pod link set dev net1 mtu 1280 up",
		"# net1: make the GID index 4 7 in the table of mlx5_0/2, with fillers of 169.254.64.0/20",
		"# net2: make the GID index 4 7 in the table of mlx5_1/1, with fillers of 169.254.64.0/20",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFillersAreNodesOfTheNIC(t *testing.T) {
	t.Parallel()
	c := plan.Child{Name: "net1", Parent: "ens1", NIC: plan.NIC{Index: 7}, Mode: conf.VEPA, MTU: 9000, MAC: conf.MAC{2, 9}, Mark: "roce:c1/net1"}
	got := c.Fillers()
	want := plan.Child{Name: got.Name, Parent: "ens1", NIC: c.NIC, Mode: conf.Bridge, MTU: 1280, MAC: got.MAC, Mark: plan.FillerMark}
	if diff := cmp.Diff(want, got); diff != "" || got.MAC == c.MAC || !strings.HasPrefix(string(got.Name), "gids-") || len(got.Name) > 15 {
		t.Errorf("%s (-want +got):\n%s", got.Name, diff)
	}
	l2 := c
	l2.Mode = conf.L2
	if f := l2.Fillers(); f.Mode != conf.L2 || f.MAC != c.MAC || f.Name != got.Name {
		t.Errorf("of an ipvlan: %+v", f)
	}
	passthru, inPod := c, c
	passthru.Mode, inPod.InPod = conf.Passthru, true
	if passthru.Fillers() != (plan.Child{}) || inPod.Fillers() != (plan.Child{}) {
		t.Error("a NIC that can have no other child, or is in the pod, has fillers")
	}
	for _, e := range []struct {
		addr, netdev string
		want         bool
	}{{"169.254.64.1", string(got.Name), true}, {"169.254.79.255", "gids-x", true}, {"169.254.80.0", "gids-x", false}, {"169.254.64.1", "net1", false}} {
		if is := plan.IsFiller(netip.MustParseAddr(e.addr), e.netdev); is != e.want {
			t.Errorf("%+v: got %t", e, is)
		}
	}
}

func TestFactsOfOneInterface(t *testing.T) {
	t.Parallel()
	no := errors.New("no")
	facts := plan.Facts{Parent: plan.Link{Name: "ens1"}}
	if got, err := plan.Only([]plan.RailFacts{{Facts: facts}}, nil); err != nil || got.Parent.Name != "ens1" {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := plan.Only([]plan.RailFacts{{Facts: facts, Fault: no}}, nil); !errors.Is(err, no) || got.Parent.Name != "" {
		t.Errorf("of one with a fault: %+v, %v", got, err)
	}
	if _, err := plan.Only(nil, no); !errors.Is(err, no) {
		t.Errorf("of none: %v", err)
	}
	prev := conf.Prev{Interface: 1, Result: &current.Result{Interfaces: []*current.Interface{{Name: "eth0", Mac: "02:00:00:00:00:01"}, {Name: "net1", Mac: "02:00:00:00:00:02", Mtu: 9000}}}}
	if got := plan.FromPrev(prev); got.MAC != (conf.MAC{2, 0, 0, 0, 0, 2}) || got.MTU != 9000 {
		t.Errorf("of the plugin before: %+v", got)
	}
	prev.Result.Interfaces[1].Mac = "unknown"
	if got := plan.FromPrev(prev); !got.MAC.IsZero() || got.MTU != 9000 {
		t.Errorf("a result without a valid MAC: %+v", got)
	}
	port := plan.RDMADevice{Name: "mlx5_0", Index: 3, Port: 1}
	for other, want := range map[plan.RDMADevice]bool{{Name: "renamed", Index: 3, Port: 1}: true, {Name: "mlx5_0", Index: 4, Port: 1}: false, {Name: "mlx5_0", Index: 3, Port: 2}: false} {
		if port.SamePort(other) != want {
			t.Errorf("%+v: want %t", other, want)
		}
	}
}

// A result of an older version has no key for what is more than destination and gateway.
func TestAnOlderResultHasOnlyRoutesOfTheMainTable(t *testing.T) {
	t.Parallel()
	to, via := netip.MustParsePrefix("10.3.0.0/16"), netip.MustParseAddr("10.2.0.1")
	p := plan.Plan{
		Interfaces: []plan.Interface{{Name: "net1", MTU: 9000}},
		Ops: append(plan.InPod(
			plan.Route{Table: plan.MainTable, Dst: to, Via: via, MTU: 1400, AdvMSS: 1360, Metric: 7, Scope: plan.ScopeLink},
			plan.Route{Table: 100, Dst: to, Scope: plan.ScopeLink},
		), plan.OnHost(plan.Route{Table: plan.MainTable, Dst: to})...),
	}
	dst := net.IPNet{IP: net.IP{10, 3, 0, 0}, Mask: net.CIDRMask(16, 32)}
	for version, want := range map[string][]*types.Route{
		"1.0.0": {{Dst: dst, GW: net.IP{10, 2, 0, 1}}},
		"1.1.0": {{Dst: dst, GW: net.IP{10, 2, 0, 1}, MTU: 1400, AdvMSS: 1360, Priority: 7, Scope: new(253)}, {Dst: dst, Table: new(100), Scope: new(253)}},
	} {
		res := p.Result(conf.Request{CNIVersion: version})
		if diff := cmp.Diff(want, res.Routes); diff != "" || (res.Interfaces[0].Mtu == 9000) != (version == "1.1.0") {
			t.Errorf("%s: MTU %d (-want +got):\n%s", version, res.Interfaces[0].Mtu, diff)
		}
	}
}
