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
	"time"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
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
	// RoutingOnly limits Lost and Repair to what only steers packets (plan.Op.Routing).
	RoutingOnly bool
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

// Machine is the kernel, the wire and the RDMA subsystem of a node.
type Machine interface {
	// Open opens the kernel at the host and at a pod's namespace. Its errors are those of
	// kernel.Open.
	Open(netns string) (Kernel, error)
	// OpenHost opens the kernel at the host alone. Its errors are those of
	// kernel.OpenHost.
	OpenHost() (Kernel, error)
	// MakeNetns makes a network namespace at a path, unless it is there. RemoveNetns removes
	// it with all that is in it.
	MakeNetns(path string) error
	RemoveNetns(path string) error
	// Facts reads the facts of the host alone. Its errors are those of kernel.HostFacts.
	Facts(ctx context.Context, req conf.Request) ([]plan.RailFacts, error)
	// Wire returns the executor of the operations that ask or tell the wire.
	Wire(k Kernel) plan.Single
	// RDMA returns the RDMA subsystem, which opens nothing before it is used. netns is
	// the path of the pod's namespace. enter runs a function in that namespace; it is nil
	// if there is none.
	RDMA(netns string, enter func(fn func() error) error) RDMA
}
