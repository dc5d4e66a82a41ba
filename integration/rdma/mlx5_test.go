// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
)

// newMLX5Node returns the node in a machine of the type mlx5-like: mlx5_0 on r0
// is as usual, mlx5_1 has the ports r1 and r2, mlx5_2 on r3 has RoCE off, and
// irdma0 on r4 has 32 places, RoCE v2 alone, and no GUID.
func newMLX5Node(t *testing.T, mode string) *node {
	t.Helper()
	return newNodeOf(t, "mlx5_0", mode)
}

// fakes says whether the machine has devices of fake_roce.
func fakes() bool {
	_, err := os.Stat("/sys/module/fake_roce")
	return err == nil
}

// width returns how many entries an address takes in a table.
func width() int {
	if fakes() {
		return 2 // RoCE v1 and v2
	}
	return 1
}

// reload loads fake_roce with other devices, and other parameters, until the test is over.
func reload(t *testing.T, devices string, parameters ...string) {
	t.Helper()
	was := run(t, "cat", "/sys/module/fake_roce/parameters/devices")
	const script = "rmmod fake_roce; modprobe fake_roce devices='%s'"
	finally(t, fmt.Sprintf(script, was))
	shell(t, fmt.Sprintf(script, devices)+" "+strings.Join(parameters, " "))
}

// v2Place returns where the RoCE v2 entry of an address is, read in a namespace.
func v2Place(t *testing.T, netns, port, addr string) int {
	t.Helper()
	out := v2Places(netns, port, addr)
	place, err := strconv.Atoi(out)
	if err != nil {
		t.Fatalf("the RoCE v2 entries of %s are at %q, want one", addr, out)
	}
	return place
}

// firmware sets a parameter of fake_roce until the test is over.
func firmware(t *testing.T, name, value string) {
	t.Helper()
	file := filepath.Join("/sys/module/fake_roce/parameters", name)
	was := run(t, "cat", file)
	finally(t, "echo "+was+" >"+file)
	shell(t, "echo "+value+" >"+file)
}

// TestMLX5RailsAreThoseThatAMatchTakes: the representor r3 is none.
func TestMLX5RailsAreThoseThatAMatchTakes(t *testing.T) {
	n := newMLX5Node(t, "shared")
	var ports []nic.Details
	if err := json.Unmarshal([]byte(n.rocectl("rails", "-o", "json")), &ports); err != nil {
		t.Fatal(err)
	}
	var rails []string
	for _, p := range ports {
		if p.Rail != nil {
			rails = append(rails, fmt.Sprintf("%s:%d", p.Device, p.Number))
		}
	}
	if want := []string{"mlx5_0:1", "mlx5_1:1", "mlx5_1:2", "irdma0:1"}; !slices.Equal(rails, want) {
		t.Errorf("rocectl rails has %q, want %q", rails, want)
	}
	match := map[string]any{"vendors": []string{"1af4"}, "deviceIDs": []string{"1000"}}
	a := n.attach(n.allRails().With("rails", map[string]any{"match": match, "count": len(rails)}), n.pod())
	a.addRails()
	contains(t, n.rocectl("env", "--netns", a.pod.Name), "NCCL_IB_HCA='="+strings.Join(rails, ",")+"'")
	a.mustCheck()
	a.mustDel()
	n.nothingLeft()
}

func TestMLX5OnlyEntriesOfRoCEv2AreReported(t *testing.T) {
	n := newMLX5Node(t, "shared")
	a := n.attach(dual(n.rail(0), 0), n.pod())
	addrs := a.mustAdd()
	found := a.indexes()
	for _, addr := range addrs {
		if is := v2Place(t, a.pod.Name, "mlx5_0/ports/1", addr); found[addr] != is {
			t.Errorf("%s: recorded index %d, want %d", addr, found[addr], is)
		}
	}
	a.mustCheck()
	// mlx5_2, which has no table, changes nothing for others.
	want := fmt.Sprintf("NCCL_IB_HCA='=mlx5_0:1'\nexport NCCL_IB_GID_INDEX=%d\n", found[addrs[0]])
	contains(t, n.rocectl("env", "--netns", a.pod.Name), want)
	told, err := inside(t, a.pod)
	if err != nil {
		t.Error(err)
	}
	contains(t, told, want)
	contains(t, n.rocectl("gids"), "train/"+a.pod.Name, " v1 ", " v2 ", "# mlx5_2/1 on r3: it has no GID table, so RoCE is off")
	a.mustDel()
	n.nothingLeft()
}

