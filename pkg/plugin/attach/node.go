// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package attach implements the CNI verbs. Only this package knows the order in which
// an attachment is made and removed.
//
// It never uses the kernel, the wire or the disk itself: the packages kernel, probe,
// record and lease do that. Read add.go first: it leads from a request to a pod's
// network.
package attach

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/align"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// Node is the node on which attachments are made, as the verbs see it.
type Node struct {
	// ID is the node's identity: any string that no other node has.
	ID string
	// Machine is what the node runs on.
	Machine Machine
	// Fillers is the path of the network namespace of the node's fillers. RemoveFillers says
	// that it goes with the last attachment that needs them.
	Fillers       string
	RemoveFillers bool
	// AllowParent says whether a NIC of the host may be the parent in an ADD. nil allows
	// every NIC.
	AllowParent func(nic plan.Link) error
	// Services returns the CIDRs of the cluster's Services, for hostLink.routes "auto".
	Services func() ([]netip.Prefix, error)
	// Addresses gives addresses to attachments and takes them back.
	Addresses lease.Allocator
	// Now returns CLOCK_BOOTTIME.
	Now func() time.Duration
	// Records remembers what was done.
	Records record.Store
	// Took is told how long each step of an ADD took: the lease, and each kind of operation.
	// nil: nothing is measured.
	Took func(step string, d time.Duration)
	// Held is told which GID indexes programs of the pod may hold after a DEL. nil: it is not noted.
	Held func(calls.Held)
	// Trace is the trace of the runtime (record.Record.Trace).
	Trace string
	// Log takes what an operator may want to know about calls that succeed.
	Log *slog.Logger
}

// measure begins to measure a step. The function that it returns ends it.
func (n Node) measure(step string) (end func()) {
	if n.Took == nil {
		return func() {}
	}
	began := n.Now()
	return func() { n.Took(step, n.Now()-began) }
}

// Machine is the kernel, the wire and the RDMA subsystem of a node. The functions of
// package kernel have the contracts.
type Machine interface {
	// Open opens the kernel at the host and at a pod's namespace, OpenHost at the host alone.
	Open(netns string) (Kernel, error)
	OpenHost() (Kernel, error)
	// MakeNetns makes a network namespace at a path, unless it is there. RemoveNetns removes
	// it with all that is in it.
	MakeNetns(path string) error
	RemoveNetns(path string) error
	// Facts reads the facts of the host alone (kernel.HostFacts).
	Facts(ctx context.Context, req conf.Request) ([]plan.RailFacts, error)
	// Wire returns the executor of the operations that ask or tell the wire.
	Wire(k Kernel) plan.Single
	// RDMA returns the RDMA subsystem, which opens nothing before it is used. enter runs a
	// function in the pod's namespace, which is at the path netns; nil: there is none.
	RDMA(netns string, enter func(fn func() error) error) RDMA
}

// Kernel is one host and one pod's namespace, opened. *kernel.Kernel is one.
type Kernel interface {
	plan.Executor
	// ID tells the pod's namespace from all others.
	ID() netns.ID
	// Facts reads what the plan needs to know of each interface of the request. A
	// fault says why one interface cannot be made: its parent is missing, down or of
	// the wrong kind. err is about all interfaces.
	Facts(ctx context.Context, req conf.Request) ([]plan.RailFacts, error)
	// Enter runs fn in the pod's namespace, and EnterHost in the host's.
	Enter(fn func() error) error
	EnterHost(fn func() error) error
	// Close closes the sockets and the namespace.
	Close()
}

// RDMA is the RDMA subsystem as one host and one pod see it. *rdma.Subsystem is one, and
// has the contracts.
type RDMA interface {
	plan.Single
	align.Tables
	Facts(ctx context.Context, want conf.RDMA, parent plan.Link, inPod bool) (plan.RDMA, error)
	Mode(ctx context.Context, want conf.RDMAMode) error
	Current(ctx context.Context, recorded plan.Ops) (plan.Ops, error)
	Users(ctx context.Context, recorded plan.Ops, in netns.ID) ([]string, error)
	Located() map[netip.Addr]int
	HasPlace(d plan.RDMADevice) error
	LookBefore(all, set plan.Ops) error
	Close()
}

