// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package blocktest has a store of blocks in memory, with the faults that an API
// server shows, and the suite of behaviours that every store must show.
//
// It never injects a fault that it was not asked for, and draws no random
// numbers itself. It stands beside block, for its tests and for those of other
// stores. Read this file first.
package blocktest

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/roce-cni/roce-cni/pkg/block"
)

// Op is a method of a store.
type Op string

// The methods.
const (
	Create Op = "create"
	Get    Op = "get"
	Peek   Op = "peek"
	List   Op = "list"
	Touch  Op = "touch"
	Delete Op = "delete"
)

// Fault is what goes wrong with one call.
type Fault string

// The faults. After a Refused call or a Lost one nothing has happened; what
// Landed was done, and the answer to it was lost. The caller of a Lost or Landed
// call gets block.ErrUnknown.
const (
	None    Fault = ""
	Refused Fault = "refused"
	Lost    Fault = "lost"
	Landed  Fault = "landed"
)

// RetryAfter is what a Refused call is told.
const RetryAfter = time.Second

// Mem is a store in memory. It is for any number of goroutines.
type Mem struct {
	// Fault says what goes wrong with a call; nil: nothing. It is called with the
	// lock held, so that it needs none of its own.
	Fault func(op Op, name string) Fault
	// Lag is how many writes a Cached list, and Peek, are behind.
	Lag int

	mu     sync.Mutex
	blocks map[string]block.Block
	writes []write
	served int // how many of writes a Cached list has
	cached map[string]block.Block
	serial int
	calls  map[Op]int
}

// write is one change: of a block, or, without UID, its end.
type write struct {
	name string
	now  block.Block
}

var _ block.Store = (*Mem)(nil)

// NewMem returns an empty store.
func NewMem() *Mem {
	return &Mem{blocks: map[string]block.Block{}, cached: map[string]block.Block{}, calls: map[Op]int{}}
}

// Calls returns how often a method was called.
func (m *Mem) Calls(op Op) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[op]
}

// Snapshot returns a copy of all blocks, as a backup of etcd has them.
func (m *Mem) Snapshot() []block.Block {
	m.mu.Lock()
	defer m.mu.Unlock()
	return matching(m.blocks, block.Query{})
}

// Restore makes the blocks those of a backup.
func (m *Mem) Restore(backup []block.Block) {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.blocks)
	clear(m.cached)
	m.writes, m.served = nil, 0
	for _, b := range backup {
		m.blocks[b.Name], m.cached[b.Name] = b, b
	}
}

// call does one call, or what its fault leaves of it. do is done with the lock
// held.
func (m *Mem) call(ctx context.Context, op Op, name string, do func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls[op]++
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", block.ErrUnknown, err)
	}
	fault := None
	if m.Fault != nil {
		fault = m.Fault(op, name)
	}
	switch fault {
	case Refused:
		return &block.BusyError{After: RetryAfter}
	case Lost:
		return block.ErrUnknown
	case Landed:
		_ = do() // whatever it was, nobody hears of it
		return block.ErrUnknown
	}
	return do()
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
	err := m.call(ctx, Create, b.Name, func() error {
		if _, there := m.blocks[b.Name]; there {
			return block.ErrExists
		}
		b.UID = fmt.Sprintf("uid-%d", m.serial+1)
		b.Created = time.Unix(int64(m.serial), 0)
		b = m.put(b)
		return nil
	})
	return given(b, err)
}

// Get is block.Store's.
func (m *Mem) Get(ctx context.Context, name string) (b block.Block, err error) {
	err = m.call(ctx, Get, name, func() error {
		there := false
		if b, there = m.blocks[name]; !there {
			return block.ErrNotFound
		}
		return nil
	})
	return given(b, err)
}

// Peek is block.Store's.
func (m *Mem) Peek(ctx context.Context, name string) (b block.Block, err error) {
	err = m.call(ctx, Peek, name, func() error {
		m.serve()
		there := false
		if b, there = m.cached[name]; !there {
			return block.ErrNotFound
		}
		return nil
	})
	return given(b, err)
}

// List is block.Store's.
func (m *Mem) List(ctx context.Context, q block.Query) (out []block.Block, err error) {
	err = m.call(ctx, List, q.Pool, func() error {
		all := m.blocks
		if q.Freshness == block.Cached {
			m.serve()
			all = m.cached
		}
		out = matching(all, q)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
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
func (m *Mem) Touch(ctx context.Context, name, uid string) (b block.Block, err error) {
	err = m.call(ctx, Touch, name, func() error {
		there, ok := m.blocks[name]
		if !ok {
			return block.ErrNotFound
		}
		if there.UID != uid {
			return block.ErrConflict
		}
		b = m.put(there)
		return nil
	})
	return given(b, err)
}

// Delete is block.Store's.
func (m *Mem) Delete(ctx context.Context, name, uid, resourceVersion string) error {
	return m.call(ctx, Delete, name, func() error {
		there, ok := m.blocks[name]
		if !ok {
			return block.ErrNotFound
		}
		if there.UID != uid || there.ResourceVersion != resourceVersion {
			return block.ErrConflict
		}
		delete(m.blocks, name)
		m.writes = append(m.writes, write{name: name})
		return nil
	})
}

// given is what a caller gets: nothing with an error.
func given(b block.Block, err error) (block.Block, error) {
	if err != nil {
		return block.Block{}, err
	}
	return b, nil
}
