// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package blocktest has a store of blocks in memory, with the faults of an API server,
// and the suite of behaviours that every store of objects must show.
//
// It injects only the faults that a test requests, and draws no random numbers itself.
// It stands beside block, for its tests and for those of other stores. Package
// stickytest uses the suite for RailLeases. Read kind.go first: it has the behaviours
// of all stores, and says how to add a kind of objects. objects.go is a store in
// memory, faulty.go has the faults, this file and suite.go what only blocks have.
package blocktest

import (
	"context"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// Mem is a store in memory. It is for any number of goroutines.
type Mem struct {
	Objects[block.Spec]
	// Lag is how many writes a Cached list, and Peek, are behind.
	Lag int

	writes []write
	served int // how many of writes a Cached list has
	cached map[string]block.Block
}

// write is one change: of a block, or, with nil, its end.
type write struct {
	name string
	now  *block.Block
}

var _ block.Store = (*Mem)(nil)

// NewMem returns an empty store.
func NewMem() *Mem {
	m := &Mem{Objects: NewObjects[block.Spec](), cached: map[string]block.Block{}}
	m.written = func(name string, now *block.Block) { m.writes = append(m.writes, write{name, now}) }
	return m
}

// Restore makes the blocks those of a backup. What was Late is lost.
func (m *Mem) Restore(backup []block.Block) {
	m.Objects.Restore(backup)
	m.Alone(func() {
		clear(m.cached)
		m.writes, m.served = nil, 0
		for _, b := range backup {
			m.cached[b.Name] = b
		}
	})
}

// Peek is block.Store's.
func (m *Mem) Peek(ctx context.Context, name string) (block.Block, error) {
	return Call(ctx, &m.Faulty, Peek, name, func() (block.Block, error) {
		m.serve()
		b, there := m.cached[name]
		if !there {
			return block.Block{}, block.ErrNotFound
		}
		return b, nil
	})
}

// List is block.Store's.
func (m *Mem) List(ctx context.Context, q block.Query) ([]block.Block, error) {
	return Call(ctx, &m.Faulty, List, q.Pool, func() ([]block.Block, error) {
		if q.Freshness != block.Cached {
			return m.Matching(func(b block.Block) bool { return matches(b, q) }), nil
		}
		m.serve()
		var out []block.Block
		for _, b := range m.cached {
			if matches(b, q) {
				out = append(out, b)
			}
		}
		return out, nil
	})
}

// serve brings what Cached lists have up to Lag writes before the last one.
func (m *Mem) serve() {
	for ; m.served < len(m.writes)-m.Lag; m.served++ {
		if w := m.writes[m.served]; w.now == nil {
			delete(m.cached, w.name)
		} else {
			m.cached[w.name] = *w.now
		}
	}
}

func matches(b block.Block, q block.Query) bool {
	return (q.Pool == "" || b.Spec.Pool == q.Pool) && (q.Rack == "" || b.Spec.Rack == q.Rack) &&
		(q.MachineID == "" || b.Spec.MachineID == q.MachineID)
}

// Touch is block.Store's.
func (m *Mem) Touch(ctx context.Context, name, uid string) (block.Block, error) {
	return Call(ctx, &m.Faulty, Touch, name, func() (block.Block, error) {
		there, err := m.Find(name, func(b block.Block) bool { return b.UID == uid })
		if err != nil {
			return block.Block{}, err
		}
		return m.Put(there), nil
	})
}
