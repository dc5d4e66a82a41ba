// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package repair

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

var same = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func address(link, prefix string) plan.Address {
	return plan.Address{Link: conf.LinkName(link), Prefix: netip.MustParsePrefix(prefix)}
}

// rails is a plan with net1, which has two addresses on mlx5_0, and net2 with one on mlx5_1.
func rails() plan.Plan {
	at := func(n int) *int { return &n }
	target := func(link, addr string, index *int) plan.GIDTarget {
		return plan.GIDTarget{Link: conf.LinkName(link), Addr: netip.MustParseAddr(addr), Index: index}
	}
	leased := func(link string, prefixes ...string) plan.Interface {
		i := plan.Interface{Name: conf.LinkName(link)}
		for _, p := range prefixes {
			i.Addresses = append(i.Addresses, plan.LeasedAddress{Prefix: netip.MustParsePrefix(p)})
		}
		return i
	}
	ops := plan.InPod(
		plan.Child{Name: "net1", Parent: "r0"}, plan.Child{Name: "net2", Parent: "r1", Mode: conf.Passthru},
		plan.Conflict{Probes: 3, Targets: []plan.Target{
			{Link: "net1", Addr: netip.MustParseAddr("10.0.0.5")}, {Link: "net1", Addr: netip.MustParseAddr("fd00::5")}, {Link: "net2", Addr: netip.MustParseAddr("10.1.0.5")},
		}},
		address("net1", "10.0.0.5/24"), address("net1", "fd00::5/64"), address("net2", "10.1.0.5/24"), plan.Rule{From: netip.MustParsePrefix("10.0.0.5/32"), Table: 100},
	)
	ops = append(ops, plan.OnHost(
		plan.GID{Device: plan.RDMADevice{Name: "mlx5_0", Index: 1, Port: 1}, Wait: time.Second, Targets: []plan.GIDTarget{
			target("net1", "fe80::5", nil), target("net1", "10.0.0.5", at(4)), target("net1", "fd00::5", at(3)),
		}},
		plan.GID{Device: plan.RDMADevice{Name: "mlx5_1", Index: 2, Port: 1}, Wait: time.Minute, Targets: []plan.GIDTarget{target("net2", "10.1.0.5", at(7))}},
	)...)
	return plan.Plan{Interfaces: []plan.Interface{leased("net1", "10.0.0.5/24", "fd00::5/64"), leased("net2", "10.1.0.5/24")}, Ops: ops}
}

// TestLostAddressesAreAskedForAndGetTheirIndexes: the others are left alone.
func TestLostAddressesAreAskedForAndGetTheirIndexes(t *testing.T) {
	t.Parallel()
	p := rails()
	lost := plan.InPod(plan.Up{Link: "net1"}, address("net1", "10.0.0.5/24"), address("net1", "fd00::5/64"), plan.Route{Link: "net1"})
	want := slices.Concat(lost[:1], plan.InPod(plan.Conflict{Probes: 3, Targets: []plan.Target{
		{Link: "net1", Addr: netip.MustParseAddr("10.0.0.5")}, {Link: "net1", Addr: netip.MustParseAddr("fd00::5")},
	}}), lost[1:3], plan.InPod(plan.Align{Index: conf.AnyIndex, Rails: []plan.AlignRail{{
		Link: "net1", Device: plan.RDMADevice{Name: "mlx5_0", Index: 1, Port: 1}, Wait: time.Second, Fillers: plan.Child{Name: "net1", Parent: "r0"}.Fillers(),
		Addresses: []netip.Prefix{netip.MustParsePrefix("fd00::5/64"), netip.MustParsePrefix("10.0.0.5/24")}, At: []int{3, 4},
	}}}), lost[3:])
	if diff := cmp.Diff(want, withProbe(p.Ops, withAlignment(p.Ops, lost)), same); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	routes := plan.InPod(plan.Route{Link: "net1"}, plan.Rule{})
	if diff := cmp.Diff(routes, withProbe(p.Ops, withAlignment(p.Ops, routes)), same); diff != "" {
		t.Errorf("without an address (-want +got)\n%s", diff)
	}
	other := plan.InPod(address("net1", "10.0.0.6/24"))
	if diff := cmp.Diff(other, withProbe(p.Ops, withAlignment(p.Ops, other)), same); diff != "" {
		t.Errorf("an address without probe and index (-want +got)\n%s", diff)
	}
	both := withAlignment(p.Ops, plan.InPod(address("net1", "10.0.0.5/24"), address("net2", "10.1.0.5/24")))
	if a, is := both[2].Kind.(plan.Align); !is || len(a.Rails) != 2 || a.Rails[1].Link != "net2" || a.Rails[1].Fillers != (plan.Child{}) || !slices.Equal(a.Rails[1].At, []int{7}) {
		t.Errorf("of two rails: got %+v", both)
	}
	for i, op := range p.Ops { // the device is in the pod
		if plan.Is[plan.GID](op) {
			p.Ops[i].Place = plan.Pod
		}
	}
	if got := withAlignment(p.Ops, lost); len(got) != len(lost) {
		t.Errorf("in exclusive mode: got %+v", got)
	}
}

