// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// newSRIOVNode returns the node in a machine of the type sriov: r0 and r1 are physical
// functions with the devices mlx5_0 and mlx5_1, and v0 and v1 are virtual functions of r0
// with mlx5_2 and mlx5_3, which have no GUID.
func newSRIOVNode(t *testing.T, mode string) *node {
	t.Helper()
	needDevice(t, vfDevice)
	for _, link := range []string{"r0", "r1", "v0", "v1"} { // before the node is looked at as it was
		cnitest.Await(t, link+" has a carrier", func() bool { return run(t, "cat", "/sys/class/net/"+link+"/carrier") == "1" })
	}
	return newNodeOf(t, vfDevice, mode)
}

const vfDevice = "mlx5_2"

// on returns a network on a link, with the addresses of a rail.
func (n *node) on(link any, rail int) network { return n.rail(rail).With("master", link) }

// allowed lets VFs of r0 send frames with any MAC, until the test is over.
func allowed(t *testing.T, vfs ...int) {
	t.Helper()
	for _, vf := range vfs {
		finally(t, fmt.Sprintf("ip link set r0 vf %d trust off spoofchk on", vf))
		shell(t, fmt.Sprintf("ip link set r0 vf %d trust on spoofchk off", vf))
	}
}

// TestSRIOVChildrenOfVFsReachEachOther is the first test: igb runs out of MAC filters when
// many children have come and gone.
func TestSRIOVChildrenOfVFsReachEachOther(t *testing.T) {
	n := newSRIOVNode(t, "shared")
	allowed(t, 0, 1)
	a, b := n.attach(n.on("v0", 0), n.pod()), n.attach(n.on("v1", 0), n.pod())
	a.mustAdd()
	addr := b.mustAdd()[0]
	run(t, "ip", "netns", "exec", a.pod.Name, "ping", "-c", "3", "-i", "0.2", addr)
	for i, one := range []attachment{a, b} {
		port := fmt.Sprintf("mlx5_%d", i+2)
		contains(t, n.rocectl("env", "--netns", one.pod.Name), "NCCL_IB_HCA='="+port+":1'")
		one.mustDel()
	}
	n.nothingLeft()
}

func TestSRIOVSpoofCheckIsReportedBeforeAnAddressIsLeased(t *testing.T) {
	n := newSRIOVNode(t, "shared")
	a := n.attach(n.on("v1", 0), n.pod())
	const command = "ip link set r0 vf 1 trust on spoofchk off"
	contains(t, a.mustFail(102), `"v1"`, "it is VF 1 of r0, which is not trusted, with the spoof check on", command)
	n.nothingLeft()
	if err := a.status(); err == nil || err.Code != 51 || !strings.Contains(err.Details, command) {
		t.Errorf("STATUS: %+v, want error 51 with the command", err)
	}
	if out, err := n.tryRocectl("doctor", "vf-trust"); err == nil || !strings.Contains(out, command) {
		t.Errorf("rocectl doctor: %v, want the command:\n%s", err, out)
	}

	finally(t, "ip link set r0 vf 1 trust off spoofchk on")
	shell(t, command)
	out, _ := n.tryRocectl("doctor", "vf-trust") // its status is also that of the other VFs
	contains(t, out, "v1: VF 1 of r0: trusted")
	a.mustAdd()
	a.mustCheck()
	a.mustDel()
	n.nothingLeft()
}

// TestSRIOVSpoofCheckOfAVFInThePodIsReported has the VF in the pod, and the PF in the
// host.
func TestSRIOVSpoofCheckOfAVFInThePodIsReported(t *testing.T) {
	n := newSRIOVNode(t, "shared")
	a := n.attach(n.on("v0", 0).With("linkInContainer", true).With("rdma", map[string]any{"mode": "off"}), n.pod())
	finally(t, "ip link set v0 up")
	run(t, "ip", "link", "set", "v0", "netns", a.pod.Name)
	run(t, "ip", "-n", a.pod.Name, "link", "set", "v0", "up")
	cnitest.Await(t, "v0 has a carrier", func() bool {
		return strings.Contains(run(t, "ip", "-n", a.pod.Name, "link", "show", "v0"), "LOWER_UP")
	})
	if _, err := a.add(); err == nil || err.Code != 102 || !strings.Contains(err.Details, "ip link set r0 vf 0 ") {
		t.Errorf("ADD: %+v, want error 102 with the command for the PF", err)
	}
	run(t, "ip", "-n", a.pod.Name, "link", "set", "v0", "netns", "1")
	n.nothingLeft()
}

