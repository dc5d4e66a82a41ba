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

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// Node is the node on which attachments are made, as the verbs see it.
type Node struct {
	// ID is the node's identity: any string that no other node has.
	ID string
	// Open opens the kernel at the host and at a pod's namespace. Its errors
	// are those of kernel.Open.
	Open func(netns string) (Kernel, error)
	// OpenHost opens the kernel at the host alone. Its errors are those of
	// kernel.OpenHost.
	OpenHost func() (Kernel, error)
	// Find returns another path of a namespace that was named by a process, "" if nothing
	// has the namespace any more. nil: no process names namespaces.
	Find func(path string, id netns.ID) string
	// Wire returns the executor of the operations that ask or tell the wire.
	Wire func(Kernel) plan.Single
	// RDMA returns the RDMA subsystem, which opens nothing before it is used. netns
	// is the path of the pod's namespace. enter runs a function in that namespace; it
	// is nil if there is none.
	RDMA func(netns string, enter func(fn func() error) error) RDMA
	// Host reads the facts of the host alone. Its errors are those of
	// kernel.HostFacts.
	Host func(ctx context.Context, req conf.Request) ([]plan.RailFacts, error)
	// Services returns the CIDRs of the cluster's Services, for hostLink.routes "auto".
	Services func() ([]netip.Prefix, error)
	// Addresses gives addresses to attachments and takes them back.
	Addresses lease.Allocator
	// Now returns CLOCK_BOOTTIME.
	Now func() time.Duration
	// Parent says whether a NIC of the host may be the parent in an ADD. nil allows
	// every NIC.
	Parent func(nic plan.Link) error
	// Records remembers what was done.
	Records record.Store
	// Log takes what an operator may want to know about calls that succeed.
	Log *slog.Logger
}

// withServices completes a request with the CIDRs of the cluster's Services, if it is for
// them. It asks no other process.
func (n Node) withServices(req conf.Request) (conf.Request, error) {
	if req.HostLink == nil || !req.HostLink.Auto {
		return req, nil
	}
	cidrs, err := n.Services()
	if err != nil {
		return req, err
	}
	return req.WithServices(cidrs)
}
