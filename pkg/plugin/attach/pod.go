// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"net/netip"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
)

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

// RDMA is the RDMA subsystem as one host and one pod see it. *rdma.Subsystem
// is one.
type RDMA interface {
	plan.Single
	// Facts finds the RDMA device behind a parent. The parent is in the pod's
	// namespace if inPod is true. Facts fails when an ADD is already known to fail.
	Facts(ctx context.Context, want conf.RDMA, parent plan.Link, inPod bool) (plan.RDMA, error)
	// Mode fails when a request contradicts how the node shares its devices.
	Mode(ctx context.Context, want conf.RDMAMode) error
	// Located returns the GID indexes of the GIDs that Do waited for.
	Located() map[netip.Addr]int
	// Place waits for the entries of addresses that were set, and for the end of those
	// that were removed. It returns GID indexes.
	Place(ctx context.Context, r plan.AlignRail, set, unset []netip.Addr) (map[netip.Addr]int, error)
	// LookBefore notes which entries there are for addresses that set is about to set.
	// all are the operations of the attachment. Has says whether an entry is that of an
	// interface of the pod.
	LookBefore(all, set plan.Ops) error
	Has(link conf.LinkName, e rdma.Entry) bool
	// Before returns the entries with an index below limit that a namespace sees, and
	// how long that part of the table is.
	Before(reader rdma.Side, d plan.RDMADevice, limit int) ([]rdma.Entry, int, error)
	// Close closes the sockets.
	Close()
}

// pod is where an attachment is made: the kernel, the wire and the RDMA subsystem of
// one host and one pod. It sends each run of operations to the one of them that does
// their kind.
type pod struct {
	Kernel
	wire plan.Single
	rdma RDMA
	// owner returns who has an address on this node, "" if it is unknown.
	owner func(netip.Addr) string
}

// open opens a pod's namespace. The caller must Close it. Errors are those of
// n.Open.
func (n Node) open(netns string) (*pod, error) {
	k, err := n.Open(netns)
	if err != nil {
		return nil, err
	}
	return &pod{Kernel: k, wire: n.Wire(k), rdma: n.RDMA(netns, k.Enter), owner: n.owner}, nil
}

// openHost opens the host alone. The caller must Close it. Errors are those of n.OpenHost.
func (n Node) openHost() (*pod, error) {
	k, err := n.OpenHost()
	if err != nil {
		return nil, err
	}
	return &pod{Kernel: k, wire: n.Wire(k), rdma: n.RDMA("", nil)}, nil
}

func (p *pod) of(op plan.Op) plan.Executor {
	switch op.By() {
	case plan.ByWire:
		return plan.Each(p.wire)
	case plan.ByRDMA:
		return plan.Each(p.rdma)
	case plan.ByAligner:
		return plan.Each(aligner{p})
	}
	return p.Kernel
}

// Do implements plan.Executor.
func (p *pod) Do(ctx context.Context, run ...plan.Op) error { return p.of(run[0]).Do(ctx, run...) }

// Undo implements plan.Executor.
func (p *pod) Undo(ctx context.Context, run ...plan.Op) error {
	return p.of(run[0]).Undo(ctx, run...)
}

// Check implements plan.Executor.
func (p *pod) Check(ctx context.Context, run ...plan.Op) error {
	return p.of(run[0]).Check(ctx, run...)
}

// Close closes everything.
func (p *pod) Close() {
	if wire, ok := p.wire.(interface{ Close() }); ok { // a wire that holds nothing has no Close
		wire.Close()
	}
	p.rdma.Close()
	p.Kernel.Close()
}
