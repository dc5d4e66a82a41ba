// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

func TestSmallSubnetsGiveExactlyTheirAddresses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		subnet map[string]any
		host   string // an address of the node
		want   []string
	}{
		{
			"/29 with gateway and host",
			map[string]any{"subnet": "10.9.0.8/29", "gateway": "10.9.0.9"},
			"10.9.0.12/29",
			[]string{"10.9.0.10/29", "10.9.0.11/29", "10.9.0.13/29", "10.9.0.14/29"},
		},
		{
			"/29 with ranges and exclusions", map[string]any{
				"subnet": "10.9.0.8/29", "ranges": []any{"10.9.0.8-10.9.0.11", "10.9.0.14/31"}, "exclude": []any{"10.9.0.10"},
			}, "", []string{"10.9.0.9/29", "10.9.0.11/29", "10.9.0.14/29"},
		},
		{"/30 with gateway", map[string]any{"subnet": "10.9.0.4/30", "gateway": "10.9.0.6"}, "", []string{"10.9.0.5/30"}},
		{"/31", map[string]any{"subnet": "10.9.0.2/31"}, "", []string{"10.9.0.2/31", "10.9.0.3/31"}},
		{"/31 with gateway", map[string]any{"subnet": "10.9.0.2/31", "gateway": "10.9.0.2"}, "", []string{"10.9.0.3/31"}},
		{"/32", map[string]any{"subnet": "10.9.0.2/32"}, "", []string{"10.9.0.2/32"}},
		{"/126 with gateway", map[string]any{"subnet": "fd00:9::/126", "gateway": "fd00:9::2"}, "", []string{"fd00:9::1/126", "fd00:9::3/126"}},
		{"/127", map[string]any{"subnet": "fd00:9::/127"}, "", []string{"fd00:9::/127", "fd00:9::1/127"}},
		{"/127 with host", map[string]any{"subnet": "fd00:9::/127"}, "fd00:9::/127", []string{"fd00:9::1/127"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 0)
			w.wire(t, 0)
			if tt.host != "" {
				w.IP(t, "addr add "+tt.host+" dev lo")
			}
			c := w.rail(0).Unasked().With("ipam.subnets", []any{tt.subnet})
			p := w.pod(t)
			before := p.snapshot(t)
			var made []attachment
			var got []string
			for i := range tt.want {
				a := w.attach(c, p, fmt.Sprintf("net%d", i))
				res := a.mustAdd(t)
				made, got = append(made, a), append(got, res.IPs[0].Address.String())
			}
			slices.Sort(tt.want)
			slices.Sort(got)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("addresses (-want +got)\n%s", diff)
			}
			full := p.snapshot(t)
			w.attach(c, p, "more").mustFail(t, 101)
			p.unchanged(t, full)
			for _, a := range made {
				a.mustDel(t)
			}
			p.unchanged(t, before)
			w.nothingLeased(t)
		})
	}
}

func TestAttachmentGetsAnAddressOfEachSubnet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	p.Set(t, "net/ipv6/conf/all/disable_ipv6", "1") // as runtimes do in IPv4 clusters
	p.Set(t, "net/ipv6/conf/default/disable_ipv6", "1")
	before := p.snapshot(t)
	second := map[string]any{"subnet": "10.9.0.0/24", "ranges": []any{"10.9.0.7"}}
	third := map[string]any{"subnet": "fd00:9::/64", "ranges": []any{"fd00:9::7"}}
	c := w.rail(0).With("ipam.subnets", []any{cnitest.Subnet6(0), second, cnitest.Subnet4(0), third}).
		With("args.cni.ips", []any{"172.16.10.70", "fd00:10::70"})
	a := w.attach(c, p, "net1")
	res := a.mustAdd(t)
	var got []string
	for _, ip := range res.IPs {
		got = append(got, fmt.Sprintf("%s via %s", ip.Address.String(), ip.Gateway))
	}
	if diff := cmp.Diff([]string{
		"fd00:10::70/64 via fd00:10::fe", "10.9.0.7/24 via <nil>",
		"172.16.10.70/24 via 172.16.10.254", "fd00:9::7/64 via <nil>",
	}, got); diff != "" {
		t.Errorf("addresses (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"32000: from 10.9.0.7 lookup 100 proto 82", "32000: from 172.16.10.70 lookup 101 proto 82",
		"32001: from 10.9.0.7 unreachable proto 82", "32001: from 172.16.10.70 unreachable proto 82",
		"32000: from fd00:10::70 lookup 100 proto 82", "32000: from fd00:9::7 lookup 101 proto 82",
		"32001: from fd00:10::70 unreachable proto 82", "32001: from fd00:9::7 unreachable proto 82",
	}, sortedByPriority(p.rules(t))); diff != "" {
		t.Errorf("rules (-want +got)\n%s", diff)
	}
	for _, addr := range []string{"172.16.10.70", "fd00:10::70"} {
		w.leaf.MustRun(t, "ping", "-n", "-q", "-c", "1", "-w", "10", addr)
	}
	a.mustDel(t)
	p.unchanged(t, before)
}

// sortedByPriority sorts rules, IPv4 before IPv6, by priority and then text:
// rules of one priority and different addresses never compete.
func sortedByPriority(rules []string) []string {
	slices.SortStableFunc(rules, func(a, b string) int {
		if six := strings.Compare(family(a), family(b)); six != 0 {
			return six
		}
		return strings.Compare(a, b)
	})
	return rules
}

func family(rule string) string {
	if strings.Contains(rule, "::") {
		return "6"
	}
	return "4"
}

