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
	"github.com/roce-cni/roce-cni/pkg/plan"
	"github.com/roce-cni/roce-cni/pkg/record"
)

// Node is the node on which attachments are made, as the verbs see it.
type Node struct {
	// ID is the node's identity: any string that no other node has.
	ID string
	// Open opens the kernel at the host and at a pod's namespace. Its errors
	// are those of kernel.Open.
	Open func(netns string) (Kernel, error)
	// Wire returns the executor of the operations that ask or tell the wire.
	Wire func(Kernel) apply.Executor
	// RDMA checks that the node can serve the request's RDMA mode.
	RDMA func(conf.RDMA) error
	// Host reads the facts of the host alone. Its errors are those of
	// kernel.HostFacts.
	Host func(ctx context.Context, req conf.Request) (plan.Facts, error)
	// Pools leases from the node's own address pools.
	Pools Pools
	// Delegate leases from other IPAM plugins.
	Delegate Delegate
	// Now returns CLOCK_BOOTTIME.
	Now func() time.Duration
	// Records remembers what was done.
	Records record.Store
	// Log takes what an operator may want to know about calls that succeed.
	Log *slog.Logger
}

// Kernel is one host and one pod's namespace, opened. *kernel.Kernel is one.
type Kernel interface {
	apply.Executor
	// ID tells the pod's namespace from all others.
	ID() plan.NetnsID
	// Facts reads what the plan needs to know, and fails for what can be known
	// to fail: a parent that is missing, down or of the wrong kind.
	Facts(ctx context.Context, req conf.Request) (plan.Facts, error)
	// Enter runs fn in the pod's namespace.
	Enter(fn func() error) error
	// Close lets go of the sockets and the namespace.
	Close()
}

// Leaser gives addresses out and takes them back.
type Leaser interface {
	// NeedsLink says that the interface must be there, up, before Acquire.
	NeedsLink() bool
	// Acquire returns the addresses of an attachment. It is idempotent: the
	// same attachment gets the same addresses until they are released or
	// rejected.
	Acquire(ctx context.Context, req conf.Request, f plan.Facts) (plan.Lease, error)
	// Reject takes addresses that somebody else answers for away from the
	// attachment, so that the next Acquire returns others. It returns false
	// when there are no others to be had.
	Reject(ctx context.Context, req conf.Request, taken []plan.Target) (bool, error)
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

// nobody leases to attachments that want no address.
type nobody struct{}

func (nobody) NeedsLink() bool { return false }

func (nobody) Acquire(context.Context, conf.Request, plan.Facts) (plan.Lease, error) {
	return plan.Lease{}, nil
}

func (nobody) Reject(context.Context, conf.Request, []plan.Target) (bool, error) { return false, nil }

func (nobody) Release(context.Context, record.Record) error { return nil }

// steps sends each operation to the executor that does its kind.
type steps struct{ kernel, wire apply.Executor }

func (n Node) steps(k Kernel) steps { return steps{kernel: k, wire: n.Wire(k)} }

func (s steps) of(op plan.Op) apply.Executor {
	switch op.(type) {
	case plan.Conflict, plan.Gateway, plan.Announce:
		return s.wire
	}
	return s.kernel
}

// Do implements apply.Executor.
func (s steps) Do(ctx context.Context, op plan.Op) error { return s.of(op).Do(ctx, op) }

// Undo implements apply.Executor.
func (s steps) Undo(ctx context.Context, op plan.Op) error { return s.of(op).Undo(ctx, op) }

// Check implements apply.Executor.
func (s steps) Check(ctx context.Context, op plan.Op) error { return s.of(op).Check(ctx, op) }
