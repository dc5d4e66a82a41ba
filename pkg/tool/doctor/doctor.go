// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package doctor checks whether a node can run RoCE pods. For each fault it says why
// it matters and which command corrects it.
//
// It changes nothing. Each answer has one of three values: ok, problem, or cannot
// tell, with what is missing for an answer. A check never reports ok because it could
// not look. It is for rocectl only and stands on the libraries of the field
// (docs/adr/0022). Read this file first, then node.go, which reads what the checks
// examine. The other files have the checks by theme.
package doctor

import (
	"context"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Check is one question about a node.
type Check struct {
	Name string // kebab-case
	look func(l *look) []report.Finding
	Asks string // the question in a few words, for lists of checks
	Why  string // why a problem matters, one sentence without full stop
}

// Checks returns all checks, in the order in which to solve what they find: what
// others need comes first.
func Checks() []Check {
	return []Check{
		{
			"machine-id", (*look).machineID, "does the node have a machine ID?",
			"MACs and blocks of addresses are told apart by machine ID and host name; rocectl agent claims nothing without one",
		},
		{
			"settings", (*look).settings, "are the settings of the node, /etc/roce/node.json, correct?",
			"with a fault in them, each ADD on the node fails with error 6 or 7",
		},
		{
			"rdma-modules", (*look).rdmaModules, "are ib_uverbs, rdma_ucm and ib_umad loaded or built in?",
			"without ib_uverbs no program can use RDMA, without rdma_ucm none can use rdma_cm; the device plugin of shared devices offers no device that lacks a file of one of the three",
		},
		{
			"rdma-driver", (*look).rdmaDriver, "which driver stack runs, the kernel's or OFED, and is it the one that is installed?",
			"after an update of the kernel the drivers of OFED are often not built for it, and the kernel's own run with other features and other limits than those that were tested",
		},
		{
			"rdma-devices", (*look).rdmaDevices, "does the node have RDMA devices?",
			"without one there is no RoCE: networks with rdma.mode other than off fail with error 103",
		},
		{
			"rdma-netns-mode", (*look).rdmaMode, "is the namespace mode, shared or exclusive, the same after the next boot?",
			"networks that want the other mode fail with error 104 after the next boot, and no mode can be set while there are pods",
		},
		{
			"rdma-ports", (*look).rdmaPorts, "does each port speak RoCE, is it active, and at which speed?",
			"a pod on the NIC of this port gets error 103, or a rail less if minRails permits it",
		},
		{
			"rdma-mtu", (*look).rdmaMTU, "does the MTU of each RoCE interface fit RoCE's largest, 4096?",
			"RoCE packets then carry less than 4096 bytes, so the NIC sends up to four times as many for the same data; connections between ends of different MTU may fail",
		},
		{
			"rdma-bond", (*look).rdmaBond, "does each bond of RoCE NICs have an RDMA device of its own?",
			"the GIDs of addresses on the bond and its children then belong to one slave, and connections do not survive when that one fails",
		},
		{
			"eswitch-mode", (*look).eswitchMode, "are the NICs of RDMA devices in legacy mode, and not in switchdev mode?",
			"in switchdev mode the interface of the NIC has no RoCE for macvlan children: error 103; SR-IOV networks behind roce work",
		},
		{
			"vf-trust", (*look).vfTrust, "are VFs of the node trusted and without spoof check, as the parent of a macvlan needs to be?",
			"a macvlan child has a MAC of its own, and a VF without these settings drops its frames: the gateway does not answer (error 106)",
		},
		{
			"nic-firmware", (*look).nicFirmware, "do RoCE NICs of the same driver have the same driver and firmware version?",
			"rails behave differently, and a collective is as slow as its slowest rail",
		},
		{
			"nic-qos", (*look).nicQoS, "do all RoCE NICs have the same settings of PFC, DSCP and ECN, and do these fit together?",
			"a rail with other settings than its switch port loses packets under load, and is then much slower than the others; docs/lossless.md says what belongs together",
		},
		{
			"pcie-link", (*look).pcieLink, "does each NIC run at the PCIe speed and width that it is capable of?",
			"the NIC cannot reach the speed of its port: half the width or one generation less halves what passes",
		},
		{
			"gpu-direct", (*look).gpuDirect, "can the NICs reach the memory of the GPUs (GPUDirect RDMA)?",
			"each transfer between GPUs then goes through the memory of the host, at a fraction of the speed",
		},
		{
			"pcie-acs", (*look).pcieACS, "do PCIe bridges let NICs and GPUs talk to each other directly (ACS off)?",
			"GPUDirect RDMA then goes through the root complex of the CPU, which is slower and may hang on some platforms",
		},
		{
			"gid-table", (*look).gidTable, "how full are the GID tables, and how many more pods fit?",
			"an address without a place in the table has no RDMA: ADD fails with error 108 when the table is full",
		},
		{
			"rdma-files", (*look).charDevices, "does each RDMA device have its files uverbs, umad and rdma_cm in /dev/infiniband?",
			"programs open the device by these files; a device plugin hands them to pods, and offers no device that lacks one",
		},
		{
			"memlock", (*look).memlock, "may containers lock as much memory as the node has?",
			"RDMA locks the memory that it transfers: programs fail to register it (ENOMEM, \"Cannot allocate memory\") at this limit, unless they have CAP_IPC_LOCK",
		},
		{
			"host-arp", (*look).hostARP, "do ARP and rp_filter of the node keep its RoCE NICs apart?",
			"the node answers for the address of one NIC with the MAC of another, so RoCE traffic to the node takes the wrong rail; strict rp_filter drops the replies",
		},
		{
			"network-managers", (*look).networkManagers, "does at most one of systemd-networkd and NetworkManager manage each RoCE interface?",
			"two programs undo each other's addresses, MTU and state; each address that goes takes its GID along",
		},
		{
			"neighbour-table", (*look).neighbourTable, "are the neighbour tables large enough for pods x rails x peers?",
			"all pods share these tables; when one is full, gateways and peers stop answering (error 106, \"neighbor table overflow!\" in dmesg)",
		},
		{
			"firewall", (*look).firewall, "does a rule of the node drop UDP 4791, where RoCE packets pass the kernel?",
			"RoCE v2 is UDP to port 4791: connections of Soft-RoCE time out",
		},
		{
			"host-link", (*look).hostLink, "does the node forward packets of pods with hostLink, and know the CIDRs of Services?",
			`a pod reaches ClusterIPs through its node: connections to endpoints on other machines time out; without the CIDRs, pods of networks with hostLink.routes "auto" do not start (error 11)`,
		},
		{
			"tagged-frames", (*look).taggedFrames, "can pods on a NIC that also has VLANs send and receive frames of these VLANs?",
			"the key vlans of the settings limits networks, not frames: such a pod reaches every VLAN that the switch port passes",
		},
		{
			"left-behind", (*look).leftBehind, "does a record name each VLAN, link to a pod and rule of roce, and is no pod of roce-hwtest left?",
			"no DEL removes them: a VLAN stays until the next boot, a link and the rule still lead packets to a pod that is gone, and a pod of roce-hwtest may have an RDMA device of the node",
		},
		{
			"cni-plugins", (*look).cniPlugins, "are roce and roce-ipam installed, in the version of rocectl?",
			"without the plugin no pod of its networks starts; programs of different versions may not read each other's records",
		},
		{
			"cni-config", (*look).cniConfig, "does the runtime call Multus (or roce itself)?",
			"pods start without their RoCE interfaces, and nothing says so: the annotation k8s.v1.cni.cncf.io/networks is for Multus to read",
		},
		{
			"cni-lists", (*look).cniLists, "is sbr behind roce in a list of plugins on the node?",
			"its rules win over those of roce, and it moves the route to the subnet: programs that bind no address cannot reach the rail",
		},
		{
			"device-plugin", (*look).devicePlugin, "does each resource of a device plugin have devices on this node?",
			"pods that request the resource stay Pending (\"Insufficient ...\"); unprivileged pods get their RDMA device files from it",
		},
		{
			"pools", (*look).poolFill, "do the RailPools have addresses left on this node?",
			"pods do not start when there is none left (error 101), or while the node has no block of the pool (error 11)",
		},
		{
			"pool-routes", (*look).poolRoutes, "are the subnets of RailPools apart from what the node routes elsewhere?",
			"two networks with the same addresses: pods and nodes reach one of them, and it depends on the side which",
		},
		{
			"agent", (*look).agentHealth, "does rocectl agent answer that all pools of the node are ready?",
			"without it the node gets no further block of a RailPool, and pods with sticky addresses do not start",
		},
	}
}

// Named returns the checks of these names, all for none.
func Named(names ...string) ([]Check, error) {
	all := Checks()
	if len(names) == 0 {
		return all, nil
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(c Check) bool { return c.Name == name }) {
			return nil, fmt.Errorf("check %q: there is none of this name", name)
		}
	}
	return slices.DeleteFunc(all, func(c Check) bool { return !slices.Contains(names, c.Name) }), nil
}

