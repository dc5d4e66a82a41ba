// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package stickytest has a store of RailLeases in memory, with the faults of an API
// server, and what every store of RailLeases must show beside blocktest's suite.
//
// It injects only the faults that a test requests, and draws no random numbers itself.
// It stands beside sticky, for its tests and for those of other stores. Read this file
// first.
package stickytest

import (
	"context"

	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// Update is a method of a store beside those of blocktest.
const Update blocktest.Op = "update"

// Mem is a store in memory. It is for any number of goroutines.
type Mem struct {
	blocktest.Objects[sticky.Spec]
}

var _ sticky.Store = (*Mem)(nil)

// NewMem returns an empty store.
func NewMem() *Mem { return &Mem{blocktest.NewObjects[sticky.Spec]()} }

// List is sticky.Store's.
func (m *Mem) List(ctx context.Context, q sticky.Query) ([]sticky.Lease, error) {
	return blocktest.Call(ctx, &m.Faulty, blocktest.List, q.Pool, func() ([]sticky.Lease, error) {
		return m.Matching(func(l sticky.Lease) bool {
			return (q.Pool == "" || l.Spec.Pool == q.Pool) && (q.Rack == "" || l.Spec.Rack == q.Rack) && (q.Key == (nodefile.Key{}) || l.Spec.Key() == q.Key) &&
				(q.Node == "" || l.Spec.Holder.NodeName == q.Node)
		}), nil
	})
}

// Update is sticky.Store's. As with the API server, a write that changes nothing
// is none.
func (m *Mem) Update(ctx context.Context, l sticky.Lease) (sticky.Lease, error) {
	return blocktest.Call(ctx, &m.Faulty, Update, l.Name, func() (sticky.Lease, error) {
		there, err := m.Find(l.Name, m.Seen(l.UID, l.ResourceVersion))
		if err != nil {
			return sticky.Lease{}, err
		}
		out := there
		out.Spec.Holder, out.Spec.Written = l.Spec.Holder, l.Spec.Written
		if out != there {
			out = m.Put(out)
		}
		return out, nil
	})
}
