// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// rails returns how many rails the machine has.
func rails() (n int) {
	for {
		if _, err := os.Stat(fmt.Sprintf("/sys/class/net/r%d", n)); err != nil {
			return n
		}
		n++
	}
}

// device returns the RDMA device of rail i.
func device(i int) string {
	if fakes() {
		return fmt.Sprintf("mlx5_%d", i)
	}
	return fmt.Sprintf("rxe%d", i)
}

// devices returns those of all rails, sorted.
func devices() (out []string) {
	for i := range rails() {
		out = append(out, device(i))
	}
	slices.Sort(out)
	return out
}

// ifName returns the pod's interface on rail i.
func ifName(i int) string {
	if i == 0 {
		return "net1"
	}
	return fmt.Sprintf("net1-%d", i)
}

// allRails returns the configuration of a network on all rails, with the subnets
// of rail.
func (n *node) allRails() network {
	var list []any
	for i := range rails() {
		list = append(list, map[string]any{"master": fmt.Sprintf("r%d", i)})
	}
	c := n.rail(0).With("name", "rails").With("rails", list).With("ipam", map[string]any{
		"type": "roce-ipam", "quarantine": "0s", "subnets": []any{map[string]any{
			"subnet": "172.16.{rail+10}.0/24", "ranges": []any{"172.16.{rail+10}.64-172.16.{rail+10}.127"},
		}},
	})
	delete(c, "master")
	return c
}

// dualRails returns a copy with an IPv6 subnet on each rail beside the other.
func dualRails(c network) network {
	pool := maps.Clone(c["ipam"].(map[string]any))
	pool["subnets"] = append(slices.Clone(pool["subnets"].([]any)), map[string]any{
		"subnet": "fd00:{rail+10}::/64", "ranges": []any{"fd00:{rail+10}::64-fd00:{rail+10}::127"},
	})
	return c.With("ipam", pool)
}

// perRail returns the addresses of a result by rail.
func perRail(res *current.Result) [][]string {
	rail := map[int]int{}
	for i, link := range res.Interfaces {
		if link.Sandbox != "" {
			rail[i] = len(rail)
		}
	}
	out := make([][]string, len(rail))
	for _, ip := range res.IPs {
		at := rail[*ip.Interface]
		out[at] = append(out[at], ip.Address.IP.String())
	}
	return out
}

// addRails calls ADD, which must succeed, and returns the addresses by rail.
func (a attachment) addRails() [][]string {
	a.node.t.Helper()
	res, err := a.add()
	if err != nil {
		a.node.t.Fatalf("ADD to %s: %v: %s", a.pod.Name, err, err.Details)
	}
	return perRail(res)
}

// allGIDs returns the tables of all rails as a namespace sees them.
func allGIDs(t *testing.T, netns string) []table {
	t.Helper()
	var out []table
	for i := range rails() {
		out = append(out, gids(t, netns, device(i)))
	}
	return out
}

// aligned returns at which indexes all rails have a pod's addresses, and fails the
// test if they are not the recorded ones, or differ from rail to rail.
func (a attachment) aligned(now []table, addrs [][]string) []int {
	a.node.t.Helper()
	if len(addrs) != len(now) {
		a.node.t.Fatalf("%s has the addresses %v, want some on each of %d rails", a.pod.Name, addrs, len(now))
	}
	recorded := a.indexes()
	var first []int
	for i, on := range addrs {
		var at []int
		for _, addr := range on {
			is := places(a.node.t, now[i], []string{addr})[addr]
			if recorded[addr] != is {
				a.node.t.Errorf("%s of %s is at %d of %s, its record says %d", addr, a.pod.Name, is, device(i), recorded[addr])
			}
			at = append(at, is)
		}
		if i == 0 {
			first = at
		}
		if !slices.Equal(at, first) {
			a.node.t.Errorf("%s has its GIDs at %v of %s, but at %v of %s", a.pod.Name, at, device(i), first, device(0))
		}
	}
	return first
}

// hcas returns what NCCL is to be told of devices.
func hcas(devices []string) string {
	var ports []string
	for _, d := range devices {
		ports = append(ports, d+":1")
	}
	return strings.Join(ports, ",")
}

