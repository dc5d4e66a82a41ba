// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package blocktest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// Objects is what stores in memory are made of, for one kind of objects. It is for any
// number of goroutines.
type Objects[S any] struct {
	Faulty
	// Now is the store's clock; nil: it counts writes.
	Now func() time.Time

	written func(name string, now *block.Object[S]) // called after each write; nil: an object that is deleted
	all     map[string]block.Object[S]
	serial  int
}

// NewObjects returns a store without objects.
func NewObjects[S any]() Objects[S] {
	return Objects[S]{written: func(string, *block.Object[S]) {}, all: map[string]block.Object[S]{}}
}

// Snapshot returns a copy of all objects by name, as a backup of etcd has them.
func (m *Objects[S]) Snapshot() (out []block.Object[S]) {
	m.Alone(func() { out = m.Matching(func(block.Object[S]) bool { return true }) })
	return out
}

// Restore makes the objects those of a backup. What was Late is lost.
func (m *Objects[S]) Restore(backup []block.Object[S]) {
	m.Reset(func() {
		clear(m.all)
		for _, o := range backup {
			m.all[o.Name] = o
		}
	})
}

// Matching returns the objects that match, by name. The caller holds the lock.
func (m *Objects[S]) Matching(match func(block.Object[S]) bool) (out []block.Object[S]) {
	for _, name := range slices.Sorted(maps.Keys(m.all)) {
		if match(m.all[name]) {
			out = append(out, m.all[name])
		}
	}
	return out
}

// Put keeps an object with a new version. The caller holds the lock.
func (m *Objects[S]) Put(o block.Object[S]) block.Object[S] {
	m.serial++
	o.ResourceVersion = strconv.Itoa(m.serial)
	m.all[o.Name] = o
	m.written(o.Name, &o)
	return o
}

// Find returns the object of a name if accept accepts it; nil accepts every one. The
// caller holds the lock.
func (m *Objects[S]) Find(name string, accept func(block.Object[S]) bool) (block.Object[S], error) {
	var none block.Object[S]
	o, there := m.all[name]
	if !there {
		return none, block.ErrNotFound
	}
	if accept != nil && !accept(o) {
		return none, block.ErrConflict
	}
	return o, nil
}

// Seen accepts only the object of that UID and version.
func (m *Objects[S]) Seen(uid, version string) func(block.Object[S]) bool {
	return func(o block.Object[S]) bool { return o.UID == uid && o.ResourceVersion == version }
}

// Create is that of a store.
func (m *Objects[S]) Create(ctx context.Context, o block.Object[S]) (block.Object[S], error) {
	return Call(ctx, &m.Faulty, Create, o.Name, func() (block.Object[S], error) {
		var none block.Object[S]
		if _, there := m.all[o.Name]; there {
			return none, block.ErrExists
		}
		made := o
		made.UID, made.Created = fmt.Sprintf("uid-%d", m.serial+1), time.Unix(int64(m.serial), 0).UTC()
		if m.Now != nil {
			made.Created = m.Now().UTC()
		}
		return m.Put(made), nil
	})
}

// Get is that of a store.
func (m *Objects[S]) Get(ctx context.Context, name string) (block.Object[S], error) {
	return Call(ctx, &m.Faulty, Get, name, func() (block.Object[S], error) { return m.Find(name, nil) })
}

// Delete is that of a store.
func (m *Objects[S]) Delete(ctx context.Context, name, uid, resourceVersion string) error {
	_, err := Call(ctx, &m.Faulty, Delete, name, func() (block.Object[S], error) {
		there, err := m.Find(name, m.Seen(uid, resourceVersion))
		if err == nil {
			delete(m.all, name)
			m.written(name, nil)
		}
		return there, err
	})
	return err
}
