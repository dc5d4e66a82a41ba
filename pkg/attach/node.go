// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package attach is the CNI verbs. It is the only package that knows the order
// in which an attachment is made and taken away.
//
// It never talks to the kernel, the wire or the disk itself: kernel, probe,
// record and a Leaser do. Read add.go first: it is the straight line from a
// request to a pod's network.
package attach

import (
	"context"
	"log/slog"
	"time"

	"github.com/roce-cni/roce-cni/pkg/apply"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/delegate"
	"github.com/roce-cni/roce-cni/pkg/plan"
	"github.com/roce-cni/roce-cni/pkg/record"
	"github.com/roce-cni/roce-cni/pkg/result"
)

// Node is the node on which attachments are made, as the verbs see it.
type Node struct {
	// ID is the node's identity: any string that no other node has.
	ID string
	// Open opens the kernel at the host and at a pod's namespace. Its errors
	// are those of kernel.Open.
	Open func(netns string) (Kernel, error)
	// Wire returns the executor of the operations that ask or tell the wire.
	Wire func(Kernel) apply.Single
	// RDMA returns the RDMA subsystem; enter runs a function in the pod's
	// namespace, which is at netns, and is nil when there is none. It opens
	// nothing before it is used.
	RDMA func(netns string, enter func(fn func() error) error) RDMA
	// Host reads the facts of the host alone. Its errors are those of
	// kernel.HostFacts.
	Host func(ctx context.Context, req conf.Request) (facts []plan.Facts, faults []error, err error)
	// Pools leases from the node's own address pools.
	Pools Pools
	// Delegate leases from other IPAM plugins.
	Delegate delegate.Plugins
	// Now returns CLOCK_BOOTTIME.
	Now func() time.Duration
	// Name is what the tables of ipam.table call the node: its host name.
	Name string
	// ReadFile reads such a table.
	ReadFile func(path string) ([]byte, error)
	// Agent says what the node may lease of RailPools.
	Agent Agent
	// Records remembers what was done.
	Records record.Store
	// Log takes what an operator may want to know about calls that succeed.
	Log *slog.Logger
}

// Leaser gives addresses out and takes them back.
type Leaser interface {
	// NeedsLink says that the interface must be there, up, before Acquire.
	NeedsLink() bool
	// Acquire returns the rails of an attachment with the addresses of each. It
	// is idempotent: the same attachment gets the same addresses until they are
	// released or rejected.
	Acquire(ctx context.Context, req conf.Request, rails []plan.Rail) ([]plan.Rail, error)
	// Reject takes addresses that somebody else answers for away from the
	// attachment, so that the next Acquire returns others. It returns false
	// when there are no others to be had.
	Reject(ctx context.Context, req conf.Request, rails []plan.Rail, taken []plan.Target) (bool, error)
	// Release takes all addresses of a recorded attachment back; none is
	// success. Of a record that is lost only container, interface and
	// namespace are known.
	Release(ctx context.Context, rec record.Record) error
}

// leaser returns the leaser for an ipam.type.
func (n Node) leaser(ipamType string) Leaser {
	switch ipamType {
	case "":
		return nobody{}
	case conf.PoolType:
		return n.Pools
	}
	return n.Delegate
}

// nobody leases to attachments that want no address, or got theirs from the
// plugins before us.
type nobody struct{}

func (nobody) NeedsLink() bool { return false }

func (nobody) Acquire(_ context.Context, req conf.Request, rails []plan.Rail) ([]plan.Rail, error) {
	if req.Prev == nil {
		return rails, nil
	}
	lent, err := result.Lent(*req.Prev)
	return []plan.Rail{{Request: req, Facts: rails[0].Facts, Lease: lent}}, err
}

func (nobody) Reject(context.Context, conf.Request, []plan.Rail, []plan.Target) (bool, error) {
	return false, nil
}

func (nobody) Release(context.Context, record.Record) error { return nil }
