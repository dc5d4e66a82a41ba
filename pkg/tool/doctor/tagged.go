// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// taggedFrames asks about pods on a NIC that also has VLANs. A macvlan passes frames with a
// tag, and a process with CAP_NET_RAW writes any.
func (l *look) taggedFrames() []report.Finding {
	links := l.links()
	vlans := map[conf.LinkName][]int{}
	for _, vlan := range links {
		below := func(nic rtnl.Link) bool { return vlan.Lower == rtnl.Lower{Index: nic.Index, NSID: rtnl.NoNSID} }
		if i := slices.IndexFunc(links, below); vlan.VLAN != 0 && i >= 0 {
			name := conf.LinkName(links[i].Name)
			vlans[name] = append(vlans[name], vlan.VLAN)
		}
	}
	if len(vlans) == 0 {
		return []report.Finding{ok("no NIC has a VLAN")}
	}
	processes, hidden := l.processes()
	var out []report.Finding
	untagged := 0
	for _, rec := range l.records() {
		for child := range plan.All[plan.Child](rec.Plan.Ops) {
			if vlans[child.Parent] == nil || child.InPod || child.VLAN.ID != 0 {
				continue
			}
			untagged++
			pod := cmp.Or(rec.Pod.String(), string(rec.ContainerID)) + " " + string(child.Name)
			in := processes[rec.NetnsID.Ino]
			switch {
			case slices.ContainsFunc(in, func(p string) bool { return l.mayWriteFrames(p) && !l.inSandbox(p, rec) }):
				out = append(out, problem(fmt.Sprintf("it has no VLAN, but CAP_NET_RAW, and its NIC %s has VLANs: %v", child.Parent, vlans[child.Parent]),
					"# drop NET_RAW in securityContext.capabilities of its containers; or let the switch port pass no tags, and take the VLANs to another NIC").About(pod))
			case hidden != nil:
				out = append(out, cannotTell("a process cannot be looked at: "+hidden.Error(), "root on the node itself").About(pod))
			case len(in) == 0:
				out = append(out, cannotTell("no process of the pod is visible", "the PID namespace of the node (hostPID in a pod)").About(pod))
			}
		}
	}
	return orOK(out, "pods without VLAN on NICs that have VLANs: %d; none has CAP_NET_RAW", untagged)
}

// processes returns the folders of processes by the inodes of their network namespaces.
// hidden is about a process of which this cannot be known.
func (n Node) processes() (out map[uint64][]string, hidden error) {
	out = map[uint64][]string{}
	for _, name := range n.files("proc/[0-9]*/status") {
		ns, err := netns.Inode(n.Root, path.Dir(name))
		switch {
		case err == nil:
			out[ns] = append(out[ns], path.Dir(name))
		case !isNotExist(err): // else it has ended
			hidden = err
		}
	}
	return out, hidden
}

// mayWriteFrames says whether a process has CAP_NET_RAW, or starts programs that may get it.
func (n Node) mayWriteFrames(process string) bool {
	status, _ := n.text(process + "/status") // without it, the process has ended
	set := "CapPrm:"
	if privileges, _ := after(status, "NoNewPrivs:"); privileges == "0" {
		set = "CapBnd:" // a program with file capabilities gives it the rest
	}
	capabilities, _ := after(status, set)
	may, err := strconv.ParseUint(capabilities, 16, 64)
	return err == nil && may>>unix.CAP_NET_RAW&1 == 1
}

// inSandbox says whether a process is that of a pod's sandbox. The runtime gave the ID of the
// sandbox to the plugin. The process only pauses, and keeps the capabilities that the runtime grants by default.
// Programs of the pod can take its name, but not its control group. Of a container without
// a pod of Kubernetes, this ID is its own.
func (n Node) inSandbox(process string, rec record.Record) bool {
	groups, _ := n.text(process + "/cgroup") // without it, the process has ended
	return rec.Pod.Namespace != "" && strings.Contains(groups, string(rec.ContainerID))
}
