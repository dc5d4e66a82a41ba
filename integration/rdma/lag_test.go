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

	"github.com/containernetworking/cni/pkg/types"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// lag replaces the devices of a machine of the type mlx5-like by one device for bond0 of
// r0 and r1, in active-backup mode, of which r0 sends, and by more.
func lag(t *testing.T, more ...string) {
	t.Helper()
	was := run(t, "cat", "/sys/module/fake_roce/parameters/devices")
	finally(t, `rmmod fake_roce
		ip link del bond0
		for i in 0 1; do ip link set r$i nomaster; ip link set r$i up; done
		modprobe fake_roce devices='`+was+`'`)
	shell(t, `rmmod fake_roce
		modprobe bonding max_bonds=0
		ip link add bond0 type bond mode active-backup miimon 100
		for i in 0 1; do ip link set r$i down; ip link set r$i master bond0; done
		ip link set bond0 up
		ip link set bond0 type bond active_slave r0
		modprobe fake_roce devices='`+strings.Join(append([]string{"mlx5_bond_%d:lag=r0,r1"}, more...), ";")+"'")
	cnitest.Await(t, "mlx5_bond_0 is active", func() bool { return strings.Contains(run(t, "rdma", "link"), "mlx5_bond_0/1 state ACTIVE") })
}

// v2Places returns the indexes of the RoCE v2 entries of an address.
func v2Places(netns, port, addr string) string {
	const list = `cd /sys/class/infiniband/%s; for i in $(grep -l %s gids/*); do i=${i#gids/}; grep -q v2 gid_attrs/types/$i && echo $i; done`
	out, _ := try("ip", "netns", "exec", netns, "sh", "-c", fmt.Sprintf(list, port, gidOf(addr))) // none is no error
	return out
}

// bonded is a pod on bond0, with its addresses.
type bonded struct {
	attachment
	addrs []string
}

// failOver makes another slave of bond0 the one that sends, and waits until the entries
// of the pods are there again, at other indexes.
func failOver(t *testing.T, to string, pods []bonded) {
	t.Helper()
	run(t, "ip", "link", "set", "bond0", "type", "bond", "active_slave", to)
	cnitest.Await(t, "mlx5_bond_0 is on "+to, func() bool { return strings.Contains(run(t, "rdma", "link"), "netdev "+to) })
	for _, p := range pods {
		was := p.indexes()
		for _, addr := range p.addrs {
			cnitest.Await(t, addr+" has an entry at another index", func() bool {
				now := v2Places(p.pod.Name, "mlx5_bond_0/ports/1", addr)
				return now != "" && now != fmt.Sprint(was[addr])
			})
		}
	}
}

// TestMLX5BondThatFailsOverWhileProgramsRun has programs that use all entries, so no
// address gets its index back.
func TestMLX5BondThatFailsOverWhileProgramsRun(t *testing.T) {
	n := newMLX5Node(t, "shared")
	lag(t)
	var pods []bonded
	for range 2 {
		a := n.attach(dual(n.rail(0).With("master", "bond0"), 0), n.pod())
		pods = append(pods, bonded{a, a.mustAdd()})
		a.mustCheck()
		contains(t, n.rocectl("env", "--netns", a.pod.Name), "NCCL_IB_HCA='=mlx5_bond_0:1'")
	}
	firmware(t, "hold", "Y")
	failOver(t, "r1", pods)

	// CHECK reports each pod, because the runtime asks for each. A person gets one line.
	out, err := n.tryRocectl("check")
	if err == nil || strings.Contains(out, "check GID of") {
		t.Errorf("rocectl check: %v, want one line for all:\n%s", err, out)
	}
	contains(t, out, "mlx5_bond_0/1: GID indexes of 2 attachments changed, as after a failover of a bond")
	for _, p := range pods {
		was := p.indexes()
		for _, addr := range p.addrs {
			now := v2Place(t, p.pod.Name, "mlx5_bond_0/ports/1", addr)
			contains(t, p.check(), addr, fmt.Sprintf("its index changed from %d to %d", was[addr], now), "restart the programs")
			contains(t, out, fmt.Sprintf("%s net1: %s from %d to %d", p.pod.Name, addr, was[addr], now))
		}
		now := v2Place(t, p.pod.Name, "mlx5_bond_0/ports/1", p.addrs[0])
		contains(t, n.rocectl("env", "--netns", p.pod.Name), fmt.Sprintf("export NCCL_IB_GID_INDEX=%d\n", now))
	}

	shell(t, "echo N >/sys/module/fake_roce/parameters/hold")
	for _, p := range pods {
		p.mustDel()
	}
	n.nothingLeft()
}

