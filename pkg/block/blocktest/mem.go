// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package blocktest has a store of blocks in memory, with the faults of an API server,
// and the suite of behaviours that every store must show.
//
// It injects only the faults that a test requests, and draws no random numbers itself.
// It stands beside block, for its tests and for those of other stores. Read this file
// first, then faulty.go for the faults.
package blocktest

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/roce-cni/roce-cni/pkg/block"
)

// Mem is a store in memory. It is for any number of goroutines.
type Mem struct {
	Faulty
	// Lag is how many writes a Cached list, and Peek, are behind.
	Lag int

	blocks map[string]block.Block
	writes []write
	served int // how many of writes a Cached list has
	cached map[string]block.Block
	serial int
}

// write is one change: of a block, or, without UID, its end.
type write struct {
	name string
	now  block.Block
}

var _ block.Store = (*Mem)(nil)

// NewMem returns an empty store.
func NewMem() *Mem {
	return &Mem{blocks: map[string]block.Block{}, cached: map[string]block.Block{}}
}

// Snapshot returns a copy of all blocks, as a backup of etcd has them.
func (m *Mem) Snapshot() (out []block.Block) {
	m.Alone(func() { out = matching(m.blocks, block.Query{}) })
	return out
}

// Restore makes the blocks those of a backup. What was Late is lost.
func (m *Mem) Restore(backup []block.Block) {
	m.Reset(func() {
		clear(m.blocks)
		clear(m.cached)
		m.writes, m.served = nil, 0
		for _, b := range backup {
			m.blocks[b.Name], m.cached[b.Name] = b, b
		}
	})
}

// put keeps a block with a new version.
func (m *Mem) put(b block.Block) block.Block {
	m.serial++
	b.ResourceVersion = strconv.Itoa(m.serial)
	m.blocks[b.Name] = b
	m.writes = append(m.writes, write{b.Name, b})
	return b
}

// Create is block.Store's.
func (m *Mem) Create(ctx context.Context, b block.Block) (block.Block, error) {
	return Call(ctx, &m.Faulty, Create, b.Name, func() (block.Block, error) {
		if _, there := m.blocks[b.Name]; there {
			return block.Block{}, block.ErrExists
		}
		made := b
		made.UID = fmt.Sprintf("uid-%d", m.serial+1)
		made.Created = time.Unix(int64(m.serial), 0)
		return m.put(made), nil
	})
}

// Get is block.Store's.
func (m *Mem) Get(ctx context.Context, name string) (block.Block, error) {
	return Call(ctx, &m.Faulty, Get, name, func() (block.Block, error) { return find(m.blocks, name) })
}

// Peek is block.Store's.
func (m *Mem) Peek(ctx context.Context, name string) (block.Block, error) {
	return Call(ctx, &m.Faulty, Peek, name, func() (block.Block, error) {
		m.serve()
		return find(m.cached, name)
	})
}

func find(all map[string]block.Block, name string) (block.Block, error) {
	b, there := all[name]
	if !there {
		return block.Block{}, block.ErrNotFound
	}
	return b, nil
}

// List is block.Store's.
func (m *Mem) List(ctx context.Context, q block.Query) ([]block.Block, error) {
	return Call(ctx, &m.Faulty, List, q.Pool, func() ([]block.Block, error) {
		all := m.blocks
		if q.Freshness == block.Cached {
			m.serve()
			all = m.cached
		}
		return matching(all, q), nil
	})
}

// serve brings what Cached lists have up to Lag writes before the last one.
func (m *Mem) serve() {
	for ; m.served < len(m.writes)-m.Lag; m.served++ {
		w := m.writes[m.served]
		if w.now.UID == "" {
			delete(m.cached, w.name)
		} else {
			m.cached[w.name] = w.now
		}
	}
}

func matching(all map[string]block.Block, q block.Query) []block.Block {
	var out []block.Block
	for _, b := range all {
		ofPool := q.Pool == "" || b.Spec.Pool == q.Pool
		ofRack := q.Rack == "" || b.Spec.Rack == q.Rack
		ofMachine := q.MachineID == "" || b.Spec.MachineID == q.MachineID
		if ofPool && ofRack && ofMachine {
			out = append(out, b)
		}
	}
	return out
}

// Touch is block.Store's.
func (m *Mem) Touch(ctx context.Context, name, uid string) (block.Block, error) {
	return Call(ctx, &m.Faulty, Touch, name, func() (block.Block, error) {
		there, err := find(m.blocks, name)
		if err != nil {
			return block.Block{}, err
		}
		if there.UID != uid {
			return block.Block{}, block.ErrConflict
		}
		return m.put(there), nil
	})
}

// Delete is block.Store's.
func (m *Mem) Delete(ctx context.Context, name, uid, resourceVersion string) error {
	_, err := Call(ctx, &m.Faulty, Delete, name, func() (block.Block, error) {
		there, err := find(m.blocks, name)
		if err != nil {
			return block.Block{}, err
		}
		if there.UID != uid || there.ResourceVersion != resourceVersion {
			return block.Block{}, block.ErrConflict
		}
		delete(m.blocks, name)
		m.writes = append(m.writes, write{name: name})
		return there, nil
	})
	return err
}
