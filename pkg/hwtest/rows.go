// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"strings"

	"github.com/roce-cni/roce-cni/pkg/doctor"
)

// Row is a behaviour of the table in docs/rdma.md, and what a run says about it.
type Row struct {
	Behaviour string         `json:"behaviour"`
	Verdict   doctor.Verdict `json:"verdict"`
	// By are the steps that tell. Needs is what is needed where no step does.
	By    []string `json:"by,omitempty"`
	Needs string   `json:"needs,omitempty"`
}

const (
	byHand     = "a test by hand, as docs/rdma.md has it"
	faultyPods = "faults that the kit does not make on the nodes of others: the tests in virtual machines make them"
)

// table has the rows of docs/rdma.md in their order: the steps, with blanks between
// them, or after "-" what is needed.
func table() [][2]string {
	return [][2]string{
		{"Eight pods of one NIC, IPv4 and IPv6: each pod finds its own GIDs and indexes.", "pod-add pod-views pod-env"},
		{"Several rails: the GID index is aligned, also for eight pods.", "rails"},
		{"`rdma.gidIndex` `equal`, with host addresses on some rails, while pods come and go.", "rails"},
		{"`rdma.gidIndex` with a number: the same for different histories; error 108 for a second pod.", "-" + byHand},
		{"`kill -9` of ADD between temporary addresses: DEL and the next ADD leave none.", "-" + faultyPods},
		{"`rdma.gidIndex` in exclusive mode.", "rails exclusive"},
		{"A full table is an error that leaves nothing, or a warning with `\"gid\": \"warn\"`.", "-" + faultyPods},
		{"A table that another namespace filled: `is full`, or `may be full` with ofed-view.", "-" + faultyPods},
		{"ADD waits for a GID that appears late, and reports one that does not appear.", "gid-time"},
		{"RoCE v1 entries are not used as v2.", "host-gids pod-views"},
		{"CHECK finds a port that is down, and a moved index.", "-" + faultyPods},
		{"CHECK finds an address that the host has, too.", "-" + faultyPods},
		{"CHECK finds an address that another pod has, too.", "-" + faultyPods},
		{"The driver is reloaded: the device is the same.", "-" + byHand},
		{"The device below a VLAN, a bond, and a VLAN on a bond.", "-" + byHand},
		{"An alternative name of the NIC; no device; several candidates.", "discovery"},
		{"A bond fails over: CHECK reports the old and the new index.", "-" + byHand},
		{"Each port of a device belongs to its NIC.", "hardware discovery"},
		{"A port without a GID table is refused before ADD leases an address. Other ports work.", "ports pod-add"},
		{"The device by its PCI address; SR-IOV.", "hardware"},
		{"Scalable functions.", "-a scalable function, and " + byHand},
		{"Selectors ask for physical or virtual functions.", "-" + byHand},
		{"A VF with the spoof check on, not trusted, is refused before ADD leases an address, in the host and in the pod.", "-" + byHand},
		{"Children of two VFs reach each other (ping) after the command of the hint.", "-two VFs, and " + byHand},
		{"InfiniBand ports are refused.", "ports"},
		{"Representors match no selector.", "-" + byHand},
		{"`rocectl env` and `rocectl gids`, in a pod and on the node.", "pod-env"},
		{"`network-status` has the device", "-a cluster"},
		{"Pod to pod on two nodes and on one: `ib_write_bw`, `rping`", "peer-reach peer-mtu peer-rdma"},
		{"The same with `ib_write_bw` on two nodes, after a move.", "exclusive peer-rdma"},
		{"`rdma.mode` that contradicts the node is refused.", "-" + byHand},
		{"Move into the pod, verify there, move back at DEL.", "exclusive pod-del"},
		{"Move back after the pod renamed the device.", "-" + faultyPods},
		{"Move back while another device has the name.", "-" + faultyPods},
		{"DEL waits for the device of a namespace that is gone.", "-" + faultyPods},
		{"A process keeps the namespace: DEL names it.", "-" + faultyPods},
		{"Move back while a program has the device open.", "-" + byHand},
		{"A late DEL leaves the device to the next pod.", "-" + faultyPods},
		{"A pod gave the device to another namespace.", "-" + faultyPods},
		{"Move back after `kill -9` of ADD", "-" + faultyPods},
		{"RoCE type of service in the pod, and the host's own after DEL.", "-" + byHand},
		{"Traffic class. Only NVIDIA's driver has it.", "-" + byHand},
		{"A driver that cannot move is an error with the remedy.", "exclusive pod-add"},
		{"The driver is reloaded while a pod has the device.", "-" + byHand},
		{"The interface of another macvlan plugin: its GID is found.", "-" + byHand},
		{"The same in exclusive mode: the device moves and moves back.", "-" + byHand},
	}
}

// Rows returns what answers say about each row of the table in docs/rdma.md. A row is
// ok if all of its steps have answers that are ok, and no other answers.
func Rows(answers []Answer) []Row {
	var out []Row
	for _, r := range table() {
		row := Row{Behaviour: r[0], Verdict: doctor.CannotTell}
		needs, none := strings.CutPrefix(r[1], "-")
		if none {
			row.Needs = needs
		} else {
			row.By = strings.Fields(r[1])
			row.Verdict = together(answers, row.By)
		}
		out = append(out, row)
	}
	return out
}

// together joins the answers of steps: the worst counts.
func together(answers []Answer, steps []string) doctor.Verdict {
	out := doctor.OK
	for _, step := range steps {
		said := false
		for _, a := range answers {
			if a.Check != step {
				continue
			}
			said = true
			if a.Verdict == doctor.Problem || out == doctor.OK {
				out = a.Verdict
			}
		}
		if !said && out == doctor.OK {
			out = doctor.CannotTell
		}
	}
	return out
}
