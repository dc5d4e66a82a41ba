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
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

func TestAnInterfaceThatIsNotThereIsNamedTogetherWithThoseThatAre(t *testing.T) {
	t.Parallel()
	v := view{Addrs: []Addr{
		{Link: "net2", Addr: netip.MustParseAddr("172.17.0.5")},
		{Link: "net1", Addr: netip.MustParseAddr("172.16.0.5")},
		{Link: "net2", Addr: netip.MustParseAddr("fd00::5")},
	}}
	if got, err := addrs(v, "net2"); err != nil || len(got) != 2 {
		t.Errorf("net2: got %v, %v", got, err)
	}
	if got, err := addrs(v, ""); err != nil || !slices.Equal(got, v.Addrs) {
		t.Errorf("all: got %v, %v", got, err)
	}
	if got, err := addrs(view{}, ""); err != nil || len(got) != 0 {
		t.Errorf("all of none: got %v, %v", got, err)
	}
	for want, v := range map[string]view{"with addresses are: net1, net2": v, "with addresses are: none": {}} {
		_, err := addrs(v, "net3")
		if cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(fmt.Sprint(err), `"net3"`) || !strings.HasSuffix(fmt.Sprint(err), want) {
			t.Errorf("got %v, want code %d and %q", err, cnierr.BadConfig, want)
		}
	}
}

