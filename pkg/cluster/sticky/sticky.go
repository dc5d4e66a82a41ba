// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package sticky decides which host index of a pool is reserved for a pod. A pod that
// comes back under its namespace, name and interface gets the same addresses, on any
// node of the rack.
//
// It never lets two nodes hold a host index, keeps no state between two calls, and
// never waits: the caller asks again after a temporary error. It runs in rocectl's
// agent and reaper, never in a plugin, and uses package block. The store is a
// parameter. Read this file first, then take.go for how a node takes and releases a
// host index, reap.go for what happens when the pod does not come back, and absent.go
// for nodes that hold host indexes of pods that they do not run.
package sticky

import (
	"context"
	"fmt"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// Lease is a RailLease: cluster-scoped. It says for which pod a slot is reserved, and
// which node may use it now. Other nodes must not use it.
type Lease struct {
	// Name is that of block.Slots.Name. One slot has one lease, because a name is
	// unique on the API server.
	Name string
	// UID distinguishes two leases with the same name. The store makes it.
	UID string
	// ResourceVersion changes whenever the lease is written. The store makes it.
	ResourceVersion string
	// Created is the time of creation, by the store's clock.
	Created time.Time
	Spec    Spec
}

// Spec is the content of a lease. Only Keep, Holder and Written ever change.
type Spec struct {
	Pool string `json:"pool"`
	Rack string `json:"rack,omitempty"`
	Slot int    `json:"slot"`

	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Interface string `json:"interface"`

	// Keep says that the slot is reserved for the pod for ever. An operator sets it.
	Keep bool `json:"keep,omitempty"`
	// Holder is the node that uses the slot. The zero value: no node uses it.
	Holder Holder `json:"holder,omitzero"`
	// Written is the time of the last write of Holder, by the writer's clock. The
	// write may leave Holder the same. Without a Holder, the slot is free since then.
	// With a Holder, it is the last sign of the holder. No two writes are the same,
	// so each changes ResourceVersion.
	Written time.Time `json:"written,omitzero"`
}

// Holder is a node, as in block.Spec.
type Holder struct {
	NodeName  string `json:"nodeName"`
	MachineID string `json:"machineID"`
}

// Key returns the pod and interface that the slot is reserved for.
func (s Spec) Key() nodefile.Key {
	return nodefile.Key{Namespace: s.Namespace, Pod: s.Pod, Interface: s.Interface}
}

// Store keeps the leases of a cluster. stickytest.Suite tests its contract. Its
// errors and its deadline are those of block.Store: block.ErrExists, ErrNotFound,
// ErrConflict, ErrUnknown, *block.BusyError, *cnierr.Error.
type Store interface {
	// Create makes the lease of that name, unless there is one. If several nodes try,
	// only one succeeds. Create returns the stored lease. ErrExists.
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

// Query selects the leases of a List. The zero value selects all leases.
type Query struct {
	Pool string
	Rack string       // "": in all racks
	Key  nodefile.Key // zero: for all pods
	Node string       // only leases with this Holder.NodeName
}

// HeldError says that another node holds the slot: it uses the slot, or has not
// released it yet.
type HeldError struct{ Lease Lease }

// Error names both.
func (e *HeldError) Error() string {
	return fmt.Sprintf("node %q holds %s", e.Lease.Spec.Holder.NodeName, e.Lease.Name)
}

// NoneError says that the pool has no slot for a pod, and that another request soon
// does not help.
type NoneError struct{ Why string }

// Error says why.
func (e *NoneError) Error() string { return e.Why }

// misnamed says whether the name of a lease is not the one of its slot. Such a lease
// reserves nothing: no pod gets it, and the reaper deletes it.
func (l Lease) misnamed() bool {
	return l.Name != block.Slots{Pool: l.Spec.Pool, Rack: l.Spec.Rack}.Name(l.Spec.Slot)
}

// holder returns a node as the holder of a lease.
func holder(n block.Node) Holder { return Holder{NodeName: n.Name, MachineID: n.MachineID} }