// TestMLX5BondFailsOverDuringADDs has the bond fail over when the kernel tells of an address
// of the pod, or of a filler. The firmware takes its time. Each ADD has equal indexes.
func TestMLX5BondFailsOverDuringADDs(t *testing.T) {
	n := newMLX5Node(t, "shared")
	lag(t, "mlx5_%d=r2")
	finally(t, "ip addr flush dev r2 scope global")
	shell(t, "for i in 1 2 3; do ip addr add 10.2.0.$i/24 dev r2; done")
	cnitest.Await(t, "the host's addresses have entries", func() bool { return len(gids(t, "", "mlx5_0").of("10.2.0.3")) == 2 })
	firmware(t, "gid_late_us", "5000")
	firmware(t, "del_late_us", "5000")
	rails := []any{map[string]any{"master": "bond0"}, map[string]any{"master": "r2"}}
	network := promising(n.allRails().With("rails", rails), "equal")
	active, other := "r0", "r1"
	for round := range 4 {
		a := n.attach(network, n.pod())
		where := a.pod.Path
		if round == 0 {
			where = plan.FillerNetns
		}
		events := os.NewFile(uintptr(addressEvents(t, where)), "netlink socket in "+where)
		var failed *types.Error
		var add sync.WaitGroup
		add.Go(func() { _, failed = a.add() })
		for range 1 + round%2 {
			if _, err := events.Read(make([]byte, 4096)); err != nil {
				t.Fatal(err)
			}
		}
		active, other = other, active
		run(t, "ip", "link", "set", "bond0", "type", "bond", "active_slave", active)
		add.Wait()
		if failed != nil {
			t.Fatalf("ADD during failover %d: %v: %s", round+1, failed, failed.Details)
		}
		if at := slices.Collect(maps.Values(a.indexes())); len(at) != 2 || at[0] != at[1] {
			t.Errorf("failover %d: the indexes are %v, want two that are equal", round+1, at)
		}
		_ = events.Close()
		a.mustDel()
	}
	a := n.attach(network, n.pod())
	a.mustAdd()
	a.mustCheck()
	a.mustDel()
	n.nothingLeft()
}

// TestMLX5MatchSelectsABondByItsSlaves has virtio NICs as slaves: the bond has no vendor itself.
func TestMLX5MatchSelectsABondByItsSlaves(t *testing.T) {
	n := newMLX5Node(t, "shared")
	lag(t)
	match := func(count int, names ...any) map[string]any {
		return map[string]any{"match": map[string]any{"vendors": []any{"1af4"}, "linkTypes": []any{"ether"}, "ifNames": names}, "count": count}
	}
	wrong := n.attach(n.rail(0).With("master", nil).With("rails", match(2, "r0", "r1")), n.pod()).mustFail(102)
	contains(t, wrong, "want 2 NICs, got 0", "2 more are slaves of bonds: r0, r1", "write bond0 in place of slaves")
	a := n.attach(n.rail(0).With("master", nil).With("rails", match(1, "bond0", "r0", "r1")), n.pod())
	a.mustAdd()
	a.mustCheck()
	contains(t, n.rocectl("env", "--netns", a.pod.Name), "mlx5_bond_0:1")
	contains(t, n.rocectl("rails"), "bond0")
	a.mustDel()
	n.nothingLeft()
}

// TestLongMLX5BondThatLosesItsDevice has the device of the bond replaced by one for each
// slave, as mlx5 does when the PF of a bond gets virtual functions.
func TestLongMLX5BondThatLosesItsDevice(t *testing.T) {
	n := newMLX5Node(t, "shared")
	lag(t)
	a := n.attach(n.rail(0).With("master", "bond0"), n.pod())
	addr := a.mustAdd()[0]
	shell(t, "rmmod fake_roce; modprobe fake_roce devices='mlx5_%d=r0;mlx5_%d=r1'")
	cnitest.Await(t, "both slaves have a device", func() bool { return strings.Count(run(t, "rdma", "link"), "ACTIVE") == 2 })
	contains(t, a.check(), "mlx5_bond_0/1", "no RDMA device", "delete the pod")
	contains(t, n.rocectl("env", "--netns", a.pod.Name), "one NIC of a bond that has no RDMA device of its own now",
		"net1 "+addr+": ADD found its entry in mlx5_bond_0, and no device has that name now")
	contains(t, n.attach(n.rail(0).With("master", "bond0"), n.pod()).mustFail(103), "mlx5_0/1 on r0", "mlx5_1/1 on r1", "LAG")
	a.mustDel()
	n.nothingLeft()
}

// TestMLX5PlacesThatProgramsHoldAreInTheHint fills a table of 32 entries, and removes the
// addresses while programs use the entries.
func TestMLX5PlacesThatProgramsHoldAreInTheHint(t *testing.T) {
	n := newMLX5Node(t, "shared")
	other := n.fills32()
	firmware(t, "hold", "Y")
	other.Remove(t)
	cnitest.Await(t, "the table reads as empty", func() bool { return gids(t, "", "irdma0").used() < 4 })

	got := n.attach(n.rail(4).With("rdma", soon(nil)), n.pod()).mustFail(108)
	contains(t, got, "irdma0/1 made no RoCE v2 entry", `"unable to add gid" with error=-28 in dmesg`, "end the programs that still use addresses that are gone")
	contains(t, run(t, "dmesg"), "unable to add gid", "error=-28")
	n.nothingLeft()

	shell(t, "echo N >/sys/module/fake_roce/parameters/hold")
	a := n.attach(n.rail(4), n.pod())
	a.mustAdd()
	a.mustDel()
}
