// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"fmt"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// contested is the address that the pods of these tests get on the last rail, and
// another pod has too.
const contested = "172.16.%d.64"

// oneAddress returns a network on all rails with one address for each rail.
func (n *node) oneAddress(gidIndex any) network {
	return promising(n.allRails().With("ipam", map[string]any{
		"type": "roce-ipam", "quarantine": "0s", "subnets": []any{map[string]any{
			"subnet": "172.16.{rail+10}.0/24", "ranges": []any{"172.16.{rail+10}.64-172.16.{rail+10}.64"},
		}},
	}), gidIndex)
}

// foreigner returns a pod with an interface on the last rail that answers no ARP, and the
// command that sets the contested address on it.
func (n *node) foreigner(link string) (p *pod, set string) {
	n.t.Helper()
	p, last := n.pod(), rails()-1
	shell(n.t, fmt.Sprintf(`ip link add link r%[3]d name %[2]s netns %[1]s type macvlan mode bridge
		ip netns exec %[1]s sysctl -qw net.ipv4.conf.all.arp_ignore=8 net.ipv6.conf.all.disable_ipv6=1
		ip -n %[1]s link set %[2]s up`, p.Name, link, last))
	return p, fmt.Sprintf("ip -n %s addr add "+contested+"/32 dev %s", p.Name, 10+last, link)
}

// ownAt returns the index of the entry of the contested address that is not at one of
// others.
func ownAt(t *testing.T, others []int) (own []int) {
	t.Helper()
	last := rails() - 1
	for _, i := range gids(t, "", device(last)).of(fmt.Sprintf(contested, 10+last)) {
		if len(others) == 0 || others[0] != i {
			own = append(own, i)
		}
	}
	return own
}

// keepsItsIndex fails the test if the record, CHECK, gids or env report another entry of
// the contested address than that of the pod.
func (a attachment) keepsItsIndex(link string, foreign []int) {
	t := a.node.t
	t.Helper()
	last := rails() - 1
	addr := fmt.Sprintf(contested, 10+last)
	own := ownAt(t, foreign)
	if len(own) != 1 || len(foreign) != 1 {
		t.Fatalf("%s is at %v, and at %v for the other pod", addr, own, foreign)
	}
	if got := a.indexes()[addr]; got != own[0] {
		t.Errorf("%s is recorded at %d, but the pod has it at %d, and the other pod at %d", addr, got, own[0], foreign[0])
	}
	at := fmt.Sprintf("%s: %s port 1, GID index %d\n", addr, device(last), own[0])
	told, _ := a.node.tryRocectl("env", "--container", a.id()) // other indexes may differ
	contains(t, told, at)
	rows := strings.Split(a.node.rocectl("gids"), "\n")
	for _, row := range rows {
		f := strings.Fields(row)
		if len(f) < 8 || f[0] != device(last) || f[4] != addr {
			continue
		}
		if ours := f[2] == fmt.Sprint(own[0]); ours != (f[6] == "train/"+a.pod.Name) {
			t.Errorf("rocectl gids tells the wrong owner, want %s at %d:\n%s", a.pod.Name, own[0], row)
		}
	}
	if hides() { // the other entry is shown to its own namespace alone
		a.mustCheck()
		return
	}
	contains(t, a.check(), "2 RoCE v2 entries", fmt.Sprintf("the pod's is at %d", own[0]))
	told, err := inside(t, a.pod, "--ifname", ifName(last))
	if link != ifName(last) {
		contains(t, told, at)
		return
	}
	if err == nil || strings.Contains(told, "GID_INDEX=") || !strings.Contains(told, "rocectl env --container") {
		t.Errorf("rocectl env in the pod cannot know which entry is that of the pod, and says %v\n%s", err, told)
	}
}

// behind has another pod set the address on the same NIC before ADD, so that it has the
// lower index.
func (n *node) behind(link string, index any) {
	t := n.t
	t.Helper()
	histories(t, func(rail int) int { return rails() - 1 - rail })
	other, set := n.foreigner(link)
	run(t, "sh", "-c", set)
	cnitest.Await(t, "the other pod has the address", func() bool { return len(ownAt(t, nil)) == 1 })
	foreign := ownAt(t, nil)
	a := n.attach(n.oneAddress(index), n.pod())
	addrs := a.addRails()
	a.keepsItsIndex(link, foreign)
	at := a.indexes()
	for i, on := range addrs {
		if index != "any" && at[on[0]] != at[addrs[0][0]] || index == 12 && at[on[0]] != 12 {
			t.Errorf("%s has the index %d, want %v:\n%v", ifName(i), at[on[0]], index, at)
		}
	}
	if left := a.pod.fillers(t); left != "" {
		t.Errorf("fillers are left:\n%s", left)
	}
	a.mustDel()
	other.Remove(t)
	n.nothingLeft()
}

// TestSharedAddressThatAnotherPodHadFirst has the interface of the other pod have the name
// of that of the pod.
func TestSharedAddressThatAnotherPodHadFirst(t *testing.T) {
	newNode(t, "shared").behind(ifName(rails()-1), "equal")
}