func TestMLX5EachPortOfADeviceIsThatOfItsNIC(t *testing.T) {
	n := newMLX5Node(t, "shared")
	for rail, port := range map[int]string{1: "mlx5_1:1", 2: "mlx5_1:2"} {
		a := n.attach(n.rail(rail), n.pod())
		a.mustAdd()
		a.mustCheck()
		contains(t, n.rocectl("env", "--netns", a.pod.Name), "NCCL_IB_HCA='="+port+"'")
		a.mustDel()
	}
	n.nothingLeft()
}

func TestMLX5RoCEThatIsOffIsRefusedBeforeAnAddressIsLeased(t *testing.T) {
	n := newMLX5Node(t, "shared")
	for _, mode := range []string{"auto", "shared"} {
		a := n.attach(n.rail(3).With("rdma", map[string]any{"mode": mode}), n.pod())
		contains(t, a.mustFail(103), "mlx5_2/1", "RoCE is off", "devlink dev param show")
		n.nothingLeft()
	}
	off := n.attach(n.rail(3).With("rdma", map[string]any{"mode": "off"}), n.pod())
	off.mustAdd()
	off.mustDel()
}

// TestMLX5PortThatLosesRoCEIsNamed has RoCE turned off on the first of two NICs of a pod.
func TestMLX5PortThatLosesRoCEIsNamed(t *testing.T) {
	n := newMLX5Node(t, "shared")
	was := run(t, "cat", "/sys/module/fake_roce/parameters/devices")
	a := n.attach(n.allRails().With("rails", []any{map[string]any{"master": "r0"}, map[string]any{"master": "r1"}}), n.pod())
	addrs := a.addRails()
	reload(t, strings.Replace(was, "=r0", ":raw=r0", 1))
	cnitest.Await(t, "the other rail has its entry again", func() bool { return v2Places(a.pod.Name, "mlx5_1/ports/1", addrs[1][0]) != "" })
	told := n.rocectl("env", "--netns", a.pod.Name)
	contains(t, told, "NCCL_IB_HCA='=mlx5_1:1'", "# why: net1 "+addrs[0][0]+" is left out: RoCE is off on mlx5_0:1: the port has no GID table")
	told, err := inside(t, a.pod)
	if err != nil {
		t.Error(err)
	}
	contains(t, told, "NCCL_IB_HCA='=mlx5_1:1'", "# why: net1 "+addrs[0][0]+" is left out: it has no entry. On mlx5_0:1, mlx5_2:1 RoCE is off")
	out, err := n.tryRocectl("env", "--netns", a.pod.Name, "--ifname", "net1")
	if err == nil {
		t.Error("rocectl env succeeds for the rail that is lost")
	}
	contains(t, out, "RoCE is off on mlx5_0:1", "enable_roce")
	a.mustDel()
	n.nothingLeft()
}

// fills32 makes a pod with so many addresses that the table of 32 entries is full.
func (n *node) fills32() *pod {
	n.t.Helper()
	other := n.pod()
	var script strings.Builder
	for i := range 40 {
		fmt.Fprintf(&script, "ip -n %s addr add 10.99.0.%d/32 dev fill\n", other.Name, 1+i)
	}
	shell(n.t, fmt.Sprintf("ip link add link r4 name fill netns %s type macvlan mode bridge; ip -n %[1]s link set fill up\n", other.Name)+script.String())
	cnitest.Await(n.t, "the table is full", func() bool { return gids(n.t, "", "irdma0").used() == 32 })
	return other
}

func TestMLX5TableOf32EntriesFillsUp(t *testing.T) {
	n := newMLX5Node(t, "shared")
	other := n.fills32()
	contains(t, n.attach(n.rail(4).With("rdma", soon(nil)), n.pod()).mustFail(108), "irdma0/1 is full", "32 of 32")
	n.nothingLeft()
	other.Remove(t)
	cnitest.Await(t, "the table is empty again", func() bool { return gids(t, "", "irdma0").used() < 4 })
	a := n.attach(n.rail(4), n.pod())
	a.mustAdd()
	a.mustDel()
}

func TestMLX5SlowFirmwareIsAwaitedAndFailingFirmwareIsReported(t *testing.T) {
	n := newMLX5Node(t, "shared")
	firmware(t, "gid_late_us", "1500000")
	a := n.attach(n.rail(0), n.pod())
	a.mustAdd() // each of its entries takes so long, of v1 and v2, link-local ones first
	a.mustDel()
	firmware(t, "gid_late_us", "0")
	firmware(t, "gid_fails", "Y")
	contains(t, n.attach(n.rail(0).With("rdma", soon(nil)), n.pod()).mustFail(108), "mlx5_0/1 made no RoCE v2 entry", "dmesg")
	n.nothingLeft()
}