func TestAddressesOfAPortAreThoseWithEntriesThere(t *testing.T) {
	t.Parallel()
	p := rails()
	got := addressesOn(p.Ops, plan.RDMADevice{Name: "renamed", Index: 1, Port: 1})
	if diff := cmp.Diff(plan.InPod(address("net1", "10.0.0.5/24"), address("net1", "fd00::5/64")), got, same); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := (Remade{Device: plan.RDMADevice{Name: "mlx5_0", Port: 2}}).String(); got != "mlx5_0/2" {
		t.Errorf("it is called %s", got)
	}
}

// TestRoutesOfWholeInterfacesAreMadeAlone: net1 misses routes, and net2 more than that.
func TestRoutesOfWholeInterfacesAreMadeAlone(t *testing.T) {
	t.Parallel()
	rule := plan.Rule{From: netip.MustParsePrefix("10.0.0.5/32"), Table: 100}
	whole := plan.InPod(plan.Route{Link: "net1", Table: 100}, rule)
	got, err := routing(rails(), slices.Concat(plan.InPod(plan.Route{Link: "net2", Table: 101}, address("net2", "10.1.0.5/24")), whole))
	if diff := cmp.Diff(whole, got, same); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if all := cnierr.Each(err); len(all) != 1 || cnierr.CodeOf(err) != cnierr.Damaged || !strings.Contains(err.Error(), `heal interface "net2": it misses more than routes and rules: `+plan.Op{Kind: address("", "10.1.0.5/24")}.Name()) {
		t.Errorf("got %v", err)
	}
	if got, err := routing(rails(), whole); err != nil || len(got) != 2 {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestAnAddressThatLacksItsRouteIsNotSetAgain, and nothing else is another thing than what was lost.
func TestAnAddressThatLacksItsRouteIsNotSetAgain(t *testing.T) {
	t.Parallel()
	v4, v6 := plan.InPod(address("net1", "10.0.0.5/24"))[0], plan.InPod(address("net1", "fd00::5/64"))[0]
	for _, tt := range []struct {
		op      plan.Op
		finding error
		want    plan.Kind
	}{
		{v4, kernel.ErrNoSubnetRoute, plan.Route{Link: "net1", Table: plan.MainTable, Dst: netip.MustParsePrefix("10.0.0.0/24"), Scope: plan.ScopeLink, Src: netip.MustParseAddr("10.0.0.5")}},
		{v6, kernel.ErrNoSubnetRoute, plan.Route{Link: "net1", Table: plan.MainTable, Dst: netip.MustParsePrefix("fd00::/64"), Metric: 256}},
		{v4, errors.New("gone"), v4.Kind},
		{plan.InPod(plan.Up{Link: "net1"})[0], kernel.ErrNoSubnetRoute, plan.Up{Link: "net1"}},
	} {
		if diff := cmp.Diff(plan.Op{Place: plan.Pod, Kind: tt.want}, fixFor(tt.op, tt.finding), same); diff != "" {
			t.Errorf("%v (-want +got)\n%s", tt.finding, diff)
		}
	}
}

func TestALinkGetsItsMTUAgainIfTheKernelHasLoweredIt(t *testing.T) {
	t.Parallel()
	op := plan.InPod(plan.Child{Name: "net1", Parent: "r0"})[0]
	lowered, set := &kernel.ChangedError{Property: "MTU", Raise: 9000}, &kernel.ChangedError{Property: "MTU"}
	if diff := cmp.Diff(plan.InPod(plan.Up{Link: "net1", MTU: 9000}), raising(op, []error{set, lowered})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := raising(op, []error{set, errors.New("another")}); len(got) > 0 {
		t.Errorf("what a program has set is changed: %+v", got)
	}
}

// TestALinkIsUntouchedWhileItIsDownAndHasNoAddress: the other link of the pod does not count.
func TestALinkIsUntouchedWhileItIsDownAndHasNoAddress(t *testing.T) {
	t.Parallel()
	gone := errors.New("gone")
	ops := plan.InPod(plan.Child{Name: "net1"}, plan.Up{Link: "net1"}, address("net1", "10.0.0.5/24"), plan.Up{Link: "net2"})
	for _, tt := range []struct {
		damage []error
		want   bool
	}{
		{[]error{nil, gone, gone, nil}, true},
		{[]error{nil, nil, gone, nil}, false},
		{[]error{nil, gone, nil, nil}, false},
	} {
		if got := untouched(ops, tt.damage, "net1"); got != tt.want {
			t.Errorf("%v: got %t", tt.damage, got)
		}
	}
}
