// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/hwtest/recording"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/redact"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Row is a behaviour of the table in docs/tested.md, and what a run says about it.
type Row struct {
	Behaviour string         `json:"behaviour"`
	Verdict   report.Verdict `json:"verdict"`
	// By are the steps that tell. Needs is what they need, or what a person needs, where
	// they cannot tell.
	By    []string `json:"by,omitempty"`
	Needs string   `json:"needs,omitempty"`
}

// Why no step tells something.
const (
	kills    = "the kit kills no process of a runtime: the tests in virtual machines do, at each step"
	portDown = "a port that is down: the kit sets no NIC of the host down, because that can cut the node off"
	onHost   = "an address on the host: the kit gives the host none"
	noVF     = "virtual functions with their PF in the host"
	oneMode  = "a run in exclusive mode: rdma system set netns exclusive, while the node has no pods"
	foreign  = "an interface of the NIC that has the address of a pod and answers no ARP: the kit makes no conflict for ADD"
	adopted  = "another CNI plugin: configure the node's own before roce, and run rocectl check"
)

// table has the rows of docs/tested.md in their order: the steps that tell, and what is
// needed where they say nothing. A need that begins with "and " is needed in any case.
func table() [][3]string {
	return [][3]string{
		{"Eight pods of one NIC, IPv4 and IPv6: each pod finds its own GIDs and indexes.", "pod-add pod-views pod-env", mutate},
		{"Several rails: the GID index is aligned, also for eight pods.", "rails", mutate},
		{"`rdma.gidIndex` `equal`, with host addresses on some rails, while pods come and go.", "rails", mutate},
		{"An ADD with `equal`, after the first, makes no event but those of its own entries; differences of 0, 3 and 40.", "gid-events", mutate},
		{"It changes no filler, one after another and ten at once; differences of 0, 3 and 40.", "", onHost},
		{"`rocectl gids` and doctor show what fillers take; `rocectl forget` obeys `rdma.fillers`.", "", onHost},
		{"`rdma.gidIndex` with a number: the same for different histories; error 108 for a second pod.", "gid-number", "a run with --mutate in shared mode"},
		{"`rdma.gidIndex` with a number: the same on two nodes with different histories.", "", "two nodes with this number in a network: compare the indexes that rocectl env prints"},
		{"`kill -9` of ADD while it sets fillers: the next ADD is right, and DEL leaves nothing of the pod.", "", kills},
		{"`rdma.gidIndex` in exclusive mode.", "rails exclusive", oneMode},
		{"A full table is an error that leaves nothing, or a warning with `\"gid\": \"warn\"`.", "gid-full", disrupt},
		{"A table that another namespace filled: `is full`, or `may be full` with ofed-view.", "gid-full", disrupt},
		{"ADD waits for a GID that appears late, and reports one that does not appear.", "gid-time", "a run with --mutate in shared mode"},
		{"RoCE v1 entries are not used as v2.", "host-gids pod-views", mutate},
		{"CHECK finds a port that is down, and a moved index.", "check", "and " + portDown},
		{"CHECK finds an address that the host has, too.", "", onHost},
		{"CHECK finds an address that another pod has, too.", "check", "a run with --mutate in shared mode"},
		{"An address that another interface of the NIC had first: ADD takes the pod's own entry.", "", foreign},
		{"An address that another interface sets later: CHECK reports both entries, and repair keeps the index.", "check", "and " + foreign},
		{"The driver is reloaded: the device is the same.", "reload", disrupt},
		{"A reset makes the device again, with holes and with fillers in the table: after `rocectl repair`, all pods of the port have their indexes.", "reload", disrupt},
		{"A `match` by vendor selects a bond by its slaves (RoCE LAG).", "", "a bond of RoCE NICs, and a network with match and vendors: rocectl plan shows the bond"},
		{"The device below a VLAN, a bond, and a VLAN on a bond.", "layers", "a VLAN or a bond on a RoCE NIC"},
		{"An alternative name of the NIC; no device; several candidates.", "discovery", "a RoCE NIC with an active port"},
		{"A bond fails over: CHECK reports the old and the new index.", "failover", disrupt + ", and an active-backup bond with RoCE LAG"},
		{"The device of a bond is replaced by those of its NICs: CHECK, `rocectl env` and ADD say so.", "", "a bond with RoCE LAG: the kit does not break the device of a bond up"},
		{"A transfer during the failover of a bond.", "", "a transfer that runs while you pull a cable of the bond"},
		{"`sriov_numvfs` of a slave, with a pod on the bond.", "", "a bond of NICs with SR-IOV: the kit changes no number of virtual functions"},
		{"Each port of a device belongs to its NIC.", "hardware discovery", "a RoCE NIC with an active port"},
		{"A port without a GID table is refused before ADD leases an address. Other ports work.", "refusal", "a port without a GID table: switchdev mode, or enable_roce false"},
		{"The device by its PCI address; SR-IOV.", "hardware discovery", "a RoCE NIC with an active port"},
		{"Scalable functions.", "", "a scalable function: look at its line of the step function"},
		{"Selectors ask for physical or virtual functions.", "function", "a RoCE NIC"},
		{"A VF with the spoof check on, not trusted, is refused before ADD leases an address, in the host and in the pod.", "vf-trust", noVF},
		{"Children of two VFs reach each other (ping) after the command of the hint.", "vf-reach", "a run with --mutate and two " + noVF + ", after ip link set PF vf N trust on spoofchk off"},
		{"InfiniBand ports are refused.", "", "an InfiniBand port: look at its line of the step refusal"},
		{"Representors match no selector.", "", "a NIC in switchdev mode: rocectl plan with rails.match on it"},
		{"`rocectl env` and `rocectl gids`, in a pod and on the node.", "pod-env", mutate},
		{"`rocectl heal` with `all` sets lost addresses and interfaces again, and gives the pods of a device that was made again their indexes.", "", "a pod, \"heal\": \"all\" and rocectl heal: ip addr del in the pod, then a reset of the device"},
		{"A queue pair with the GID of another pod is told once; own GIDs, those of the host, and programs of the host are not told.", "", "two pods, rdma.foreignGID \"tell\" and rocectl heal: a program of one uses the index of the other"},
		{"The probe: 20,000 uses of GIDs, and what a kill of the healer leaves.", "", "rdma.foreignGID \"tell\" and a job that makes many connections: CPU of rocectl heal, and /sys/kernel/tracing/kprobe_events after a kill"},
		{"`rocectl gids` names the index that a program of a deleted pod holds. The kernel shows it as free, and gives the next pod another one.", "", "a pod that is deleted while a program in its namespace has a queue pair"},
		{"`rocectl top -o wide`: what the rdma controller of cgroup v2 charges to a pod.", "", "the rdma controller in cgroup.subtree_control down to the slice of the pod"},
		{"`rocectl top`: queue pairs, contexts, memory regions and their bytes of two pods; rates of the only pod of a device.", "", "two pods with traffic: compare rocectl top with what their programs say"},
		{"`rocectl top`: packets of two pods that share a device, by counters that are bound to programs (`integration/vm/module/rxe_counters.c`).", "", "Linux 6.15, the commands of docs/rdma.md, and two pods with traffic"},
		{"`rocectl env` names a port that lost RoCE, on the node and in the pod.", "", "a pod that runs while RoCE is turned off on its NIC: the kit changes no NIC"},
		{"`rocectl env` has the variables with which NCCL keeps virtual functions of one NIC apart.", "", "a pod with two virtual functions of one NIC: rocectl env"},
		{"`network-status` has the device", "", "a cluster: kubectl get pod -o yaml"},
		{"Pod to pod on two nodes and on one: `ib_write_bw`, `rping`", "pod-rdma peer-reach peer-mtu peer-rdma peer-cm", withPeer},
		{"The same with `ib_write_bw` on two nodes, after a move.", "exclusive peer-rdma", withPeer + ", in exclusive mode"},
		{"`rdma.mode` that contradicts the node is refused.", "mode", "a RoCE NIC with an active port"},
		{"Move into the pod, verify there, move back at DEL.", "exclusive pod-del", oneMode},
		{"A move that changes the number of `/dev/infiniband/uverbsN` is reported, or refused with `\"uverbs\": \"require\"`.", "", "a free number below that of the device: look at the step exclusive, which compares the files"},
		{"Move back after the pod renamed the device.", "home-renamed", oneMode},
		{"Move back while another device has the name.", "", "Linux 7.3 and a virtual function that is made while a pod has a device: the kit makes none"},
		{"DEL waits for the device of a namespace that is gone.", "home-gone", oneMode},
		{"A process keeps the namespace: DEL finds it by the process.", "home-kept", oneMode},
		{"Move back while a program has the device open.", "home-open", oneMode},
		{"A late DEL leaves the device to the next pod.", "home-late", oneMode},
		{"A pod gave the device to another namespace.", "", "a pod with CAP_NET_ADMIN that gives its device away: the code of roce-cni decides this, not the NIC"},
		{"Move back after `kill -9` of ADD", "", kills},
		{"RoCE type of service in the pod, and the host's own after DEL.", "tos", oneMode},
		{"Traffic class. Only NVIDIA's driver has it.", "", "NVIDIA's own driver: set rdma.trafficClass, and compare /sys/class/infiniband/DEVICE/tc/1/traffic_class"},
		{"A driver that cannot move is an error with the remedy.", "", "a driver that cannot move its devices: look at its line of the step pod-add in exclusive mode"},
		{"The driver is reloaded while a pod has the device.", "reload exclusive", disrupt + ", in exclusive mode"},
		{"The interface of another macvlan plugin: its GID is found.", "", adopted},
		{"The same in exclusive mode: the device moves and moves back.", "", adopted},
		{"A VF that host-device gives to a pod by its PCI address", "", adopted},
	}
}