func TestMLX5ExclusiveDeviceWithoutGUIDMovesAndMovesBack(t *testing.T) {
	n := newMLX5Node(t, "exclusive")
	for _, master := range []any{"r4", map[string]any{"rdma": "irdma0"}} {
		a := n.attach(n.rail(4).With("master", master), n.pod())
		addr := a.mustAdd()[0]
		if got := a.pod.devices(t); len(got) != 1 || got[0] != "irdma0" {
			t.Errorf("master %v: the pod has the devices %q, want irdma0", master, got)
		}
		if is := v2Place(t, a.pod.Name, "irdma0/ports/1", addr); a.indexes()[addr] != is {
			t.Errorf("master %v: recorded index %d, want %d", master, a.indexes()[addr], is)
		}
		a.mustCheck()
		a.mustDel()
		if _, err := os.Stat("/sys/class/infiniband/irdma0"); err != nil {
			t.Errorf("master %v: %v", master, err)
		}
	}
}

// mlx5Ports are the interfaces with RoCE of a machine of the type mlx5-like, and their
// ports: mlx5_0, both ports of mlx5_1, irdma0, which has no RoCE v1, and one device for
// each more rail.
func mlx5Ports() (links, ports []string) {
	links = []string{"r0", "r1", "r2", "r4"}
	ports = []string{"mlx5_0/ports/1", "mlx5_1/ports/1", "mlx5_1/ports/2", "irdma0/ports/1"}
	for i := 5; i < rails(); i++ {
		links, ports = append(links, fmt.Sprintf("r%d", i)), append(ports, fmt.Sprintf("mlx5_%d/ports/1", i-2))
	}
	return links, ports
}

// mixedRails returns a network on all NICs with RoCE.
func (n *node) mixedRails(index any) network {
	var list []any
	links, _ := mlx5Ports()
	for _, l := range links {
		list = append(list, map[string]any{"master": l})
	}
	return promising(n.allRails().With("rails", list), index)
}

// hostAddresses gives some NICs addresses of the host, until the test is over.
func hostAddresses(t *testing.T) {
	t.Helper()
	finally(t, "for r in r1 r4; do ip addr flush dev $r scope global; done")
	shell(t, "for i in 1 2; do ip addr add 10.1.0.$i/24 dev r1; done; for i in 1 2 3; do ip addr add 10.4.0.$i/24 dev r4; done")
	cnitest.Await(t, "the host's addresses have entries", func() bool {
		return len(gids(t, "", "irdma0").of("10.4.0.3")) == 1 && len(gids(t, "", "mlx5_1").of("10.1.0.2")) == 2
	})
}

// same calls ADD and returns the index that the address has on all rails.
func same(a attachment) int {
	t := a.node.t
	t.Helper()
	var at []int
	_, ports := mlx5Ports()
	for i, on := range a.addRails() {
		at = append(at, v2Place(t, a.pod.Name, ports[i], on[0]))
		if a.indexes()[on[0]] != at[i] {
			t.Errorf("%s: recorded index %d, want %d", on[0], a.indexes()[on[0]], at[i])
		}
	}
	if len(at) != len(ports) || slices.Min(at) != slices.Max(at) {
		t.Errorf("%s has the indexes %v, want the same on %d rails", a.pod.Name, at, len(ports))
	}
	if left := a.pod.fillers(t); left != "" {
		t.Errorf("%s still has\n%s", a.pod.Name, left)
	}
	a.mustCheck()
	return at[0]
}

// TestMLX5PromiseIsKeptOnNICsThatDiffer has NICs with two entries and with one entry
// for an address, and a table of 32 entries.
func TestMLX5PromiseIsKeptOnNICsThatDiffer(t *testing.T) {
	n := newMLX5Node(t, "shared")
	hostAddresses(t)
	first, second := n.attach(n.mixedRails("equal"), n.pod()), n.attach(n.mixedRails(21), n.pod())
	same(first)
	if at := same(second); at != 21 {
		t.Errorf("got the index %d, want 21", at)
	}
	third := n.attach(n.mixedRails(21), n.pod())
	contains(t, third.mustFail(108), "want index 21", second.pod.Name)
	contains(t, n.attach(n.mixedRails(22), n.pod()).mustFail(108), "RoCE v1, which takes the index before", "set rdma.gidIndex to 23")
	contains(t, n.attach(n.mixedRails(41), n.pod()).mustFail(108), "(irdma0/1)", "want index 41, and the table has 32 entries")
	first.mustDel()
	second.mustDel()
	n.nothingLeft()
}

