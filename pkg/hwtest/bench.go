// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Bench runs the steps that make pods and move devices. All that it makes is on record
// in a state folder of its own before it is made, so that Clean finds it also after the
// program was killed.
type Bench struct {
	Node     Node
	Attach   attach.Node // with Records in StateDir
	StateDir string
	Netns    string // the folder of namespaces, /run/netns
	// Second says that this is the second of two nodes, which uses other addresses.
	Second bool
	// Disrupt are the names of the steps of Disrupting that may run.
	Disrupt []string
	// Tell gets each answer as soon as it is known.
	Tell func(Answer)
}

// name begins the names of everything that the bench makes.
const name = "roce-hwtest"

// podLink is the interface of each pod.
const podLink = "net1"

// StateDir is the state folder of the bench, apart from that of the node.
const StateDir = "/run/" + name

// Changing returns the steps of a Bench. They have no look: the Bench does them. Some
// have no answer on a node that does not have what they need.
func Changing() []Step {
	return []Step{
		{Name: "pod-add", Asks: "does ADD give pods interfaces with GIDs, and does CHECK agree?", Expect: "two pods of a NIC (one in exclusive mode) have IPv4 and IPv6 with one RoCE v2 entry each, and CHECK finds nothing"},
		{Name: "pod-views", Asks: "which entries of the GID table does a pod see, and which the host?", Expect: "the kernel's own drivers show all entries to all, NVIDIA's shows each namespace its own; a pod always sees its own"},
		{Name: "pod-env", Asks: "does rocectl env find the index that ADD found?", Expect: "device, port and index are those of the record"},
		{Name: "pod-reach", Asks: "do two pods of one NIC reach each other?", Expect: "ARP and UDP pass between two macvlan children of one NIC, with the full MTU"},
		{Name: "pod-rdma", Asks: "does RDMA transfer between two pods of one NIC (ib_write_bw, ib_send_lat, rping)?", Expect: "the NIC delivers RoCE frames from one macvlan child to the MAC of another one"},
		{Name: "raw-qp", Asks: "where has the hardware's own queue pair its GID index (RDMA_NLDEV_CMD_RES_QP_GET_RAW)?", Expect: "one byte has the index of each of two queue pairs, as src_addr_index of mlx5 does, or the driver does not offer it"},
		{Name: "check", Asks: "does CHECK find an address that another pod has too, and a moved index?", Expect: "CHECK names both entries, and the old and the new index"},
		{Name: "gid-query", Asks: "do programs get the GID table that sysfs has (UVERBS_METHOD_QUERY_GID_TABLE)?", Expect: "the same entries and types in one call, index by index, and in sysfs, with the number of the interface in its own namespace, also when an address has come and gone"},
		{Name: "gid-time", Asks: "how long does the NIC take for an entry, and for its end?", Expect: "each of 100 addresses has its entry within rdma.gidWait, 10 s by default, and loses it within that time"},
		{Name: "gid-time-job", Asks: "how long does it take while a program transfers (ib_write_bw)?", Expect: "the same as of gid-time, and the transfer does not end"},
		{Name: "gid-events", Asks: "what is a program told that has the device open while pods come and go?", Expect: "one event GID_CHANGE for each entry that comes, fillers of rdma.gidIndex among them, at most one for each that goes, and nothing else"},
		{Name: "gid-room", Asks: "does the GID table take as many entries as it has places?", Expect: "each address has entries until 8 places are free, or 256 addresses are set"},
		{Name: "gid-number", Asks: "can a pod have a chosen GID index?", Expect: "with a number as rdma.gidIndex the address has this index, and a second pod gets error 108"},
		{Name: "exclusive", Asks: "does the device move into a pod and come home?", Expect: "in exclusive mode the pod alone has the device, its device file keeps its number, and after DEL the host has it under its name"},
		{Name: "home-renamed", Asks: "does a device come home that the pod renamed?", Expect: "after DEL the host has the device under its own name"},
		{Name: "home-gone", Asks: "does a device come home when the namespace ends before DEL?", Expect: "DEL waits for it, and the host has it under its name"},
		{Name: "home-open", Asks: "does a device come home that a program has open?", Expect: "DEL moves it, and the program's file is dead"},
		{Name: "home-kept", Asks: "does DEL bring the device home from a namespace that a process keeps?", Expect: "DEL succeeds, and the device is in the host"},
		{Name: "home-late", Asks: "does a late DEL leave the device to the next pod?", Expect: "DEL of the first pod succeeds, and the second keeps the device"},
		{Name: "tos", Asks: "does a pod get its RoCE type of service, and the host its own?", Expect: "CHECK finds rdma.tos in the pod, and after DEL the host has its own value"},
		{Name: "vf-reach", Asks: "do pods on two virtual functions of one NIC reach each other?", Expect: "ARP and UDP pass between children of VFs that may send their frames"},
		{Name: "nccl", Asks: "does NCCL use the device that rocectl env names?", Expect: "all_reduce_perf in the pod says NET/IB with this device and port"},
		{Name: "rails", Asks: "can all NICs give a pod the same GID index?", Expect: "one pod on all NICs with rdma.gidIndex equal has one index"},
		{Name: "pod-del", Asks: "is everything gone after DEL?", Expect: "no entry, record or lease is left, and the device is in the host under its name"},
	}
}