func TestSRIOVFunctionsAreSelectedByTheirKind(t *testing.T) {
	n := newSRIOVNode(t, "shared")
	allowed(t, 0, 1)
	match := func(function string, count int) attachment {
		c := n.allRails().With("rails", map[string]any{"match": map[string]any{"function": function}, "count": count})
		return n.attach(c, n.pod())
	}
	for function, want := range map[string][]string{"physical": {"mlx5_0:1", "mlx5_1:1"}, "virtual": {"mlx5_2:1", "mlx5_3:1"}} {
		a := match(function, 2)
		a.addRails()
		told := n.rocectl("env", "--netns", a.pod.Name)
		contains(t, told, "NCCL_IB_HCA='="+strings.Join(want, ",")+"'")
		if joins := strings.Contains(told, "export NCCL_IB_MERGE_NICS=0\n"); joins != (function == "virtual") {
			t.Errorf("%s functions: only those of one NIC must be kept apart:\n%s", function, told)
		}
		a.mustCheck()
		a.mustDel()
	}
	pci := filepath.Base(run(t, "readlink", "-f", "/sys/class/net/v1/device"))
	a := n.attach(n.on(map[string]any{"pci": pci}, 0), n.pod())
	a.mustAdd()
	contains(t, n.rocectl("env", "--netns", a.pod.Name), "NCCL_IB_HCA='=mlx5_3:1'")
	a.mustDel()
	contains(t, match("virtual", 3).mustFail(102), "want 3 NICs, got 2: v0, v1", "r0 (function physical)")
	contains(t, n.attach(n.on(map[string]any{"function": "scalable"}, 0), n.pod()).mustFail(102), "v0 (function virtual)")
	n.nothingLeft()
}

// TestSRIOVDevicesWithoutGUIDMoveAndMoveBack has two devices that only their PCI
// addresses tell apart. A pod renames one to the name of the other.
func TestSRIOVDevicesWithoutGUIDMoveAndMoveBack(t *testing.T) {
	n := newSRIOVNode(t, "exclusive")
	allowed(t, 0, 1)
	before := entries("/sys/class/infiniband")
	a, b := n.attach(n.on("v0", 0), n.pod()), n.attach(n.on("v1", 0), n.pod())
	a.mustAdd()
	b.mustAdd()
	isIn(t, a.pod, "mlx5_2")
	isIn(t, b.pod, "mlx5_3")
	a.mustCheck()
	run(t, "ip", "netns", "exec", b.pod.Name, "rdma", "dev", "set", "mlx5_3", "name", "mine")
	b.pod.Remove(t)
	a.mustDel()
	b.mustDel()
	if got := entries("/sys/class/infiniband"); !slices.Equal(got, before) {
		t.Errorf("the host has the RDMA devices %q, want %q", got, before)
	}
	n.nothingLeft()
}

// TestSRIOVHostDeviceGivesAVFToAPodAndTakesItBack has upstream's host-device in front of
// roce, with the PCI address that Multus passes on from a device plugin. The VF is neither
// trusted nor without spoof check, because it keeps its MAC.
func TestSRIOVHostDeviceGivesAVFToAPodAndTakesItBack(t *testing.T) {
	needDevice(t, vfDevice)
	found, _ := filepath.Glob(".cache/plugins-*/host-device") // the pattern is correct
	if len(found) == 0 {
		t.Fatal("there is no host-device: make test builds it")
	}
	for _, mode := range []string{"shared", "exclusive"} {
		t.Run(mode, func(t *testing.T) {
			n := newSRIOVNode(t, mode)
			finally(t, "ip link set v0 up")
			before := entries("/sys/class/infiniband")
			pci := filepath.Base(run(t, "readlink", "-f", "/sys/class/net/v0/device"))
			a := n.attach(network{"cniVersion": "1.0.0", "name": "vf", "type": "roce"}, n.pod())
			a.before = &plugin{absolute(t, filepath.Dir(found[0])), network{
				"type": "host-device", "runtimeConfig": map[string]any{"deviceID": pci},
				"ipam": map[string]any{"type": "static", "addresses": []any{map[string]any{"address": "172.16.10.9/24"}}},
			}}
			if addrs := a.mustAdd(); !slices.Equal(addrs, []string{"172.16.10.9"}) {
				t.Errorf("the pod has %q, want the address of host-device", addrs)
			}
			contains(t, n.rocectl("env", "--netns", a.pod.Name), "NCCL_IB_HCA='=mlx5_2:1'")
			if mode == "exclusive" {
				isIn(t, a.pod, "mlx5_2")
			}
			a.mustCheck()
			a.mustDel()
			a.pod.empty(t)
			n.noRecords()
			if got := entries("/sys/class/infiniband"); !slices.Equal(got, before) {
				t.Errorf("the host has the RDMA devices %q, want %q", got, before)
			}
			run(t, "ip", "link", "show", "v0") // under its name again
		})
	}
}
