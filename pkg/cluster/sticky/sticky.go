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
// host index, and reap.go for what happens when the pod does not come back, or runs on
// another node than the one that holds its host index.
package sticky

import (
	"context"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// Lease is a RailLease: cluster-scoped. It says for which pod a slot is reserved, and
// which node may use it now. Other nodes must not use it. Its name is that of
// block.Slots.Name, so one slot has one lease.
type Lease = block.Object[Spec]

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
	Holder block.Owner `json:"holder,omitzero"`
	// Written is the time of the last write of Holder, by the writer's clock. The
	// write may leave Holder the same. Without a Holder, the slot is free since then.
	// With a Holder, it is the last sign of the holder. No two writes are the same,
	// so each changes ResourceVersion.
	Written time.Time `json:"written,omitzero"`
}

// Key returns the pod and interface that the slot is reserved for.
func (s Spec) Key() nodefile.Key {
	return nodefile.Key{Namespace: s.Namespace, Pod: s.Pod, Interface: s.Interface}
}

// Store keeps the leases of a cluster. stickytest.Suite tests its contract.
type Store interface {
	block.Objects[Spec, Query]
	// Update writes Holder and Written of the lease, and nothing else, if it still
	// has this UID and ResourceVersion, and returns it. ErrNotFound; ErrConflict: it
	// has not.
	Update(ctx context.Context, l Lease) (Lease, error)
}

// Query selects the leases of a List. The zero value selects all leases.
type Query struct {
	Pool string
	Rack string       // "": in all racks
	Key  nodefile.Key // zero: for all pods
	Node string       // only leases with this Holder.NodeName
}

// NoneError says that the pool has no slot for a pod, and that another request soon
// does not help.
type NoneError struct{ Why string }

// Error says why.
func (e *NoneError) Error() string { return e.Why }

// misnamed says whether the name of a lease is not the one of its slot. Such a lease
// reserves nothing: no pod gets it, and the reaper deletes it.
func misnamed(l Lease) bool {
	return l.Name != block.Slots{Pool: l.Spec.Pool, Rack: l.Spec.Rack}.Name(l.Spec.Slot)
}