// Disrupting returns the steps that disturb other programs on the NIC. They run if
// Bench.Disrupt has their names.
func Disrupting() []Step {
	return []Step{
		{Name: "gid-full", Asks: "what does ADD say when the GID table is full?", Expect: "error 108 that says so, and nothing is left"},
		{Name: "failover", Asks: "what does a failover of an active-backup bond do to the entries of a pod?", Expect: "they are there again within rdma.gidWait, and CHECK reports each index that changed"},
		{Name: "reload", Asks: "what does a reload of the driver do to pods, with a hole in the GID table (devlink dev reload)?", Expect: "the device comes back under its name and GUID, CHECK reports what is lost and each index that changed, and DEL succeeds"},
	}
}

// say tells findings of a step.
func (b Bench) say(step string, findings ...report.Finding) {
	for _, s := range slices.Concat(Changing(), Disrupting(), Between()) {
		if s.Name != step {
			continue
		}
		for _, f := range findings {
			b.Tell(s.answer(f))
		}
	}
}

// pod is a namespace with an attachment.
type pod struct {
	Bench
	path  string
	req   conf.Request
	rec   record.Record
	ports []nic.Port   // of its rails
	more  []netip.Addr // that a step has set
}

// first is the first of the 91 host numbers that the pods of this node use.
func (b Bench) first() int {
	if b.Second {
		return 110
	}
	return 10
}

// subnets are those for benchmarks, which no network uses (RFC 2544, RFC 5180).
func (b Bench) subnets(rail int) []any {
	first := b.first()
	text := func(format string, a ...any) map[string]any {
		subnet, ranges, _ := strings.Cut(fmt.Sprintf(format, a...), " ")
		return map[string]any{"subnet": subnet, "ranges": []any{ranges}}
	}
	return []any{
		text("198.18.%[1]d.0/24 198.18.%[1]d.%[2]d-198.18.%[1]d.%[3]d", rail, first, first+90),
		text("2001:2:0:%[1]x::/64 2001:2:0:%[1]x::%[2]x-2001:2:0:%[1]x::%[3]x", rail, first, first+90),
	}
}