func TestRequestedAddressIsGiven(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	a := w.attach(w.rail(0), p, "net1")
	argsCNI := a
	argsCNI.network = a.network.With("args.cni.ips", []any{"172.16.10.72"})
	tests := []struct {
		name string
		a    attachment
		want string
	}{
		{"by the runtime with its length", a.capable("ips", []string{"172.16.10.70/24"}), "172.16.10.70"},
		{"by the runtime, outside of the ranges", a.capable("ips", []string{"172.16.10.7"}), "172.16.10.7"},
		{"in CNI_ARGS", a.arg("IP", "172.16.10.71"), "172.16.10.71"},
		{"in args.cni", argsCNI, "172.16.10.72"},
	}
	for _, tt := range tests {
		res := tt.a.mustAdd(t)
		if got := addrOfResult(t, res).String(); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
		tt.a.mustDel(t)
	}
}

func TestRequestedAddressThatCannotBeGivenIsAnError(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	holder, p := w.pod(t), w.pod(t)
	w.attach(w.rail(0), holder, "net1").capable("ips", []string{"172.16.10.70"}).mustAdd(t)
	before := p.snapshot(t)
	a := w.attach(w.rail(0).With("ipam.subnets.0.exclude", []any{"172.16.10.80"}), p, "net1")
	tests := []struct {
		name, addr string
		code       uint
		says       string
	}{
		{"another pod has it", "172.16.10.70", 11, "train/" + holder.name},
		{"the gateway", "172.16.10.254", 7, "gateway"},
		{"the network address", "172.16.10.0", 7, "network address"},
		{"the broadcast address", "172.16.10.255", 7, "broadcast address"},
		{"excluded", "172.16.10.80", 7, "excluded"},
		{"of no subnet", "192.0.2.1", 7, "none of the pool's subnets"},
		{"with another length", "172.16.10.90/16", 7, "24"},
		{"the host's own", "172.16.10.1", 7, "host"},
		{"not an address", "172.16.10", 7, "172.16.10"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := a.capable("ips", []string{tt.addr}).mustFail(t, tt.code)
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v: want it to say %q", err, tt.says)
			}
		})
	}
	p.unchanged(t, before)
	if got := w.leases(t, "leased"); !slices.Equal(got, []string{"rail0 172.16.10.70"}) {
		t.Errorf("leased: %q", got)
	}
}

func TestRestartedPodGetsItsAddressAndMACBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	c := w.rail(0).With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)})
	first := w.attach(c, w.podNamed(t, "trainer-0"), "net1")
	was := first.mustAdd(t)
	first.mustDel(t)
	for i := range 3 { // others take addresses meanwhile
		w.attach(c, w.pod(t), fmt.Sprintf("net%d", i)).mustAdd(t)
	}
	is := w.attach(c, w.podNamed(t, "trainer-0"), "net1").mustAdd(t)
	if diff := cmp.Diff(was.IPs, is.IPs); diff != "" {
		t.Errorf("addresses (-before +after)\n%s", diff)
	}
	if was.Interfaces[0].Mac != is.Interfaces[0].Mac {
		t.Errorf("the MAC was %s and is %s", was.Interfaces[0].Mac, is.Interfaces[0].Mac)
	}
}

func TestAddressIsInQuarantineBeforeAnotherPodGetsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	two := w.rail(0).With("ipam.subnets.0.ranges", []any{"172.16.10.64-172.16.10.65"})
	first, second, third := w.attach(two, w.pod(t), "net1"), w.attach(two, w.pod(t), "net1"), w.attach(two, w.pod(t), "net1")
	freed := addrOfResult(t, first.mustAdd(t))
	first.mustDel(t)
	if got := addrOfResult(t, second.mustAdd(t)); got == freed {
		t.Errorf("%s was given to another pod at once, with another one free", got)
	}
	// Only the address in quarantine is left: better early than not at all.
	if got := addrOfResult(t, third.mustAdd(t)); got != freed {
		t.Errorf("got %s, want %s", got, freed)
	}
}

func TestSecondAddFindsTheAttachmentAsItIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	a := w.attach(w.rail(0).With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)}), p, "net1")
	first := a.mustAdd(t)
	before := p.snapshot(t) // with the index of the link
	monitor := w.leaf.listen(t, "leaf0", nil)
	if diff := cmp.Diff(first, a.mustAdd(t)); diff != "" {
		t.Errorf("result (-first +second)\n%s", diff)
	}
	p.unchanged(t, before)
	for _, addr := range addrs(first) {
		if got := monitor.heard(func(f frame) bool { return f.probe(addr) }); len(got) > 0 {
			t.Errorf("the second ADD asked for %s again: %v", addr, got)
		}
	}
}

func TestLeaseOfADeadPodComesBackWithoutDEL(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	one := w.rail(0).With("ipam.subnets.0.ranges", []any{"172.16.10.64"})
	dead, next := w.pod(t), w.pod(t)
	w.attach(one, dead, "net1").mustAdd(t)
	w.attach(one, next, "net1").mustFail(t, 101)
	dead.Remove(t)
	w.attach(one, next, "net1").addAtLast(t)
}

func TestNetworksThatNameOnePoolShareIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	shared := func(rail int) network {
		return w.rail(rail).Unasked().With("ipam.pool", "both").
			With("ipam.subnets", []any{map[string]any{"subnet": "10.9.0.0/24", "ranges": []any{"10.9.0.1-10.9.0.2"}}})
	}
	p := w.pod(t)
	one := addrOfResult(t, w.attach(shared(0), p, "net0").mustAdd(t))
	other := addrOfResult(t, w.attach(shared(1), p, "net1").mustAdd(t))
	if one == other {
		t.Errorf("both networks gave %s", one)
	}
	w.attach(shared(0), p, "net2").mustFail(t, 101)
	w.attach(shared(0).With("ipam.pool", "own"), w.pod(t), "net2").mustAdd(t)
}