// Pod is where one attachment is made. It sends each run of operations to the kernel, the
// wire or the RDMA subsystem, and counts the attachments that share one (shared.go).
type Pod struct {
	Kernel
	wire    plan.Single
	RDMA    RDMA
	fillers fillers
	at      conf.Attachment
	records record.Store
	log     *slog.Logger
	measure func(step string) (end func())
	// Renamed has a note for each port of a device that had another name at ADD.
	Renamed []error
	// Remade are the ports of devices that were made again since ADD.
	Remade map[plan.RDMADevice]bool
}

// recognise returns recorded operations with the names that their devices have now. The
// programs of a pod keep a device that is renamed.
func (p *Pod) recognise(ctx context.Context, recorded plan.Ops) (plan.Ops, error) {
	if !slices.ContainsFunc(recorded, sharesDevice) {
		return recorded, nil
	}
	now, err := p.RDMA.Current(ctx, recorded)
	if err != nil {
		return nil, err
	}
	p.Remade = map[plan.RDMADevice]bool{}
	for i, op := range recorded {
		had, _ := op.Kind.(plan.Port)
		has, _ := now[i].Kind.(plan.Port)
		if has.Device.Index != had.Device.Index {
			p.Remade[has.Device] = true
		}
		if has.Device.Name != had.Device.Name {
			p.Renamed = append(p.Renamed, cnierr.New(cnierr.Damaged, "check RDMA device", had.Device.Name, "rocectl env has the new name for programs that start",
				"%w", &kernel.ChangedError{Property: "name", Want: had.Device.Name, Got: has.Device.Name}))
		}
	}
	return now, nil
}

// open opens a pod's namespace for an attachment. The caller must Close it. Errors are
// those of Machine.Open.
func (n Node) open(netns string, at conf.Attachment) (*Pod, error) {
	k, err := n.Machine.Open(netns)
	if err != nil {
		return nil, err
	}
	return n.pod(k, netns, k.Enter, at), nil
}

// openHost opens the host alone for an attachment. The caller must Close it. Errors are
// those of Machine.OpenHost.
func (n Node) openHost(at conf.Attachment) (*Pod, error) {
	k, err := n.Machine.OpenHost()
	if err != nil {
		return nil, err
	}
	return n.pod(k, "", nil, at), nil
}

func (n Node) pod(k Kernel, netns string, enter func(func() error) error, at conf.Attachment) *Pod {
	return &Pod{
		Kernel: k, wire: n.Machine.Wire(k), RDMA: n.Machine.RDMA(netns, enter), fillers: fillers{machine: n.Machine, path: n.Fillers},
		at: at, records: n.Records, log: n.Log, measure: n.measure,
	}
}

func (p *Pod) of(op plan.Op) plan.Executor {
	switch op.By() {
	case plan.ByWire:
		return plan.Each(p.wire)
	case plan.ByRDMA:
		return plan.Each(p.RDMA)
	case plan.ByAligner:
		return plan.Each(align.Aligner{Pod: align.Side{Kernel: p.Kernel, Tables: p.RDMA}, Node: p.fillers.side, Owner: p.owner})
	}
	return p.Kernel
}

// Check implements plan.Executor.
func (p *Pod) Check(ctx context.Context, run ...plan.Op) error {
	return p.of(run[0]).Check(ctx, run...)
}

// Close closes everything.
func (p *Pod) Close() {
	if wire, ok := p.wire.(interface{ Close() }); ok { // a wire that holds nothing has no Close
		wire.Close()
	}
	p.fillers.close()
	p.RDMA.Close()
	p.Kernel.Close()
}

// Owners returns which pod or container has each address on this node. It skips a record
// that cannot be read.
func Owners(records record.Store) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for rec, err := range records.All() {
		if err != nil {
			continue
		}
		for _, a := range rec.Plan.Addresses() {
			out[a.Prefix.Addr()] = rec.Who()
		}
	}
	return out
}

func (p *Pod) owner(addr netip.Addr) string { return Owners(p.records)[addr] }
