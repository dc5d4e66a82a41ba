// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// isIn fails the test if the pod does not have just one RDMA device, or the
// host has it too.
func isIn(t *testing.T, p *pod, device string) {
	t.Helper()
	if got := p.devices(t); !slices.Equal(got, []string{device}) {
		t.Errorf("%s has the RDMA devices %q, want %s", p.Name, got, device)
	}
	if got := entries("/sys/class/infiniband"); slices.Contains(got, device) {
		t.Errorf("the host still has %s", device)
	}
}

// tos returns the type of service of rxe0 in a namespace, the host's if prefix
// is "".
func tos(t *testing.T, prefix string) string {
	t.Helper()
	return shell(t, prefix+`sh -ec '`+withCM+`cat $d/ports/1/default_roce_tos; rmdir $d'`)
}

// withCM makes the folder $d, in which rdma_cm has its settings for rxe0.
const withCM = `mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
	d=/sys/kernel/config/rdma_cm/rxe0; mkdir $d; `

func setTOS(v int) string {
	return fmt.Sprintf("%s echo %d > $d/ports/1/default_roce_tos; rmdir $d", withCM, v)
}

func TestExclusiveDeviceIsThePodsUntilDel(t *testing.T) {
	n := newNode(t, "exclusive")
	// A second pod with nothing of ours sees no device.
	a, bystander := n.attach(n.rail(0), n.pod()), n.pod()
	addr := a.mustAdd()
	isIn(t, a.pod, "rxe0")
	if got := bystander.devices(t); len(got) > 0 {
		t.Errorf("another pod sees %q", got)
	}
	want := places(t, gids(t, a.pod.Name, "rxe0"), addr)
	if got := a.indexes(); got[addr[0]] != want[addr[0]] {
		t.Errorf("recorded index %v, want %v", got, want)
	}
	a.mustCheck()
	a.mustAdd() // again: all stands
	isIn(t, a.pod, "rxe0")

	b := n.attach(n.rail(0), bystander)
	contains(t, b.mustFail(109), `pod "train/`+a.pod.Name+`" has it`, `"net1"`, "rdma system set netns shared")
	other := n.attach(n.rail(1), bystander).as("net2")
	other.mustAdd()
	isIn(t, bystander, "rxe1")
	other.mustDel()

	a.mustDel()
	home(t)
	a.pod.empty(t)
	b.mustAdd()
	isIn(t, bystander, "rxe0")
	b.mustDel()
	home(t)
	n.nothingLeft()
}

func TestExclusiveCheckSaysWhereTheDeviceIsAndRepairBringsItBack(t *testing.T) {
	n := newNode(t, "exclusive")
	a := n.attach(n.rail(0), n.pod())
	a.mustAdd()
	finally(t, "ip netns del init")
	run(t, "ip", "netns", "attach", "init", "1")
	run(t, "ip", "netns", "exec", a.pod.Name, "rdma", "dev", "set", "rxe0", "netns", "init")
	home(t)
	found := a.check()
	contains(t, found, "rxe0", "it is in the host's namespace, not in the pod's")
	_, command, _ := strings.Cut(found, "restore it: ")
	command, _, _ = strings.Cut(command, ";")
	shell(t, command)
	a.mustCheck()
	isIn(t, a.pod, "rxe0")

	run(t, "ip", "netns", "exec", a.pod.Name, "rdma", "dev", "set", "rxe0", "netns", "init")
	home(t)
	contains(t, n.rocectl("repair"), "rdma dev set rxe0 netns "+a.pod.Name)
	home(t)
	n.rocectl("repair", "--yes")
	isIn(t, a.pod, "rxe0")
	a.mustCheck()
	a.mustDel()
	home(t)
}

func TestExclusiveTypeOfServiceIsThePodsAndTheHostsAgain(t *testing.T) {
	n := newNode(t, "exclusive")
	finally(t, setTOS(0))
	shell(t, setTOS(32))
	own := map[string]any{"mode": "exclusive", "tos": 106}
	for want, c := range map[string]network{"106": n.rail(0).With("rdma", own), "32": n.rail(0)} {
		a := n.attach(c, n.pod())
		a.mustAdd()
		if got := tos(t, "ip netns exec "+a.pod.Name+" "); got != want {
			t.Errorf("the pod's type of service is %s, want %s", got, want)
		}
		a.mustCheck()
		a.mustDel()
		if got := tos(t, ""); got != "32" {
			t.Errorf("after DEL the host's type of service is %s, want 32", got)
		}
		a.mustAdd()
		a.pod.Remove(t)
		a.mustDel()
		if got := tos(t, ""); got != "32" {
			t.Errorf("after the namespace was gone the host's type of service is %s, want 32", got)
		}
	}
}