// pod makes a namespace and the request for an attachment to the NICs of ports, the
// first of which is the rail of that number.
func (b Bench) pod(id string, rail int, ports []nic.Port, rdma map[string]any) (*pod, error) {
	p := &pod{Bench: b, path: filepath.Join(b.Netns, name+"-"+id), ports: ports}
	subnets := b.subnets(rail)
	c := map[string]any{
		"cniVersion": "1.1.0", "name": fmt.Sprintf("%s-%d", name, rail), "type": "roce",
	}
	if len(ports) == 1 {
		c["master"] = ports[0].NIC.Name
	} else {
		var rails []any
		for _, o := range ports {
			rails = append(rails, map[string]any{"master": o.NIC.Name})
		}
		c["name"], c["rails"] = name+"-all", rails
		first := b.first()
		subnets = []any{map[string]any{"subnet": "198.19.{rail}.0/24", "ranges": []any{fmt.Sprintf("198.19.{rail}.%d-198.19.{rail}.%d", first, first+90)}}}
	}
	if rdma != nil {
		c["rdma"] = rdma
	}
	c["ipam"] = map[string]any{"type": conf.PoolType, "quarantine": "0s", "subnets": subnets}
	stdin, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(b.Netns, 0o755); err != nil { //nolint:gosec // as ip-netns(8) makes it
		return nil, err
	}
	if err := netns.Make(p.path); err != nil {
		return nil, err
	}
	p.req, err = conf.Parse(conf.Input{Command: "ADD", ContainerID: name + "-" + id, Netns: p.path, IfName: podLink, Stdin: stdin})
	return p, err
}

// add does ADD and CHECK.
func (p *pod) add(ctx context.Context) error {
	if _, err := p.Attach.Add(ctx, p.req); err != nil {
		return fmt.Errorf("ADD: %w", err)
	}
	var err error
	if p.rec, err = p.Attach.Records.Load(p.req.Attachment); err != nil {
		return err
	}
	if err := p.Attach.Check(ctx, p.req); err != nil {
		return fmt.Errorf("CHECK: %w", err)
	}
	return nil
}

// remove does DEL and removes the namespace.
func (p *pod) remove(ctx context.Context) error {
	return errors.Join(p.Attach.Del(ctx, conf.DelOf(p.req)), netns.Remove(p.path))
}

// indexes returns the GID indexes that ADD found.
func (p *pod) indexes() map[netip.Addr]int {
	out := map[netip.Addr]int{}
	for g := range plan.All[plan.GID](p.rec.Plan.Ops) {
		for _, t := range g.Targets {
			if t.Index != nil {
				out[t.Addr] = *t.Index
			}
		}
	}
	return out
}

// subsystem returns the RDMA subsystem as the pod's ADD has it. The caller must call
// end.
func (p *pod) subsystem() (s *rdma.Subsystem, end func(), err error) {
	k, err := kernel.Open(p.path, p.Node.Sys)
	if err != nil {
		return nil, nil, err
	}
	s = rdma.New(rdma.Config{Sys: p.Node.Sys, Enter: k.Enter, Netns: filepath.Base(p.path), Log: p.Attach.Log})
	return s, func() { s.Close(); k.Close() }, nil
}

// Left returns the namespaces that a run has now, or that a killed run has left. They may
// have RDMA devices of the node.
func Left() []string {
	left, _ := filepath.Glob("/run/netns/" + name + "-*") // the pattern is correct
	return left
}

// Clean removes everything that this or an earlier run of the bench has left.
func (b Bench) Clean(ctx context.Context) error {
	errs := []error{b.restoreSlaves()}
	for rec, err := range b.Attach.Records.All() {
		if err == nil {
			err = b.Attach.Del(ctx, conf.Del{Network: rec.Network, Attachment: rec.Attachment, Netns: rec.Netns, IPAM: conf.PoolType})
		}
		errs = append(errs, err)
	}
	left, err := filepath.Glob(filepath.Join(b.Netns, name+"-*"))
	errs = append(errs, err)
	for _, path := range left {
		errs = append(errs, netns.Remove(path))
	}
	if err := errors.Join(errs...); err != nil {
		return err // the records are still needed
	}
	if err := os.RemoveAll(b.StateDir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