func TestSharedRailsHaveOneIndexForAll(t *testing.T) {
	n := newNode(t, "shared")
	before := allGIDs(t, "")
	a := n.attach(n.allRails(), n.pod())
	addrs := a.addRails()
	at := a.aligned(allGIDs(t, ""), addrs)[0]
	if said := a.stderr.String(); said != "" {
		t.Errorf("ADD says\n%s", said)
	}
	a.mustCheck()

	want := fmt.Sprintf(`export NCCL_IB_HCA='=%[1]s'
export NCCL_IB_GID_INDEX=%[2]d
export NVSHMEM_HCA_LIST=%[1]s
export NVSHMEM_IB_GID_INDEX=%[2]d
export UCX_NET_DEVICES=%[1]s
export UCX_UD_VERBS_ETH_DGID_CHECK=n
export UCX_IB_GID_INDEX=%[2]d
`, hcas(devices()), at)
	told, err := inside(t, a.pod)
	if err != nil {
		t.Error(err)
	}
	contains(t, told, want)
	contains(t, n.rocectl("env", "--container", a.id()), want)
	table := strings.Join(strings.Fields(n.rocectl("gids")), " ")
	for i, on := range addrs {
		contains(t, told, fmt.Sprintf("# %s %s: %s port 1, GID index %d\n", ifName(i), on[0], device(i), at))
		contains(t, table, fmt.Sprintf("%s 1 %d %s %s v2 train/%s %s", device(i), at, gidOf(on[0]), on[0], a.pod.Name, ifName(i)))
	}
	a.mustDel()
	cnitest.Await(t, "the GIDs are gone", func() bool { return cmp.Equal(allGIDs(t, ""), before) })
	a.pod.empty(t)
	n.nothingLeft()
}

// TestSharedRailsOfEightPodsHaveAlignedIndexes has pods come while others go.
func TestSharedRailsOfEightPodsHaveAlignedIndexes(t *testing.T) {
	n := newNode(t, "shared")
	before := allGIDs(t, "")
	var all [12]attachment
	var addrs [len(all)][][]string
	for i := range all {
		all[i] = n.attach(dualRails(n.allRails()), n.pod())
	}
	come := func(i int) {
		res, err := all[i].add()
		if err != nil {
			t.Errorf("ADD to %s: %v: %s", all[i].pod.Name, err, err.Details)
			return
		}
		addrs[i] = perRail(res)
	}
	leave := func(i int) {
		if err := all[i].del(); err != nil {
			t.Errorf("DEL of %s: %v: %s", all[i].pod.Name, err, err.Details)
		}
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() { come(i) })
	}
	wg.Wait()
	stay := func(who ...int) {
		t.Helper()
		if t.Failed() {
			t.FailNow()
		}
		now := allGIDs(t, "")
		for _, i := range who {
			all[i].aligned(now, addrs[i])
			if said := all[i].stderr.String(); said != "" {
				t.Errorf("ADD to %s says\n%s", all[i].pod.Name, said)
			}
		}
	}
	stay(0, 1, 2, 3, 4, 5, 6, 7)
	for i := range 4 {
		wg.Go(func() { leave(2 * i) })
		wg.Go(func() { come(8 + i) })
	}
	wg.Wait()
	stay(1, 3, 5, 7, 8, 9, 10, 11)
	all[11].mustCheck()
	for _, i := range []int{1, 3, 5, 7, 8, 9, 10, 11} {
		wg.Go(func() { leave(i) })
	}
	wg.Wait()
	cnitest.Await(t, "the GIDs are gone", func() bool { return cmp.Equal(allGIDs(t, ""), before) })
	n.nothingLeft()
}

func TestSharedRailsWithoutAlignedIndexesAreReported(t *testing.T) {
	n := newNode(t, "shared")
	finally(t, "ip addr del 10.0.0.1/24 dev r0")
	run(t, "ip", "addr", "add", "10.0.0.1/24", "dev", "r0")
	a := n.attach(n.allRails(), n.pod())
	addrs := a.addRails()
	at := a.indexes()
	r0, r1 := at[addrs[0][0]], at[addrs[1][0]]
	if r0 == r1 {
		t.Fatalf("both indexes are %d: the address of the host changed nothing", r0)
	}
	contains(t, a.stderr.String(), "level=WARN", "GID indexes differ between rails", fmt.Sprintf("net1 [%d], net1-1 [%d]", r0, r1), a.id())
	a.mustCheck()
	told, err := inside(t, a.pod)
	if err != nil {
		t.Error(err)
	}
	contains(t, told, "# why: no NCCL_IB_GID_INDEX: the indexes differ (net1 "+fmt.Sprint(r0),
		"export NCCL_IB_HCA='="+hcas(devices())+"'\nexport NCCL_IB_GID_INDEX='-1'\nexport NCCL_IB_ROCE_VERSION_NUM=2\n", "export NCCL_IB_ADDR_RANGE=172.16.")
	a.mustDel()
	n.nothingLeft()
}