const (
	mutate   = "a run with --mutate"
	disrupt  = "a run with --mutate and --disrupt"
	withPeer = "a run with --mutate and --peer, and the programs perftest and rping on both nodes"
)

// Rows returns what answers say about each row of the table in docs/tested.md. A row is
// ok if all of its steps have answers that are ok, and no other answers.
func Rows(answers []Answer) []Row {
	var out []Row
	for _, r := range table() {
		row := Row{Behaviour: r[0], Verdict: report.CannotTell, By: strings.Fields(r[1])}
		if len(row.By) > 0 {
			row.Verdict = together(answers, row.By)
		}
		needs, always := strings.CutPrefix(r[2], "and ")
		if always && row.Verdict == report.OK {
			row.Verdict = report.CannotTell
		}
		if row.Verdict == report.CannotTell {
			row.Needs = needs
		}
		out = append(out, row)
	}
	return out
}

// together joins the answers of steps: the worst counts.
func together(answers []Answer, steps []string) report.Verdict {
	out := report.OK
	for _, step := range steps {
		said := false
		for _, a := range answers {
			if a.Check != step {
				continue
			}
			said = true
			if a.Verdict == report.Problem || out == report.OK {
				out = a.Verdict
			}
		}
		if !said && out == report.OK {
			out = report.CannotTell
		}
	}
	return out
}

