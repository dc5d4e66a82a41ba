// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package stickytest has a store of RailLeases in memory, with the faults of an API
// server, and the suite of behaviours that every store must show.
//
// It injects only the faults that a test requests, and draws no random numbers itself.
// It stands beside sticky, for its tests and for those of other stores, as blocktest
// does beside block. Read this file first.
package stickytest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/block/nodefile"
	"github.com/roce-cni/roce-cni/pkg/block/sticky"
)

// Update is a method of a store beside those of blocktest.
const Update blocktest.Op = "update"

// Mem is a store in memory. It is for any number of goroutines.
type Mem struct {
	blocktest.Faulty
	// Now is the store's clock; nil: it counts writes.
	Now func() time.Time

	leases map[string]sticky.Lease
	serial int
}

var _ sticky.Store = (*Mem)(nil)

// NewMem returns an empty store.
func NewMem() *Mem { return &Mem{leases: map[string]sticky.Lease{}} }

// Snapshot returns a copy of all leases, as a backup of etcd has them.
func (m *Mem) Snapshot() (out []sticky.Lease) {
	m.Alone(func() { out = m.matching(sticky.Query{}) })
	return out
}

// Restore makes the leases those of a backup. What was Late is lost.
func (m *Mem) Restore(backup []sticky.Lease) {
	m.Reset(func() {
		clear(m.leases)
		for _, l := range backup {
			m.leases[l.Name] = l
		}
	})
}

// put keeps a lease with a new version.
func (m *Mem) put(l sticky.Lease) sticky.Lease {
	m.serial++
	l.ResourceVersion = strconv.Itoa(m.serial)
	m.leases[l.Name] = l
	return l
}

// Create is sticky.Store's.
func (m *Mem) Create(ctx context.Context, l sticky.Lease) (sticky.Lease, error) {
	return blocktest.Call(ctx, &m.Faulty, blocktest.Create, l.Name, func() (sticky.Lease, error) {
		if _, there := m.leases[l.Name]; there {
			return sticky.Lease{}, block.ErrExists
		}
		made := l
		made.UID = fmt.Sprintf("uid-%d", m.serial+1)
		made.Created = time.Unix(int64(m.serial), 0).UTC()
		if m.Now != nil {
			made.Created = m.Now().UTC()
		}
		return m.put(made), nil
	})
}

// Get is sticky.Store's.
func (m *Mem) Get(ctx context.Context, name string) (sticky.Lease, error) {
	return blocktest.Call(ctx, &m.Faulty, blocktest.Get, name, func() (sticky.Lease, error) {
		l, there := m.leases[name]
		if !there {
			return sticky.Lease{}, block.ErrNotFound
		}
		return l, nil
	})
}

// List is sticky.Store's.
func (m *Mem) List(ctx context.Context, q sticky.Query) ([]sticky.Lease, error) {
	return blocktest.Call(ctx, &m.Faulty, blocktest.List, q.Pool, func() ([]sticky.Lease, error) { return m.matching(q), nil })
}

func (m *Mem) matching(q sticky.Query) []sticky.Lease {
	var out []sticky.Lease
	for _, l := range m.leases {
		ofPool := q.Pool == "" || l.Spec.Pool == q.Pool
		ofKey := q.Key == (nodefile.Key{}) || l.Spec.Key() == q.Key
		ofNode := q.Node == "" || l.Spec.Holder.NodeName == q.Node
		if ofPool && ofKey && ofNode {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b sticky.Lease) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// meant returns the lease of a name if it has this UID and version.
func (m *Mem) meant(name, uid, version string) (sticky.Lease, error) {
	there, ok := m.leases[name]
	if !ok {
		return sticky.Lease{}, block.ErrNotFound
	}
	if there.UID != uid || there.ResourceVersion != version {
		return sticky.Lease{}, block.ErrConflict
	}
	return there, nil
}

// Update is sticky.Store's. As with the API server, a write that changes nothing
// is none.
func (m *Mem) Update(ctx context.Context, l sticky.Lease) (sticky.Lease, error) {
	return blocktest.Call(ctx, &m.Faulty, Update, l.Name, func() (sticky.Lease, error) {
		there, err := m.meant(l.Name, l.UID, l.ResourceVersion)
		if err != nil {
			return sticky.Lease{}, err
		}
		out := there
		out.Spec.Holder, out.Spec.Written = l.Spec.Holder, l.Spec.Written
		if out != there {
			out = m.put(out)
		}
		return out, nil
	})
}

// Delete is sticky.Store's.
func (m *Mem) Delete(ctx context.Context, name, uid, resourceVersion string) error {
	_, err := blocktest.Call(ctx, &m.Faulty, blocktest.Delete, name, func() (sticky.Lease, error) {
		there, err := m.meant(name, uid, resourceVersion)
		if err == nil {
			delete(m.leases, name)
		}
		return there, err
	})
	return err
}