func TestRailsAreApartIfOneHasNoRouteToAnother(t *testing.T) {
	t.Parallel()
	both := []Rail{{Link: "net1", Addr: netip.MustParseAddr("172.16.0.5")}, {Link: "net2", Addr: netip.MustParseAddr("172.17.0.5")}}
	route := func(link, dst string) linkRoute {
		return linkRoute{Link: conf.LinkName(link), Dst: netip.MustParsePrefix(dst)}
	}
	first, second := route("net1", "172.16.0.0/24"), route("net2", "172.17.0.0/24")
	for name, tc := range map[string]struct {
		rails  []Rail
		routes []linkRoute
		want   string
	}{
		"a subnet for each":      {both, []linkRoute{first, second, route("eth0", "0.0.0.0/0")}, "net1 to net2"},
		"one has a gateway":      {both, []linkRoute{first, second, route("net1", "0.0.0.0/0")}, "net2 to net1"},
		"both have a gateway":    {both, []linkRoute{first, second, route("net1", "0.0.0.0/0"), route("net2", "0.0.0.0/0")}, ""},
		"a route to all rails":   {both, []linkRoute{route("net1", "172.16.0.0/12"), route("net2", "172.16.0.0/12")}, ""},
		"the gateway is of IPv6": {both, []linkRoute{first, second, route("net1", "::/0"), route("net2", "::/0")}, "net1 to net2"},
		"one rail":               {both[:1], nil, ""},
	} {
		if got := apart(tc.rails, tc.routes); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

func TestANamespaceThatCannotBeEnteredSaysWhatToCallInstead(t *testing.T) {
	t.Parallel()
	gone := cnierr.New(cnierr.BadNetns, "open network namespace", "/proc/7/ns/net", "", "%w: %w", kernel.ErrNetnsGone, unix.ENOENT)
	forbidden := cnierr.New(cnierr.BadNetns, "open network namespace", "/proc/7/ns/net", "", "%w: %w", kernel.ErrNetnsGone, unix.EACCES)
	other := errors.New("another")
	for _, tc := range []struct {
		err  error
		code cnierr.Code
		hint string
	}{
		{gone, cnierr.BadNetns, "ip netns list"},
		{forbidden, cnierr.IO, "root on the node"},
		{cnierr.New(cnierr.IO, "enter network namespace", "/run/netns/a", "", "%w", unix.EPERM), cnierr.IO, "root on the node"},
	} {
		var got *cnierr.Error
		if !errors.As(unreachable("/proc/7/ns/net", tc.err), &got) || got.Code != tc.code || !strings.Contains(got.Hint, tc.hint) {
			t.Errorf("%v: got %+v, want code %d and a hint with %q", tc.err, got, tc.code, tc.hint)
		}
	}
	if got := unreachable("x", other); got != other { //nolint:errorlint // the same one
		t.Errorf("got %v, want it as it is", got)
	}
	_, err := Node{Sys: fstest.MapFS{}}.At(t.Context(), "/nonexistent", "")
	if cnierr.CodeOf(err) != cnierr.BadNetns || errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %v, want code %d", err, cnierr.BadNetns)
	}
	if _, err := (Node{Sys: fstest.MapFS{}}).At(t.Context(), "/proc/thread-self/ns/net", ""); errors.Is(err, kernel.ErrHostNetns) {
		t.Errorf("the node's own: got %v, want it as Here", err)
	}
}

// TestANamespaceHasItsRailsAndItsWayOut: net1 has a GID, net2 none.
func TestANamespaceHasItsRailsAndItsWayOut(t *testing.T) {
	t.Parallel()
	v := view{
		Addrs: slices.Concat(on("eth0", "10.244.0.7"), on("net1", "172.16.0.5"), on("net2", "172.17.0.5"), on("net3", "172.18.0.5")),
		Out:   "eth0", OutAddr: netip.MustParseAddr("10.244.0.7"), Routes: []linkRoute{{"net1", netip.MustParsePrefix("0.0.0.0/0")}},
	}
	off := portOf("mlx5_2", "")
	off.Size = 0
	ports := []Port{portOf("mlx5_0", "", "172.16.0.5"), portOf("mlx5_1", "", "172.18.0.5"), off}
	got, err := namespace(v, ports, "", Hints{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"net1 172.16.0.5 mlx5_0:1": 0, "net3 172.18.0.5 mlx5_1:1": 0}, placesOf(got.Rails)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got.Out != v.Out || got.OutAddr != v.OutAddr || got.Apart != "net3 to net1" {
		t.Errorf("got out %s %s, apart %q", got.Out, got.OutAddr, got.Apart)
	}
	if notes := got.Rails[0].Notes; len(notes) != 1 || !strings.HasPrefix(notes[0], "net2 172.17.0.5 is left out") { // eth0 needs none
		t.Errorf("it says %q", notes)
	}
	if got, err := namespace(v, ports, "net3", Hints{}); err != nil || len(got.Rails) != 1 || got.Rails[0].Link != "net3" || got.Apart != "" {
		t.Errorf("net3: got %+v, %v", got, err)
	}
	for only, code := range map[conf.LinkName]cnierr.Code{"net2": cnierr.NoGID, "net9": cnierr.BadConfig} {
		if got, err := namespace(v, ports, only, Hints{}); cnierr.CodeOf(err) != code || len(got.Rails) > 0 {
			t.Errorf("%s: got %+v, %v, want code %d", only, got, err, code)
		}
	}
}

func TestAnOwnerIsCalledByWhatIsKnownOfIt(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]Owner{
		"host": {Link: "r0"}, "ml/job": {Pod: conf.Pod{Namespace: "ml", Name: "job"}, ContainerID: "c1"}, "c1": {ContainerID: "c1"}, "/proc/7/ns/net": {Netns: "/proc/7/ns/net"},
	} {
		if got := o.String(); got != want {
			t.Errorf("%+v: got %q, want %q", o, got, want)
		}
	}
}

func TestRecordsHaveWhatADDFoundInThisNamespace(t *testing.T) {
	t.Parallel()
	here := netns.ID{Dev: 4, Ino: 5}
	rec := func(id netns.ID, link, addr string) record.Record {
		target := plan.GIDTarget{Link: on(link, addr)[0].Link, Addr: netip.MustParseAddr(addr), Index: place(3)}
		return record.Record{NetnsID: id, Plan: plan.Plan{Ops: plan.InPod(
			plan.Port{}, plan.GID{Device: plan.RDMADevice{Name: "mlx5_0"}, Targets: []plan.GIDTarget{target}},
		)}}
	}
	n := Node{Records: []record.Record{rec(here, "net1", "172.16.0.5"), rec(here, "net2", "172.17.0.5"), rec(netns.ID{}, "net1", "172.16.0.6")}}
	if got := n.recorded(here, ""); len(got) != 2 {
		t.Errorf("got %v, want two", got)
	}
	got := n.recorded(here, "net2")
	r, ok := got[on("net2", "172.17.0.5")[0]]
	if !ok || len(got) != 1 || r.Device != "mlx5_0" || *r.Place != 3 {
		t.Errorf("got %+v, want net2 on mlx5_0 at 3", got)
	}
	// A look enters the pods only if the host does not see all that they have on its NICs.
	all := []string{"172.16.0.5", "172.17.0.5", "172.16.0.6"}
	for i := range len(all) + 1 {
		host := []Port{portOf("mlx5_0", "ens1", all[:i]...), portOf("mlx5_1", "ens2")}
		if n.lacksEntries(host) != (i < len(all)) {
			t.Errorf("the host sees %d of %d entries: it lacks some: %v", i, len(all), n.lacksEntries(host))
		}
	}
	for g := range plan.All[plan.GID](n.Records[0].Plan.Ops) {
		g.Targets[0].Index = nil // ADD found none, because the table was full
	}
	if n.Records = n.Records[:1]; n.lacksEntries([]Port{portOf("mlx5_0", "ens1")}) {
		t.Error("the host lacks an entry that ADD did not find")
	}
}

// TestOwnersAreThoseOfTheRecord: which pod uses a GID of another one is told by the namespace alone.
func TestOwnersAreThoseOfTheRecord(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr
	rec := record.Record{Attachment: conf.Attachment{ContainerID: "c1"}, Pod: conf.Pod{Namespace: "ml", Name: "job"}, NetnsID: netns.ID{Dev: 4, Ino: 5}}
	leased := func(link conf.LinkName, prefixes ...string) plan.Interface {
		out := plan.Interface{Name: link}
		for _, p := range prefixes {
			out.Addresses = append(out.Addresses, plan.LeasedAddress{Prefix: netip.MustParsePrefix(p)})
		}
		return out
	}
	rec.Plan.Interfaces = []plan.Interface{leased("net1", "172.16.0.5/16", "fd00::5/64"), leased("net2", "172.17.0.5/16")}
	rec.Plan.Ops = plan.InPod(
		plan.Address{Link: "net1", Prefix: netip.MustParsePrefix("172.16.0.5/16")}, plan.Address{Link: "net2", Prefix: netip.MustParsePrefix("fe80::2/64")},
		plan.GID{Device: plan.RDMADevice{Name: "mlx5_1"}, Targets: []plan.GIDTarget{{Link: "net2", Addr: addr("172.17.0.5"), Index: place(3)}}},
	)
	all, err := Node{Records: []record.Record{rec}}.owners(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if lo := (Owner{Link: "lo", Addr: addr("127.0.0.1")}); !slices.Contains(all, lo) {
		t.Errorf("the host is no owner of its loopback address: %+v", all)
	}
	var got []Owner
	for _, o := range all {
		if o.ContainerID != "" {
			got = append(got, o)
		} else if o.ID != (netns.ID{}) {
			t.Errorf("the host's %+v has a namespace", o)
		}
	}
	slices.SortFunc(got, func(a, b Owner) int { return a.Addr.Compare(b.Addr) })
	owner := func(link conf.LinkName, a string, was Recorded) Owner {
		return Owner{Pod: rec.Pod, ContainerID: "c1", Link: link, Addr: addr(a), ID: rec.NetnsID, recorded: was}
	}
	want := []Owner{
		owner("net1", "172.16.0.5", Recorded{}), owner("net2", "172.17.0.5", Recorded{"mlx5_1", place(3)}), owner("net1", "fd00::5", Recorded{}), owner("net2", "fe80::2", Recorded{}),
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Owner{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
