// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

func TestTablesOfGIDsAreFilledFromTheFirstAddressToTheLastGID(t *testing.T) {
	t.Parallel()
	up, address, route := plan.InPod(plan.Up{})[0], plan.InPod(plan.Address{})[0], plan.InPod(plan.Route{})[0]
	gid, align, moved := plan.OnHost(plan.GID{})[0], plan.InPod(plan.Align{})[0], plan.InPod(plan.GID{})[0]
	for name, c := range map[string]struct {
		ops  plan.Ops
		want string
	}{
		"one device":              {plan.Ops{up, address, address, route, gid, up}, "1 5 false"},
		"two devices":             {plan.Ops{up, address, address, gid, route, gid}, "1 6 true"},
		"a promise":               {plan.Ops{up, address, align, route, gid, up}, "1 5 true"},
		"a promise alone":         {plan.Ops{up, address, align, route, moved}, "1 3 true"},
		"an adopted interface":    {plan.Ops{up, route, gid}, "2 3 false"},
		"a device that moves":     {plan.Ops{up, address, route, moved}, "1 1 false"},
		"neither address nor GID": {plan.Ops{up, route}, "2 2 false"},
	} {
		if got := fmt.Sprintln(c.ops.Registration()); got != c.want+"\n" {
			t.Errorf("%s: got %s want %s", name, got, c.want)
		}
	}
}

// TestARecordThatCannotBeUnderstoodIsNoPlan: it must not be undone in part.
func TestARecordThatCannotBeUnderstoodIsNoPlan(t *testing.T) {
	t.Parallel()
	const up = `{"op": "up", "place": "pod", "args": {"link": "net1"}}`
	for ops, says := range map[string]string{
		`{}`: "cannot unmarshal",
		`[` + up + `, {"op": "upp", "place": "pod", "args": {}}]`:             `operation 1: unknown kind "upp"`,
		`[` + up + `, {"op": "up", "place": "node", "args": {}}]`:             `operation 1: unknown place "node"`,
		`[` + up + `, {"op": "up", "place": "pod", "args": {"link": 5}}]`:     "operation 1: json: cannot unmarshal number",
		`[` + up + `, {"op": "rule", "place": "pod", "args": {"from": "x"}}]`: "operation 1: ",
	} {
		var got plan.Ops
		if err := json.Unmarshal([]byte(ops), &got); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want %s", ops, err, says)
		}
	}
}

func TestGIDIndexesOfOnePlanAreNotThoseOfAnother(t *testing.T) {
	t.Parallel()
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	ops := plan.OnHost(plan.Port{}, plan.GID{Targets: []plan.GIDTarget{{Addr: a}, {Addr: b}}}, plan.GID{Targets: []plan.GIDTarget{{Addr: a}}})
	for i, want := range []string{"[[7 9] [7]]", "[[8] [8]]", "[[] []]"} {
		var got [][]int
		known := []map[netip.Addr]int{{a: 7, b: 9}, {a: 8}, {}}[i]
		for g := range plan.All[plan.GID](ops.Located(known)) {
			got = append(got, g.Indexes())
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%v: got %v", known, got)
		}
	}
}

// TestAParentIsThatOfTheLink: repair asks for it as ADD did.
func TestAParentIsThatOfTheLink(t *testing.T) {
	t.Parallel()
	child := plan.Child{Name: "net1-2", Parent: "ens1.120", InPod: true, VLAN: conf.VLAN{ID: 120, NIC: "ens1"}, Mode: conf.VEPA, MTU: 9000}
	want := conf.Request{
		Rails: []conf.Rail{{IfName: "net1-2", Parent: conf.Parent{Name: "ens1"}}}, MinRails: 1,
		LinkInContainer: true, VLAN: 120, Mode: conf.VEPA, MTU: 9000,
	}
	got, makes := plan.InPod(child)[0].Parent()
	if diff := cmp.Diff(want, got, sameAddrs); diff != "" || !makes {
		t.Errorf("(-want +got):\n%s", diff)
	}
	child.VLAN = conf.VLAN{}
	if got, _ := plan.InPod(child)[0].Parent(); got.Rails[0].Parent.Name != "ens1.120" || got.VLAN != 0 {
		t.Errorf("without VLAN: got %+v", got)
	}
	for _, op := range plan.OnHost(plan.Veth{}, plan.VLAN{}, plan.Adopt{}, plan.Up{}) {
		if got, makes := op.Parent(); makes {
			t.Errorf("%s has no parent: got %+v", op.Name(), got)
		}
	}
}