// Usual says that every file of roce-hwtest can have this name as a word of its own, such as
// "ok" and "ports", or as a part of a number or an address. If it were replaced, the file
// could not be replayed.
func Usual(name string) bool { return redact.Usual(name, words()) }

// words are the texts that do not come from the node.
func words() string {
	var b strings.Builder
	for _, s := range slices.Concat(Steps(), Changing(), Disrupting(), Between()) {
		fmt.Fprintln(&b, s.Name, s.Asks, s.Expect)
	}
	for _, r := range table() {
		fmt.Fprintln(&b, r)
	}
	for _, v := range []report.Verdict{report.OK, report.Problem, report.CannotTell} {
		fmt.Fprintln(&b, v)
	}
	// The keys of JSON, also of fields that can be missing.
	rail := 0
	port := nic.Details{
		Rail: &rail, NUMA: &rail, Netdev: "x", PCI: "x", Speed: 1, MTU: 1, Bond: "x", Slaves: []string{"x"}, VendorID: "x", DeviceID: "x",
		Driver: nic.Driver{Name: "x", Version: "x", Firmware: "x"}, GPUs: []nic.GPU{{}},
	}
	finding := report.Answer{Check: "x", Why: "x", Finding: report.Finding{Of: "x", Found: "x", Fix: "x", Missing: "x"}}
	keys, err := json.Marshal(Results{
		Stack: Stack{OFED: "x"}, Stopped: "x", Ports: []nic.Details{port}, Drivers: []LinkDriver{{}},
		Answers: []Answer{{Answer: finding}}, Rows: []Row{{By: []string{"x"}, Needs: "x"}}, Doctor: []report.Answer{finding},
	})
	if err != nil {
		panic("hwtest: results are no JSON: " + err.Error())
	}
	return b.String() + string(keys) + recording.Words()
}
