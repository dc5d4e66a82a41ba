// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package sticky decides which host index of a pool is reserved for a pod. A pod that
// comes back under its namespace, name and interface gets the same addresses, on any
// node of the rack.
//
// It never lets two nodes hold a host index, keeps no state between two calls, and
// never waits: the caller asks again after a temporary error. It runs in rocectl's
// agent and reaper, never in a plugin, and stands on block. The store is a parameter.
// Read this file first, then take.go for how a node takes and releases a host index,
// and reap.go for what happens when the pod does not come back.
package sticky

import (
	"context"
	"fmt"
	"time"

	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/nodefile"
)

// Lease is a RailLease: cluster-scoped. It says for whom a slot is kept, and which
// node may use it now. Other nodes must not.
type Lease struct {
	// Name is block.Slots.Name's: one slot has one lease, because the API server
	// gives a name once.
	Name string
	// UID tells two leases of one name apart. The store makes it.
	UID string
	// ResourceVersion changes whenever the lease is written. The store makes it.
	ResourceVersion string
	// Created is when, by the store's clock.
	Created time.Time
	Spec    Spec
}

// Spec is what a lease says. Only Keep, Holder and Written ever change.
type Spec struct {
	Pool string `json:"pool"`
	Rack string `json:"rack,omitempty"`
	Slot int    `json:"slot"`

	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Interface string `json:"interface"`

	// Keep is an operator's word that the slot is kept for the pod for ever.
	Keep bool `json:"keep,omitempty"`
	// Holder is the node that uses the slot; the zero one: none does.
	Holder Holder `json:"holder,omitzero"`
	// Written is when Holder was written last, by the writer's clock, also when it
	// stayed the same: since then nobody has it, or so long nothing was heard of it.
	// No two writes are the same, so that each changes ResourceVersion.
	Written time.Time `json:"written,omitzero"`
}

// Holder is a node, as in block.Spec.
type Holder struct {
	NodeName  string `json:"nodeName"`
	MachineID string `json:"machineID"`
}

// Key returns for whom the slot is kept.
func (s Spec) Key() nodefile.Key {
	return nodefile.Key{Namespace: s.Namespace, Pod: s.Pod, Interface: s.Interface}
}

// Store keeps the leases of a cluster. What it promises is what stickytest.Suite
// tests. Its errors and its deadline are those of block.Store: block.ErrExists,
// ErrNotFound, ErrConflict, ErrUnknown, *block.BusyError, *cnierr.Error.
type Store interface {
	// Create makes the lease of that name, unless there is one: of all who try, one
	// succeeds. It returns the lease as it is kept. ErrExists.
	Create(ctx context.Context, l Lease) (Lease, error)
	// Get returns a lease as it was at some time after the call. ErrNotFound.
	Get(ctx context.Context, name string) (Lease, error)
	// List returns the leases that a query matches, in any order, with everything
	// that was written before the call.
	List(ctx context.Context, q Query) ([]Lease, error)
	// Update writes Holder and Written of the lease, and nothing else, if it still
	// has this UID and ResourceVersion, and returns it. ErrNotFound; ErrConflict: it
	// has not.
	Update(ctx context.Context, l Lease) (Lease, error)
	// Delete removes the lease if it still has this UID and ResourceVersion.
	// ErrNotFound; ErrConflict: it has not.
	Delete(ctx context.Context, name, uid, resourceVersion string) error
}

// Query is what a List is about; the zero value: all leases.
type Query struct {
	Pool string
	Key  nodefile.Key // zero: for all pods
	Node string       // whose Holder has this NodeName
}

// HeldError says that another node has the slot: it uses it, or has not given it
// back yet.
type HeldError struct{ Lease Lease }

// Error names both.
func (e *HeldError) Error() string {
	return fmt.Sprintf("node %q holds %s", e.Lease.Spec.Holder.NodeName, e.Lease.Name)
}

// NoneError says that the pool has no slot for a pod, and that asking again soon
// does not help.
type NoneError struct{ Why string }

// Error says why.
func (e *NoneError) Error() string { return e.Why }

// holder returns who a node is to a lease.
func holder(n block.Node) Holder { return Holder{NodeName: n.Name, MachineID: n.MachineID} }