// TestMLX5PromiseIsKeptWhileTheFirmwareIsSlow has pods come while the NICs still remove the
// entries of others.
func TestMLX5PromiseIsKeptWhileTheFirmwareIsSlow(t *testing.T) {
	n := newMLX5Node(t, "shared")
	hostAddresses(t)
	firmware(t, "gid_late_us", "2000")
	firmware(t, "del_late_us", "30000")
	pods := [2]attachment{n.attach(n.mixedRails("equal"), n.pod()), n.attach(n.mixedRails("equal"), n.pod())}
	same(pods[0])
	for i := range 4 {
		same(pods[(i+1)%2])
		pods[i%2].mustDel()
	}
	pods[0].mustDel()
	n.nothingLeft()
}

// TestLongMLX5PromiseHoldsWhilePodsComeAndGo is TestPromiseEqualHoldsWhilePodsComeAndGo on
// NICs that differ.
func TestLongMLX5PromiseHoldsWhilePodsComeAndGo(t *testing.T) {
	n := newMLX5Node(t, "shared")
	hostAddresses(t)
	rnd := rand.New(rand.NewPCG(2, uint64(rails())))
	var pods [3]attachment
	there := map[int]bool{}
	for i := range pods {
		pods[i] = n.attach(n.mixedRails("equal"), n.pod())
	}
	for range rounds(t, 12) {
		i := rnd.IntN(len(pods))
		if there[i] {
			pods[i].mustDel()
		} else {
			same(pods[i])
		}
		there[i] = !there[i]
		if t.Failed() {
			t.FailNow()
		}
	}
	for i := range pods {
		pods[i].mustDel()
	}
	n.nothingLeft()
}

// TestMLX5RepresentorMatchesOnlyIfItIsNamed has the representor r3 among the NICs.
func TestMLX5RepresentorMatchesOnlyIfItIsNamed(t *testing.T) {
	n := newMLX5Node(t, "shared")
	ether := func(count int) network {
		return n.allRails().With("rails", map[string]any{"match": map[string]any{"linkTypes": []any{"ether"}}, "count": count})
	}
	a := n.attach(ether(rails()-1), n.pod())
	if addrs := a.addRails(); len(addrs) != rails()-1 {
		t.Errorf("got the addresses %v, want some on %d rails", addrs, rails()-1)
	}
	a.mustDel()
	contains(t, n.attach(ether(rails()), n.pod()).mustFail(102), fmt.Sprintf("want %d NICs, got %d: r0, r1, r2, r4", rails(), rails()-1))
	named := map[string]any{"ifNames": []any{"r3"}}
	a = n.attach(n.rail(3).With("master", named).With("rdma", map[string]any{"mode": "off"}), n.pod())
	a.mustAdd()
	a.mustDel()
	n.nothingLeft()
}

func TestMLX5PortThatFlapsKeepsItsIndexes(t *testing.T) {
	n := newMLX5Node(t, "shared")
	a := n.attach(dual(n.rail(0), 0), n.pod())
	addrs := a.mustAdd()
	for range 3 {
		shell(t, "ip link set r0 down")
		contains(t, a.check(), "mlx5_0/1", "DOWN")
		shell(t, "ip link set r0 up")
		cnitest.Await(t, "CHECK finds nothing", func() bool { return a.check() == "" })
	}
	for _, addr := range addrs {
		if is := v2Place(t, a.pod.Name, "mlx5_0/ports/1", addr); a.indexes()[addr] != is {
			t.Errorf("%s is at %d, want the recorded index %d", addr, is, a.indexes()[addr])
		}
	}
	a.mustDel()
	n.nothingLeft()
}

// TestMLX5MoveThatRenumbersADeviceFileIsReported has a free number below those of the
// devices, as a virtual function leaves one. Each move takes the lowest free number.
func TestMLX5MoveThatRenumbersADeviceFileIsReported(t *testing.T) {
	n := newMLX5Node(t, "exclusive")
	was := run(t, "cat", "/sys/module/fake_roce/parameters/devices")
	withGap := "rmmod fake_roce\nrdma link add gap type rxe netdev r0\nmodprobe fake_roce devices='" + was + "'\nrdma link del gap"
	finally(t, "rmmod fake_roce; modprobe fake_roce devices='"+was+"'")
	shell(t, withGap)
	on := func(rail int, uverbs string) attachment {
		return n.attach(n.rail(rail).With("rdma", map[string]any{"uverbs": uverbs}), n.pod())
	}
	contains(t, on(0, "require").mustFail(110), "from /dev/infiniband/uverbs1 to /dev/infiniband/uverbs0")
	n.nothingLeft()
	a := on(4, "warn") // mlx5_0 has number 0 now, and 1 is free
	a.mustAdd()
	const changed = "from /dev/infiniband/uverbs4 to /dev/infiniband/uverbs1"
	contains(t, a.stderr.String(), changed)
	contains(t, a.check(), changed)
	a.mustDel()
	n.nothingLeft()
}