// Run yields the answers of checks, each as soon as it is known. No check stops
// the others, whatever it meets.
func Run(ctx context.Context, n Node, checks []Check) iter.Seq[report.Answer] {
	return func(yield func(report.Answer) bool) {
		for _, c := range checks {
			for _, f := range c.run(ctx, n) {
				a := report.Answer{Check: c.Name, Finding: f}
				if f.Verdict == report.Problem {
					a.Why = c.Why
				}
				if !yield(a) {
					return
				}
			}
		}
	}
}

// patience bounds one check, which may wait for a program or for the agent.
const patience = 15 * time.Second

// run looks, and turns a panic into an answer: the other checks are still of use.
func (c Check) run(ctx context.Context, n Node) (out []report.Finding) {
	defer func() {
		if r := recover(); r != nil {
			out = append(out, cannotTell("the check itself failed: "+fmt.Sprint(r), "a bug report with this line"))
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return (&look{Node: n, ctx: ctx}).try(c.look)
}

// Write writes answers and their number for people: all of them, or else problems first, then
// what cannot be told, and how many are ok.
func Write(w io.Writer, answers []report.Answer, all bool) error {
	shown, summary := answers, report.Summary(answers)
	if !all {
		shown = brief(answers)
		summary = strings.Replace(summary, " ok", " ok (--all shows them)", 1)
	}
	for _, a := range shown {
		if err := report.WriteText(w, a); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, "# "+summary)
	return err
}

// brief returns the answers that are not ok. Checks that lack the same are one answer.
func brief(answers []report.Answer) []report.Answer {
	var problems, unknown []report.Answer
	for i, a := range answers {
		switch same := func(b report.Answer) bool { return b.Verdict == report.CannotTell && b.Missing == a.Missing }; {
		case a.Verdict == report.Problem:
			problems = append(problems, a)
		case a.Verdict == report.CannotTell && !slices.ContainsFunc(answers[:i], same):
			unknown = append(unknown, folded(slices.DeleteFunc(slices.Clone(answers), func(b report.Answer) bool { return !same(b) }))...)
		}
	}
	return append(problems, unknown...)
}

// folded returns one answer for several checks that lack the same, and the answers of a single
// check as they are.
func folded(answers []report.Answer) []report.Answer {
	var names []string
	for _, a := range answers {
		names = append(names, a.Check)
	}
	names = slices.Compact(names)
	if len(names) == 1 {
		return answers
	}
	missing, verb := answers[0].Missing, "need "
	if slices.ContainsFunc(Checks(), func(c Check) bool { return c.Name == missing }) {
		verb = "wait for "
	}
	return []report.Answer{{Check: fmt.Sprintf("%d checks", len(names)), Finding: cannotTell(verb+missing+"\n"+strings.Join(names, ", "), "")}}
}

func ok(format string, args ...any) report.Finding {
	return report.Finding{Verdict: report.OK, Found: fmt.Sprintf(format, args...)}
}

// orOK returns findings, or, if there are none, that all is ok.
func orOK(out []report.Finding, format string, args ...any) []report.Finding {
	if len(out) == 0 {
		return []report.Finding{ok(format, args...)}
	}
	return out
}

func problem(found, fix string) report.Finding {
	return report.Finding{Verdict: report.Problem, Found: found, Fix: fix}
}

func cannotTell(found, missing string) report.Finding {
	return report.Finding{Verdict: report.CannotTell, Found: found, Missing: missing}
}

// part is a part of a node for rocectl status.
type part struct {
	name   string
	checks []string // that tell how it is; of those that are ok, the first has the word
}

func parts() []part {
	return []part{
		{"plugins", []string{"cni-plugins", "cni-config", "cni-lists", "settings"}},
		{"agent", []string{"agent"}},
		{"pools", []string{"pools"}},
		{"device-plugin", []string{"device-plugin"}},
		{"rails", []string{"rdma-devices", "rdma-ports", "rdma-netns-mode", "rdma-mtu", "gid-table"}},
	}
}

// Status returns one answer for each part of a node: the worst of its checks.
func Status(ctx context.Context, n Node) []report.Answer {
	var out []report.Answer
	for _, p := range parts() {
		var answers []report.Answer
		for _, name := range p.checks {
			i := slices.IndexFunc(Checks(), func(c Check) bool { return c.Name == name })
			answers = slices.AppendSeq(answers, Run(ctx, n, Checks()[i:i+1]))
		}
		out = append(out, p.worst(answers))
	}
	return out
}

// worst returns the first of the worst answers, and how many there are more. What else there is
// to know of a problem, doctor says.
func (p part) worst(answers []report.Answer) report.Answer {
	verdict := map[int]report.Verdict{0: report.OK, 1: report.Problem, 2: report.CannotTell}[report.Status(answers)]
	answers = slices.DeleteFunc(answers, func(a report.Answer) bool { return a.Verdict != verdict })
	first := answers[0]
	found, _, _ := strings.Cut(first.Found, "\n")
	if first.Of != "" {
		found = first.Of + ": " + found
	}
	a := report.Answer{Check: p.name, Finding: report.Finding{Verdict: verdict, Found: found}}
	if verdict == report.OK {
		return a
	}
	if len(answers) > 1 {
		a.Found += fmt.Sprintf(" (and %d more)", len(answers)-1)
	}
	a.Fix = "rocectl doctor"
	for _, name := range p.checks {
		if slices.ContainsFunc(answers, func(a report.Answer) bool { return a.Check == name }) {
			a.Fix += " " + name
		}
	}
	return a
}