// TestASharedLinkIsTheSameByItsName, even if its NIC had another index when it was made.
func TestASharedLinkIsTheSameByItsName(t *testing.T) {
	t.Parallel()
	op := func(place plan.Place, shared bool, k plan.Kind) plan.Op {
		return plan.Op{Place: place, Shared: shared, Kind: k}
	}
	vlan := plan.VLAN{Name: "ens1.120", VLAN: conf.VLAN{ID: 120, NIC: "ens1"}}
	later, other := vlan, vlan
	later.Identity, other.Name = plan.NIC{Index: 7}, "ens2.120"
	rule := plan.Rule{Table: 7, Priority: 500}
	for name, c := range map[string]struct {
		a, b plan.Op
		want bool
	}{
		"a VLAN":            {op(plan.Host, true, vlan), op(plan.Host, true, later), true},
		"another VLAN":      {op(plan.Host, true, vlan), op(plan.Host, true, other), false},
		"another place":     {op(plan.Host, true, vlan), op(plan.Pod, true, vlan), false},
		"one is not shared": {op(plan.Host, true, vlan), op(plan.Host, false, vlan), false},
		"neither is shared": {op(plan.Host, false, vlan), op(plan.Host, false, later), false},
		"a rule":            {op(plan.Host, true, rule), op(plan.Host, true, rule), true},
		"another rule":      {op(plan.Host, true, rule), op(plan.Host, true, plan.Rule{Table: 7, Priority: 501}), false},
		"a rule and a VLAN": {op(plan.Host, true, rule), op(plan.Host, true, vlan), false},
	} {
		if c.a.SharedWith(c.b) != c.want || c.b.SharedWith(c.a) != c.want {
			t.Errorf("%s: want %t", name, c.want)
		}
	}
}

func TestARunHasOneKindAtOnePlace(t *testing.T) {
	t.Parallel()
	shared := plan.Op{Place: plan.Host, Shared: true, Kind: plan.Rule{}}
	ops := slices.Concat(plan.OnHost(plan.Rule{}), plan.Ops{shared, shared}, plan.InPod(plan.Rule{}, plan.Up{}, plan.Up{}, plan.Rule{}))
	var got []int
	for _, run := range ops.Runs() {
		got = append(got, len(run))
	}
	if want := []int{1, 2, 1, 2, 1}; !slices.Equal(got, want) {
		t.Errorf("runs of %v operations, want %v", got, want)
	}
}

func TestANamespaceIsNamedByItsPathUnlessIPKnowsIt(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/run/netns/pod": "pod", "/var/run/netns/pod": "pod", "/proc/7/ns/net": "/proc/7/ns/net", "/var/run/docker/netns/pod": "/var/run/docker/netns/pod",
	} {
		if got := plan.NetnsName(path); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}

// TestAPodWithoutADefaultRouteIsIsolated if its first interface is ours.
func TestAPodWithoutADefaultRouteIsIsolated(t *testing.T) {
	t.Parallel()
	to := func(dst string, table uint32) plan.Route {
		return plan.Route{Dst: netip.MustParsePrefix(dst), Table: table}
	}
	for name, c := range map[string]struct {
		ops    plan.Ops
		ifName conf.LinkName
		before *current.Result
		want   bool
	}{
		"no route":                         {nil, "eth0", nil, true},
		"another route":                    {plan.InPod(to("10.0.0.0/8", plan.MainTable)), "eth0", nil, true},
		"a default route in another table": {plan.InPod(to("0.0.0.0/0", 100)), "eth0", nil, true},
		"a default route on the node":      {plan.OnHost(to("0.0.0.0/0", plan.MainTable)), "eth0", nil, true},
		"a default route":                  {plan.InPod(to("10.0.0.0/8", 100), to("::/0", plan.MainTable)), "eth0", nil, false},
		"another network is first":         {nil, "net1", nil, false},
		"another plugin is first":          {nil, "eth0", &current.Result{}, false},
	} {
		req := conf.Request{Attachment: conf.Attachment{IfName: c.ifName}, Before: c.before}
		if why := (plan.Plan{Ops: c.ops}).Isolated(req); strings.Contains(why, "docs/default-network.md") != c.want {
			t.Errorf("%s: got %q", name, why)
		}
	}
}

func TestANodeMayHaveManyAddresses(t *testing.T) {
	t.Parallel()
	req := parse(t, []byte(`{"cniVersion": "1.1.0", "name": "rail", "master": "ens1", "hostLink": {"routes": []}, "routing": "main",
		"ipam": {"type": "roce-ipam", "subnets": [{"subnet": "172.16.11.0/24", "gateway": "172.16.11.254"}]}}`))
	lease := plan.Lease{Addresses: []plan.LeasedAddress{{Prefix: netip.MustParsePrefix("172.16.11.9/24"), Gateway: netip.MustParseAddr("172.16.11.254")}}}
	var addrs []netip.Addr
	for i := range 256 {
		addrs = append(addrs, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
	}
	p, err := plan.Make(req, []plan.Rail{{Rail: req.Rails[0], Facts: plan.Facts{HostAddrs: addrs}, Lease: lease}})
	routes := 0
	for r := range plan.All[plan.Route](p.Ops.At(plan.Pod)) {
		if r.Dst.IsSingleIP() {
			routes++
		}
	}
	if err != nil || routes != len(addrs)+1 { // to local DNS, too
		t.Errorf("%d routes, %v", routes, err)
	}
}
