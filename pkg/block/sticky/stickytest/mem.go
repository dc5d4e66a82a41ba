// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package stickytest has a store of leases in memory, with the faults that an API
// server shows, and the suite of behaviours that every store must show.
//
// It never injects a fault that it was not asked for, and draws no random
// numbers itself. It stands beside sticky, for its tests and for those of other
// stores, as blocktest does beside block. Read this file first.
package stickytest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/block/ranges"
	"github.com/roce-cni/roce-cni/pkg/block/sticky"
)

// Late is a fault beside those of blocktest: the caller gets block.ErrUnknown, and
// what was asked for is done when Land says so.
const Late blocktest.Fault = "late"

// Update is a method of a store beside those of blocktest.
const Update blocktest.Op = "update"

// Mem is a store in memory. It is for any number of goroutines.
type Mem struct {
	// Fault says what goes wrong with a call; nil: nothing. It is called with the
	// lock held, so that it needs none of its own.
	Fault func(op blocktest.Op, name string) blocktest.Fault
	// Now is the store's clock; nil: it counts writes.
	Now func() time.Time

	mu     sync.Mutex
	leases map[string]sticky.Lease
	late   []func() error
	serial int
	calls  map[blocktest.Op]int
}

var _ sticky.Store = (*Mem)(nil)

// NewMem returns an empty store.
func NewMem() *Mem {
	return &Mem{leases: map[string]sticky.Lease{}, calls: map[blocktest.Op]int{}}
}

// Calls returns how often a method was called.
func (m *Mem) Calls(op blocktest.Op) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[op]
}

// Snapshot returns a copy of all leases, as a backup of etcd has them.
func (m *Mem) Snapshot() []sticky.Lease {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.matching(sticky.Query{})
}

// Restore makes the leases those of a backup. What was Late is lost.
func (m *Mem) Restore(backup []sticky.Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.leases)
	m.late = nil
	for _, l := range backup {
		m.leases[l.Name] = l
	}
}

// Land does what was Late first, and says whether there was something.
func (m *Mem) Land() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.late) == 0 {
		return false
	}
	_ = m.late[0]() // nobody hears of it
	m.late = m.late[1:]
	return true
}

// call does one call, or what its fault leaves of it. do is done with the lock
// held, and if it is late when the caller is gone: what it sets is for who gets no
// error.
func (m *Mem) call(ctx context.Context, op blocktest.Op, name string, do func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls[op]++
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", block.ErrUnknown, err)
	}
	fault := blocktest.None
	if m.Fault != nil {
		fault = m.Fault(op, name)
	}
	switch fault {
	case blocktest.Refused:
		return &block.BusyError{After: blocktest.RetryAfter}
	case blocktest.Lost:
		return block.ErrUnknown
	case blocktest.Landed:
		_ = do() // whatever it was, nobody hears of it
		return block.ErrUnknown
	case Late:
		m.late = append(m.late, do)
		return block.ErrUnknown
	}
	return do()
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
	var made sticky.Lease
	err := m.call(ctx, blocktest.Create, l.Name, func() error {
		if _, there := m.leases[l.Name]; there {
			return block.ErrExists
		}
		l := l
		l.UID = fmt.Sprintf("uid-%d", m.serial+1)
		l.Created = time.Unix(int64(m.serial), 0).UTC()
		if m.Now != nil {
			l.Created = m.Now().UTC()
		}
		made = m.put(l)
		return nil
	})
	if err != nil {
		return sticky.Lease{}, err
	}
	return made, nil
}

// Get is sticky.Store's.
func (m *Mem) Get(ctx context.Context, name string) (sticky.Lease, error) {
	var l sticky.Lease
	err := m.call(ctx, blocktest.Get, name, func() error {
		there := false
		if l, there = m.leases[name]; !there {
			return block.ErrNotFound
		}
		return nil
	})
	if err != nil {
		return sticky.Lease{}, err
	}
	return l, nil
}

// List is sticky.Store's.
func (m *Mem) List(ctx context.Context, q sticky.Query) ([]sticky.Lease, error) {
	var out []sticky.Lease
	err := m.call(ctx, blocktest.List, q.Pool, func() error {
		out = m.matching(q)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (m *Mem) matching(q sticky.Query) []sticky.Lease {
	var out []sticky.Lease
	for _, l := range m.leases {
		ofPool := q.Pool == "" || l.Spec.Pool == q.Pool
		ofKey := q.Key == (ranges.Key{}) || l.Spec.Key() == q.Key
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
	var out sticky.Lease
	err := m.call(ctx, Update, l.Name, func() error {
		there, err := m.meant(l.Name, l.UID, l.ResourceVersion)
		if err != nil {
			return err
		}
		out = there
		out.Spec.Holder, out.Spec.Written = l.Spec.Holder, l.Spec.Written
		if out != there {
			out = m.put(out)
		}
		return nil
	})
	if err != nil {
		return sticky.Lease{}, err
	}
	return out, nil
}

// Delete is sticky.Store's.
func (m *Mem) Delete(ctx context.Context, name, uid, resourceVersion string) error {
	return m.call(ctx, blocktest.Delete, name, func() error {
		_, err := m.meant(name, uid, resourceVersion)
		if err == nil {
			delete(m.leases, name)
		}
		return err
	})
}
