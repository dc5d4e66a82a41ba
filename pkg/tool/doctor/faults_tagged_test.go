// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"os"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

const (
	withRaw    = "Name:\tsh\nCapPrm:\t00000000a80425fb\nCapBnd:\t00000000a80425fb\nNoNewPrivs:\t0\n" // containerd's default
	withoutRaw = "Name:\tsh\nCapPrm:\t0000000000000000\nCapBnd:\t00000000a80405fb\nNoNewPrivs:\t0\n"
)

// trunk gives the first NIC a VLAN, and a pod with these processes on the NIC itself.
func (w *world) trunk(status ...string) {
	w.t.Helper()
	w.trunkOf(conf.Pod{Namespace: "ml", Name: "trainer-0"}, status...)
}

func (w *world) trunkOf(pod conf.Pod, status ...string) {
	w.t.Helper()
	w.links = append(w.links, rtnl.Link{Index: 9, Kind: "vlan", VLAN: 120, Name: "storage", Lower: rtnl.Lower{Index: 2, NSID: rtnl.NoNSID}})
	for i, s := range status {
		process := "proc/" + strings.Repeat("7", i+1)
		w.write(process+"/status", s)
		w.targets[process+"/ns/net"] = "net:[4026532264]"
	}
	at := conf.Attachment{ContainerID: "c1", IfName: "net1"}
	release, err := w.records().Lock(w.t.Context(), at.ContainerID)
	if err != nil {
		w.t.Fatal(err)
	}
	defer release()
	err = w.records().Save(record.Record{
		Attachment: at, Pod: pod, NetnsID: netns.ID{Ino: 4026532264},
		Plan: plan.Plan{Ops: plan.Ops{{Place: plan.Pod, Kind: plan.Child{Name: "net1", Parent: "ens1f0np0"}}, {Place: plan.Pod, Kind: plan.Child{
			Name: "net1-1", Parent: "ens1f0np0", VLAN: conf.VLAN{NIC: "ens1f0np0", ID: 120},
		}}, {Place: plan.Pod, Kind: plan.Child{Name: "net1-2", Parent: "ens1f0np0", InPod: true}}}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// taggedFaults are of pods on a NIC that has VLANs.
func taggedFaults() []fault {
	trunk := func(status ...string) func(*world) { return func(w *world) { w.trunk(status...) } }
	drop := func(w *world) { w.write("proc/7/status", withoutRaw) }
	return []fault{
		{
			name: "a pod with NET_RAW beside VLANs", change: trunk(withRaw),
			check: "tagged-frames", verdict: report.Problem, says: "ml/trainer-0 net1: it has no VLAN, but CAP_NET_RAW, and its NIC ens1f0np0 has VLANs: [120]", advice: "drop NET_RAW",
			after: drop,
		},
		{
			name: "a pod with programs that may get NET_RAW", change: trunk(strings.Replace(withRaw, "CapPrm:\t00000000a80425fb", "CapPrm:\t0", 1)),
			check: "tagged-frames", verdict: report.Problem, says: "CAP_NET_RAW", advice: "drop NET_RAW",
			after: drop,
		},
		{
			name: "a pod with programs that get no rights", change: trunk("Name:\tsh\nCapPrm:\t0\nCapBnd:\t00000000a80425fb\nNoNewPrivs:\t1\n"),
			check: "tagged-frames", verdict: report.OK, says: "pods without VLAN on NICs that have VLANs: 1; none has CAP_NET_RAW",
		},
		{
			name: "a program with NET_RAW that calls itself pause", change: trunk(withoutRaw, strings.Replace(withRaw, "sh", "pause", 1)),
			check: "tagged-frames", verdict: report.Problem, says: "CAP_NET_RAW", advice: "drop NET_RAW",
			after: func(w *world) { w.write("proc/77/status", withoutRaw) },
		},
		{
			name: "only the sandbox of the pod has NET_RAW", change: func(w *world) {
				w.trunk(withoutRaw, withRaw)
				w.write("proc/77/cgroup", "0::/kubepods.slice/kubepods-besteffort.slice/cri-containerd-c1.scope\n")
			},
			check: "tagged-frames", verdict: report.OK, says: "none has CAP_NET_RAW",
		},
		{
			name: "a container without pod, which is its own sandbox", change: func(w *world) {
				w.trunkOf(conf.Pod{Name: "web"}, withRaw)
				w.write("proc/7/cgroup", "0::/machine.slice/libpod-c1.scope\n")
			},
			check: "tagged-frames", verdict: report.Problem, says: "web net1: it has no VLAN, but CAP_NET_RAW", advice: "drop NET_RAW",
			after: drop,
		},
		{
			name: "pods on VLANs alone", change: func(w *world) {
				w.trunk(withRaw)
				w.links[2].Lower.Index = 3
			},
			check: "tagged-frames", verdict: report.OK, says: "pods without VLAN on NICs that have VLANs: 0",
		},
		{
			name: "the processes of the pod are hidden", change: trunk(),
			check: "tagged-frames", verdict: report.CannotTell, says: "no process of the pod is visible", advice: "hostPID",
		},
		{
			name: "a process cannot be looked at", change: func(w *world) {
				w.trunk(withRaw)
				delete(w.targets, "proc/7/ns/net")
			},
			check: "tagged-frames", verdict: report.CannotTell, says: "a process cannot be looked at: readlink", advice: "root",
		},
	}
}

func TestProcessesOfThisNodeAreLookedAt(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can look at the processes of others")
	}
	all, hidden := Node{Root: os.DirFS("/")}.processes() // perhaps one of another user namespace
	own, err := netns.OwnID()
	if err != nil {
		t.Fatal(err)
	}
	if len(all[own.Ino]) == 0 {
		t.Errorf("the namespace of this process, %d, is not among %v (%v)", own.Ino, all, hidden)
	}
}
