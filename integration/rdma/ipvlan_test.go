// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

func ipvlan(c network) network { return c.With("child", "ipvlan") }

// macOf returns the MAC of an interface, of the host's if prefix is "".
func macOf(t *testing.T, prefix, link string) string {
	t.Helper()
	return shell(t, prefix+"cat /sys/class/net/"+link+"/address")
}

func enter(p *pod) string { return "ip netns exec " + p.Name + " " }

func TestSharedPodsWithIpvlansFindTheirGIDs(t *testing.T) {
	n := newNode(t, "shared")
	before := gids(t, "", "rxe0")
	var all []attachment
	for range 3 {
		a := n.attach(ipvlan(dual(n.rail(0), 0)), n.pod())
		addrs := a.mustAdd()
		if got, want := macOf(t, enter(a.pod), "net1"), macOf(t, "", "r0"); got != want {
			t.Errorf("the pod has the MAC %s, want that of its NIC, %s", got, want)
		}
		now := gids(t, "", "rxe0")
		if diff := cmp.Diff(places(t, now, addrs), a.indexes()); diff != "" {
			t.Errorf("%s: recorded indexes (-table +record)\n%s", a.pod.Name, diff)
		}
		contains(t, n.rocectl("env", "--netns", a.pod.Name), "ib_write_bw")
		a.mustCheck()
		a.mustAdd() // again: all stands
		all = append(all, a)
	}
	first, last := all[0], all[2]
	for addr := range last.indexes() {
		run(t, "ip", "netns", "exec", first.pod.Name, "ping", "-c", "1", "-W", "20", addr)
	}
	contains(t, n.attach(n.rail(0), n.pod()).mustFail(102), "r0", "a NIC has either macvlans or ipvlans")

	run(t, "ip", "-n", first.pod.Name, "link", "del", "net1")
	contains(t, first.check(), "net1", "no such interface")
	n.rocectl("repair", "--yes")
	first.mustCheck()
	first.pod.Remove(t)
	for range 2 {
		first.mustDel()
	}
	shell(t, "ip -n "+last.pod.Name+" link set net1 down; ip -n "+last.pod.Name+" link set net1 name other0")
	last.mustDel()
	last.pod.empty(t)
	if err := all[1].gc(); err != nil {
		t.Error(err)
	}
	all[1].pod.empty(t)
	cnitest.Await(t, "the GIDs are gone", func() bool { return cmp.Equal(gids(t, "", "rxe0"), before) })
	n.nothingLeft()
}

// TestSharedIpvlansAskTheNetwork has another machine with an address of each family and the
// gateway, an ipvlan of another program on the same NIC, and two pods.
func TestSharedIpvlansAskTheNetwork(t *testing.T) {
	n := newNode(t, "shared")
	machine, foreign := n.pod(), n.pod()
	finally(t, "ip link del nic9")
	shell(t, fmt.Sprintf(`ip link add nic9 address 02:00:00:00:09:09 type veth peer name eth0 address 02:00:00:00:09:0a netns %[1]s
		ip link set nic9 up
		ip -n %[1]s link set eth0 up
		ip -n %[1]s addr add 172.16.19.1/24 dev eth0
		ip -n %[1]s addr add 172.16.19.254/24 dev eth0
		ip -n %[1]s addr add fd00:19::fffe/64 dev eth0 nodad
		ip -n %[1]s addr add fd00:19::2/64 dev eth0 nodad
		ip link add link nic9 name eth0 netns %[2]s type ipvlan mode l2
		ip -n %[2]s link set eth0 up
		ip -n %[2]s addr add 172.16.19.3/24 dev eth0`, machine.Name, foreign.Name))
	of := func(name, v4, v6 string) network {
		return ipvlan(n.rail(0)).With("name", name).With("master", "nic9").With("rdma", map[string]any{"mode": "off"}).With("probe", map[string]any{
			"conflict": map[string]any{"wait": "1s"}, "gateway": map[string]any{"timeout": "5s"}, // the guest is slow
		}).With("ipam", map[string]any{"type": "roce-ipam", "subnets": []any{
			map[string]any{"subnet": "172.16.19.0/24", "ranges": []any{v4}, "gateway": "172.16.19.254"},
			map[string]any{"subnet": "fd00:19::/64", "ranges": []any{v6}, "gateway": "fd00:19::fffe"},
		}})
	}
	p := n.pod()
	contains(t, n.attach(of("one", "172.16.19.1", "fd00:19::11"), p).mustFail(100), "172.16.19.1", "02:00:00:00:09:0a")
	contains(t, n.attach(of("two", "172.16.19.12", "fd00:19::2"), p).mustFail(100), "fd00:19::2", "02:00:00:00:09:0a")
	contains(t, n.attach(of("three", "172.16.19.3", "fd00:19::13"), p).mustFail(100), "172.16.19.3", "another ipvlan of the same master has it")
	network := of("free", "172.16.19.20-172.16.19.29", "fd00:19::20-fd00:19::29")
	a, b := n.attach(network, n.pod()), n.attach(network, n.pod())
	a.mustAdd()
	b.mustAdd()
	for _, att := range []attachment{a, b} {
		att.mustCheck()
		run(t, "ip", "netns", "exec", att.pod.Name, "ping", "-c", "1", "-W", "20", "172.16.19.254")
	}
	linkLocal := func(p *pod) string {
		return strings.Fields(shell(t, "ip -n "+p.Name+" -o addr show dev net1 scope link"))[3]
	}
	if linkLocal(a.pod) == linkLocal(b.pod) {
		t.Errorf("two pods have the link-local address %s", linkLocal(a.pod))
	}
	a.mustDel()
	b.mustDel()
	n.nothingLeft()
}
