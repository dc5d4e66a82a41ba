// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

func newFake(t testing.TB) (*kerneltest.Fake, *kerneltest.Space, *kerneltest.FakeKernel) {
	t.Helper()
	f := kerneltest.NewFake(t)
	f.NIC("nic0", conf.MAC{2, 0, 0, 0, 1, 0})
	pod := f.Pod("/run/netns/pod")
	k, err := f.Open("/run/netns/pod")
	if err != nil {
		t.Fatal(err)
	}
	return f, pod, k
}

func TestFakePrintsItselfAsIPWould(t *testing.T) {
	t.Parallel()
	f, pod, k := newFake(t)
	if s := f.String(); s != "" {
		t.Errorf("an empty machine prints %q", s)
	}
	pod.IP("link add eth0 type veth")
	pod.IP("link set eth0 up")
	pod.IP("addr add 10.8.0.5/24 dev eth0")
	pod.IP("route add default via 10.8.0.1 dev eth0")
	for _, op := range kerneltest.Attachment("abc", "nic0") {
		if err := k.Do(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	want := `/run/netns/pod:
	link eth0 type veth address 02:00:00:00:00:01 mtu 1500 up
	addr 10.8.0.5/24 dev eth0
	link net1 link nic0 type macvlan mode bridge address 02:00:00:00:00:05 mtu 1500 up alias roce:abc/net1
	sysctl net/ipv4/conf/net1/arp_announce=2
	sysctl net/ipv4/conf/net1/arp_ignore=1
	sysctl net/ipv4/conf/net1/arp_notify=1
	sysctl net/ipv4/conf/net1/rp_filter=2
	sysctl net/ipv6/conf/net1/accept_ra=0
	sysctl net/ipv6/conf/net1/addr_gen_mode=1
	sysctl net/ipv6/conf/net1/disable_ipv6=0
	sysctl net/ipv6/conf/net1/keep_addr_on_down=1
	sysctl net/ipv6/conf/net1/ndisc_notify=1
	addr 10.9.0.5/24 dev net1
	addr fd00:9::5/64 dev net1
	addr fe80::5/64 dev net1
	route 10.8.0.0/24 dev eth0 table 254 proto 2 scope link src 10.8.0.5
	route 10.9.0.0/24 dev net1 table 100 proto 82 scope link src 10.9.0.5
	route 10.9.0.0/24 dev net1 table 254 proto 2 scope link src 10.9.0.5
	route ::/0 via fd00:9::1 dev net1 table 100 proto 82 src fd00:9::5 mtu 1400
	route ::/0 via fd00:9::1 dev net1 table 254 proto 82 src fd00:9::5 metric 50
	route default via 10.8.0.1 dev eth0 table 254 proto 3 scope global
	route default via 10.9.0.1 dev net1 table 100 proto 82 scope global src 10.9.0.5 mtu 1400
	route default via 10.9.0.1 dev net1 table 254 proto 82 scope global src 10.9.0.5 metric 50
	route fd00:9::/64 dev net1 table 100 proto 82 src fd00:9::5
	route fd00:9::/64 dev net1 table 254 proto 2 metric 256
	route fe80::/64 dev net1 table 254 proto 2 metric 256
	rule from 10.9.0.5/32 lookup 100 priority 32000 protocol 82
	rule from 10.9.0.5/32 unreachable priority 32001 protocol 82
	rule from fd00:9::5/128 lookup 100 priority 32000 protocol 82
	rule from fd00:9::5/128 unreachable priority 32001 protocol 82
`
	if diff := cmp.Diff(want, f.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLinksOfAHostTakeTheirChildrenAlong(t *testing.T) {
	t.Parallel()
	f, _, k := newFake(t)
	if err := k.Do(t.Context(), kerneltest.Attachment("abc", "nic0")[0]); err != nil {
		t.Fatal(err)
	}
	f.Host().IP("link del nic0")
	if s := f.String(); s != "" {
		t.Errorf("left behind:\n%s", s)
	}
}

func TestFaultsStrikeAtTheNamedCall(t *testing.T) {
	t.Parallel()
	f, _, k := newFake(t)
	ops, fault := kerneltest.Attachment("abc", "nic0"), errors.New("fault")
	before := f.Calls()
	f.FailAt(2, fault)
	if err := k.Do(t.Context(), ops[0]); err != nil {
		t.Errorf("first call: %v", err)
	}
	if err := k.Do(t.Context(), ops[2]); !errors.Is(err, fault) {
		t.Errorf("second call: %v, want the fault", err)
	}
	if err := k.Check(t.Context(), ops[2]); err == nil || errors.Is(err, fault) {
		t.Errorf("third call: %v: the second must have done nothing", err)
	}
	f.FailFrom(2, fault)
	for i, want := range []bool{false, true, true} {
		if err := k.Undo(t.Context(), ops[2]); errors.Is(err, fault) != want {
			t.Errorf("call %d from FailFrom(2): %v", i+1, err)
		}
	}
	if _, err := f.Open("/run/netns/pod"); !errors.Is(err, fault) {
		t.Errorf("open: %v, want the fault", err)
	}
	f.Heal()
	if _, err := plan.Only(k.Facts(t.Context(), conf.Request{Rails: []conf.Rail{{Parent: conf.Parent{Name: "nic0"}}}})); err != nil {
		t.Errorf("after Heal: %v", err)
	}
	if got := f.Calls() - before; got != 8 {
		t.Errorf("%d calls, want 8", got)
	}
}

func TestPodsComeAndGo(t *testing.T) {
	t.Parallel()
	f, _, k := newFake(t)
	old := k.ID()
	f.RemovePod("/run/netns/pod")
	if _, err := f.Open("/run/netns/pod"); !errors.Is(err, kernel.ErrNetnsGone) {
		t.Errorf("open a pod that is gone: %v", err)
	}
	f.Pod("/run/netns/pod")
	if again, err := f.Open("/run/netns/pod"); err != nil || again.ID() == old {
		t.Errorf("a new pod at the same path: %v, %v, want another ID than %v", again.ID(), err, old)
	}
}

func TestPodWithoutIPv6(t *testing.T) {
	t.Parallel()
	_, pod, k := newFake(t)
	pod.WithoutIPv6()
	got, err := plan.Only(k.Facts(t.Context(), conf.Request{Rails: []conf.Rail{{Parent: conf.Parent{Name: "nic0"}}}}))
	if err != nil || got.Pod.IPv6 {
		t.Errorf("%+v, %v", got, err)
	}
}

// listener hears what the fake complains about instead of failing.
type listener struct {
	testing.TB
	heard int
}

func (l *listener) Error(...any) { l.heard++ }

func TestFakeIsLoudAboutWhatItWasNotMadeFor(t *testing.T) {
	t.Parallel()
	l := &listener{TB: t}
	_, pod, k := newFake(l)
	for i, command := range []string{
		"link", "link add net1", "link del nosuch", "link set nosuch up", "link set lo colour red", "neigh add x y",
		"addr add 10.0.0.5/24 dev nosuch", "addr add nonsense dev lo", "route del 10.0.0.0/8", "rule del from 10.0.0.0/8 priority 5", "rule add priority 5",
	} {
		pod.IP(command)
		if l.heard != i+1 {
			t.Fatalf("ip %s: no complaint", command)
		}
	}
	l.heard = 0
	bad := kerneltest.Attachment("abc", "nic0")[6].Kind.(plan.Route)
	bad.Dst = kerneltest.Attachment("abc", "nic0")[3].Kind.(plan.Address).Prefix
	if err := k.Do(t.Context(), plan.Op{Kind: bad}); err == nil || l.heard != 1 {
		t.Errorf("a route that is not masked: %v", err)
	}
	k.Close()
	if err := k.Do(t.Context(), plan.Op{Kind: plan.Up{Link: "lo"}}); cnierr.CodeOf(err) != cnierr.Bug || l.heard != 2 {
		t.Errorf("after Close: %v", err)
	}
}