// TestLongAddressThatAnotherPodHadFirst has all names and promises. It is not part of make
// test-vm.
func TestLongAddressThatAnotherPodHadFirst(t *testing.T) {
	for _, link := range []string{ifName(rails() - 1), "eth7"} {
		for _, index := range []any{"any", "equal", 12} {
			t.Run(fmt.Sprint(link, " ", index), func(t *testing.T) { newNode(t, "shared").behind(link, index) })
		}
	}
}

// TestLongAddressThatAnotherPodSetsLater has another pod set the address after ADD, at a
// lower index.
func TestLongAddressThatAnotherPodSetsLater(t *testing.T) {
	for _, link := range []string{ifName(rails() - 1), "eth7"} {
		t.Run(link, func(t *testing.T) {
			n := newNode(t, "shared")
			other, set := n.foreigner(link)
			a := n.attach(n.oneAddress(6), n.pod())
			a.mustAdd()
			own := ownAt(t, nil)
			run(t, "sh", "-c", set)
			cnitest.Await(t, "the other pod has the address", func() bool { return len(ownAt(t, own)) == 1 })
			foreign := ownAt(t, own)
			if own[0] != 6 || foreign[0] >= 6 {
				t.Fatalf("the pod has %v, the other %v, want 6 and a lower one", own, foreign)
			}
			a.keepsItsIndex(link, foreign)

			// The address is lost: repair sets it at its index again.
			last := rails() - 1
			run(t, "ip", "-n", a.pod.Name, "addr", "del", fmt.Sprintf(contested+"/24", 10+last), "dev", ifName(last))
			cnitest.Await(t, "the entry of the pod is gone", func() bool { return len(ownAt(t, foreign)) == 0 })
			said := a.check()
			if link != ifName(last) && strings.Contains(said, "index changed") { // of one name, CHECK cannot know it
				t.Errorf("CHECK takes the entry of the other pod for that of the pod:\n%s", said)
			}
			_, _ = n.tryRocectl("repair", "--yes") // it fails, because the address is there twice
			a.keepsItsIndex(link, foreign)
			a.mustDel()
			other.Remove(t)
			n.nothingLeft()
		})
	}
}

// TestSharedSecondInterfaceBehindEntriesOfOthers has a pod get another interface on a NIC,
// after others took many entries. If the driver hides those, only that of the first interface
// is before that of the second.
func TestSharedSecondInterfaceBehindEntriesOfOthers(t *testing.T) {
	n := newNode(t, "shared")
	a := n.attach(n.rail(0), n.pod())
	a.mustAdd()
	other, far := n.pod(), ""
	for i := range 100 { // more than ADD reads of unused indexes
		far += fmt.Sprintf("ip -n %s addr add 10.99.0.%d/32 dev net1\n", other.Name, 1+i)
	}
	shell(t, fmt.Sprintf(`ip link add link r0 name net1 netns %[1]s type macvlan mode bridge
		ip -n %[1]s link set net1 up
		%[2]s`, other.Name, far))
	cnitest.Await(t, "the other pod has all entries", func() bool { return len(gids(t, other.Name, device(0)).of("10.99.0.100")) > 0 })
	second := a.as("net9")
	second.mustAdd()
	second.mustDel()
	a.mustDel()
	other.Remove(t)
	n.nothingLeft()
}

// TestMLX5LateEntryIsNotThatOfAnotherPod has another pod hold the address at an index behind
// unused ones, on an interface of the same name, and a NIC that is slow.
func TestMLX5LateEntryIsNotThatOfAnotherPod(t *testing.T) {
	n := newMLX5Node(t, "shared")
	const addr = "172.16.0.64"
	other := n.pod()
	far := ""
	for i := range 50 { // v1 and v2: more than ADD reads of unused indexes
		far += fmt.Sprintf("ip -n %s addr add 10.99.0.%d/32 dev net1\n", other.Name, 1+i)
	}
	shell(t, fmt.Sprintf(`ip link add link r0 name net1 netns %[1]s type macvlan mode bridge
		ip netns exec %[1]s sysctl -qw net.ipv4.conf.all.arp_ignore=8 net.ipv6.conf.all.disable_ipv6=1
		ip -n %[1]s link set net1 up
		%[2]sip -n %[1]s addr add %[3]s/32 dev net1
		%[4]s`, other.Name, far, addr, strings.ReplaceAll(far, " add ", " del ")))
	cnitest.Await(t, "the other pod has only the address", func() bool {
		now := gids(t, "", "mlx5_0")
		return len(now.of("10.99.0.50")) == 0 && len(now.of(addr)) > 0
	})
	foreign := v2Place(t, other.Name, "mlx5_0/ports/1", addr)
	firmware(t, "gid_late_us", "20000")
	a := n.attach(n.rail(0).With("ipam", map[string]any{
		"type": "roce-ipam", "quarantine": "0s", "subnets": []any{map[string]any{"subnet": "172.16.0.0/24", "ranges": []any{addr + "-" + addr}}},
	}), n.pod())
	a.mustAdd()
	if at := a.indexes()[addr]; at >= foreign {
		t.Errorf("ADD found index %d, and the other pod has %d", at, foreign)
	}
	a.mustDel()
	other.Remove(t)
	n.nothingLeft()
}