func TestExclusiveDeviceMovesBackUnderItsOwnName(t *testing.T) {
	n := newNode(t, "exclusive")
	rename := func(a attachment) {
		run(t, "ip", "netns", "exec", a.pod.Name, "rdma", "dev", "set", "rxe0", "name", "mine")
		isIn(t, a.pod, "mine")
		contains(t, a.check(), `it has another name in the pod, "mine"`, "rdma dev set mine name rxe0")
	}
	for name, del := range map[string]func(attachment){
		"DEL": func(a attachment) { a.mustDel() },
		"DEL after the namespace is gone": func(a attachment) {
			a.pod.Remove(t)
			a.mustDel()
		},
		"GC after the namespace is gone": func(a attachment) {
			a.pod.Remove(t)
			if err := a.gc(); err != nil {
				t.Errorf("GC: %+v", err)
			}
		},
		"repair after the namespace is gone": func(a attachment) {
			a.pod.Remove(t)
			out, err := n.tryRocectl("repair", "--yes")
			if err == nil {
				t.Error("rocectl repair has nothing to say of a pod that is gone")
			}
			contains(t, out, "the pod is gone")
			home(t)
			a.mustDel()
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := n.attach(n.rail(0), n.pod())
			a.mustAdd()
			rename(a)
			del(a)
			home(t)
			n.nothingLeft()
		})
	}
}

func TestExclusiveLateDelLeavesTheDeviceToTheNextPod(t *testing.T) {
	n := newNode(t, "exclusive")
	a, b := n.attach(n.rail(0), n.pod()), n.attach(n.rail(0), n.pod())
	a.mustAdd()
	a.pod.Remove(t)
	cnitest.Await(t, "the kernel brings the device home", func() bool { return len(entries("/sys/class/infiniband")) == 2 })
	b.mustAdd()
	a.mustDel()
	isIn(t, b.pod, "rxe0")
	b.mustCheck()
	b.mustDel()
	home(t)
	n.nothingLeft()
}

// The namespace has lost its path, and a process keeps it: DEL finds it by the process.
func TestExclusiveDeviceComesHomeFromANamespaceThatAProcessKeeps(t *testing.T) {
	n := newNode(t, "exclusive")
	a := n.attach(n.rail(0), n.pod())
	a.mustAdd()
	pid, stop := background(t, "nsenter", "--net="+a.pod.Path, "sleep", "600")
	cnitest.Await(t, "sleep runs in the pod", func() bool {
		comm, _ := try("cat", fmt.Sprintf("/proc/%d/comm", pid))
		return comm == "sleep"
	})
	a.pod.Remove(t)
	a.mustDel()
	home(t)
	stop()
	n.nothingLeft()
}

func TestExclusiveDeviceMovesBackWhileAProcessHasItOpen(t *testing.T) {
	n := newNode(t, "exclusive")
	a := n.attach(n.rail(0), n.pod())
	addr := a.mustAdd()[0]
	pid, stop := background(t, "ip", "netns", "exec", a.pod.Name,
		"ib_write_bw", "--ib-dev=rxe0", "--gid-index="+strconv.Itoa(a.indexes()[addr]))
	cnitest.Await(t, "the program has the device open", func() bool {
		open, _ := try("ls", "-l", fmt.Sprintf("/proc/%d/fd", pid))
		return strings.Contains(open, "/dev/infiniband/uverbs0")
	})
	a.mustDel()
	home(t)
	a.pod.empty(t)
	n.nothingLeft()
	stop()
}

// TestExclusiveDeviceThatTheHostUsesIsRefused has a program of the host wait with a queue
// pair on the device.
func TestExclusiveDeviceThatTheHostUsesIsRefused(t *testing.T) {
	n := newNode(t, "exclusive")
	pid, stop := background(t, "ibv_rc_pingpong", "-d", "rxe0", "-g", "0")
	cnitest.Await(t, "the program has a queue pair", func() bool {
		out, _ := try("rdma", "resource", "show", "qp")
		return strings.Contains(out, "comm ibv_rc_pingpong")
	})
	a := n.attach(n.rail(0), n.pod())
	contains(t, a.mustFail(109), fmt.Sprintf("the host uses it: process %d (ibv_rc_pingpong)", pid), "node.json")
	home(t)
	n.nothingLeft()
	n.settle(`, "rdma": {"inUse": "take"}`)
	a.mustAdd()
	isIn(t, a.pod, "rxe0")
	stop()
	a.mustDel()
	home(t)
	n.nothingLeft()
}

// 6.1's own Soft-RoCE cannot be moved (testdata/stock.sh).
func TestStockDeviceThatCannotMoveIsAnErrorThatSaysSo(t *testing.T) {
	n := newNode(t, "exclusive")
	a := n.attach(n.rail(0), n.pod())
	contains(t, a.mustFail(104), "rxe0", "disassociate_ucontext", "rdma system set netns shared")
	home(t)
	n.nothingLeft()
}