// leftOut attaches a pod to all rails but the last, with which that must fail
// with a code, saying why.
func (n *node) leftOut(c network, code uint, why ...string) {
	n.t.Helper()
	last := rails() - 1
	a := n.attach(c, n.pod())
	contains(n.t, a.mustFail(code), append(why, fmt.Sprintf("%d (%s)", last, ifName(last)))...)
	n.nothingLeft()

	a = n.attach(c.With("minRails", last), a.pod)
	addrs := a.addRails()
	at := a.aligned(allGIDs(n.t, "")[:last], addrs)[0]
	contains(n.t, a.stderr.String(), append(why, "level=WARN", "a rail is left out", fmt.Sprintf("%d (%s)", last, ifName(last)))...)
	a.mustCheck()
	told, err := inside(n.t, a.pod)
	if err != nil {
		n.t.Error(err)
	}
	contains(n.t, told, fmt.Sprintf("export NCCL_IB_HCA='=%s'\nexport NCCL_IB_GID_INDEX=%d\n", hcas(devices()[:last]), at))
	a.mustDel()
	n.nothingLeft()
}

// TestSharedRailIsSkippedIfItsPortIsDown has the last rail on a bond that is up
// by a link without RDMA, while its port is not.
func TestSharedRailIsSkippedIfItsPortIsDown(t *testing.T) {
	n := newNode(t, "shared")
	link, port := fmt.Sprintf("r%d", rails()-1), device(rails()-1)
	finally(t, fmt.Sprintf(`ip link del bond0; ip link del side0
		ip link set %s nomaster up`, link))
	shell(t, fmt.Sprintf(`modprobe bonding max_bonds=0
		ip link add side0 type veth peer name side1
		ip link set side1 up
		ip link add bond0 type bond mode active-backup miimon 100
		for l in %[1]s side0; do ip link set $l down; ip link set $l master bond0; done
		ip link set bond0 up
		ip link set bond0 type bond active_slave side0
		ip link set %[1]s down`, link))
	cnitest.Await(t, "the port is down, and the bond is up", func() bool {
		bond, _ := os.ReadFile("/sys/class/net/bond0/carrier")
		return strings.HasPrefix(string(bond), "1") && strings.Contains(run(t, "rdma", "link"), port+"/1 state DOWN")
	})
	c := n.allRails()
	list := c["rails"].([]any)
	list[len(list)-1] = map[string]any{"master": "bond0"}
	n.leftOut(c, 103, port+"/1", "its state is DOWN, want ACTIVE")
}

// TestSharedRailsByRuleAreInTheOrderOfTheirDevices has them named so that neither
// the NICs nor the letters of the names are in that order.
func TestSharedRailsByRuleAreInTheOrderOfTheirDevices(t *testing.T) {
	n := newNode(t, "shared")
	var named []string // by rail
	for i := range rails() {
		name := fmt.Sprintf("mlx5_%d", 10-i)
		finally(t, fmt.Sprintf("rdma dev set %s name %s", name, device(i)))
		run(t, "rdma", "dev", "set", device(i), "name", name)
		named = slices.Insert(named, 0, name)
	}
	rule := map[string]any{"match": map[string]any{"ifNames": []string{"r*"}}, "count": rails(), "order": "rdma"}
	a := n.attach(n.allRails().With("rails", rule), n.pod())
	for i, on := range a.addRails() {
		want := fmt.Sprintf("172.16.%d.", 10+i)
		if len(on) != 1 || !strings.HasPrefix(on[0], want) {
			t.Fatalf("%s has the addresses %q, want one of %s0", ifName(i), on, want)
		}
		places(t, gids(t, "", named[i]), on)
	}
	a.mustCheck()
	a.mustDel()

	rule["count"] = rails() + 1
	contains(t, a.mustFail(102), fmt.Sprintf("want %d NICs, got %d: r0, ", rails()+1, rails()))
	n.nothingLeft()
}
