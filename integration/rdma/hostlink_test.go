// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// self is an address of the machine that is on none of its rails.
const self = "10.0.0.7"

// linkedTo returns a configuration in which the first rail is eth0, with a link to the
// machine. It writes what rocectl agent would write: addresses .first to .first+9 of each rail, and the
// CIDR of the Services.
func (n *node) linkedTo(c network, first int) network {
	t := n.t
	t.Helper()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	files := nodefile.Store{Dir: n.state, BootID: strings.TrimSpace(string(boot))}
	f := nodefile.File{Pool: "underlay", Quarantine: time.Second}
	for i := range rails() {
		at := func(last int) netip.Addr { return netip.AddrFrom4([4]byte{172, 16, byte(10 + i), byte(last)}) }
		f.Rails = append(f.Rails, []pool.Subnet{{
			Prefix: netip.PrefixFrom(at(0), 24), Gateway: at(254), Ranges: []netrange.Range{{First: at(first), Last: at(first + 9)}},
		}})
	}
	if err := files.Write(f); err != nil {
		t.Fatal(err)
	}
	if _, err := files.WriteServices([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}); err != nil {
		t.Fatal(err)
	}
	finally(t, "ip addr del "+self+"/32 dev lo")
	run(t, "ip", "addr", "add", self+"/32", "dev", "lo")
	ipam := map[string]any{"type": "roce-ipam", "railPool": "underlay"}
	if c["master"] != nil {
		ipam["rail"] = 0
	}
	return c.With("ipam", ipam).With("hostLink", map[string]any{"routes": []any{"auto"}}).
		With("probe", map[string]any{"gateway": map[string]any{"mode": "off"}}) // there is none in the machine
}

// meets fails the test unless the machine and a pod reach each other, and the pod reaches
// the Services by the machine.
func (n *node) meets(p *pod, addr string) {
	n.t.Helper()
	run(n.t, "ping", "-n", "-q", "-c", "1", "-W", "10", "-I", self, addr)
	run(n.t, "ip", "netns", "exec", p.Name, "ping", "-n", "-q", "-c", "1", "-W", "10", self)
	contains(n.t, run(n.t, "ip", "-n", p.Name, "route", "get", "10.96.0.1"), "dev host0 src "+addr)
	contains(n.t, run(n.t, "ip", "-n", p.Name, "route", "get", "8.8.8.8"), "dev eth0 src "+addr)
}

// TestSharedRailsWithALinkHaveGIDsOnEth0 makes all rails of a pod with eth0 as the first.
func TestSharedRailsWithALinkHaveGIDsOnEth0(t *testing.T) {
	n := newNode(t, "shared")
	before := allGIDs(t, "")
	a := n.attach(n.linkedTo(n.allRails(), 64), n.pod()).as("eth0")
	addrs := a.addRails()
	at := a.aligned(allGIDs(t, ""), addrs)[0]
	a.mustCheck()
	n.meets(a.pod, addrs[0][0])
	told, err := inside(t, a.pod)
	if err != nil {
		t.Error(err)
	}
	for _, env := range []string{told, n.rocectl("env", "--container", a.id())} {
		contains(t, env, fmt.Sprintf("export NCCL_IB_HCA='=%s'\nexport NCCL_IB_GID_INDEX=%d\n", hcas(devices()), at),
			fmt.Sprintf("# eth0 %s: rxe0 port 1, GID index %d\n", addrs[0][0], at), fmt.Sprintf("# eth0: ib_write_bw -d rxe0 -i 1 -x %d", at))
		if rails() > 1 {
			contains(t, env, fmt.Sprintf("# eth0-1 %s: rxe1 port 1, GID index %d\n", addrs[1][0], at))
		}
	}
	contains(t, run(t, "ip", "rule"), "from all lookup 8200")
	a.mustDel()
	cnitest.Await(t, "the GIDs are gone", func() bool { return cmp.Equal(allGIDs(t, ""), before) })
	a.pod.empty(t)
	n.nothingLeft()
	if left := shell(t, "ip rule; ip route show table all; ip neigh"); strings.Contains(left, "8200") || strings.Contains(left, addrs[0][0]) {
		t.Errorf("the machine still has\n%s", left)
	}
}

// TestNodesSharedPodsWithALinkTransfer transfers between pods of two machines, over the
// interface that the machine also reaches by a link.
func TestNodesSharedPodsWithALinkTransfer(t *testing.T) {
	n := newNode(t, "shared")
	p := meet(t)
	first := map[string]int{"0": 110, "1": 120}[p.self]
	a := n.attach(n.linkedTo(n.rail(0), first), n.pod()).as("eth0")
	addr := a.mustAdd()[0]
	a.mustCheck()
	n.meets(a.pod, addr)
	emulate(t, "r0")
	r := n.join(a, addr) // the machine has the address now, too
	across(p, r, r.writeServer, r.writeTo)
	r.mustDel()
	p.swap("over")
}
