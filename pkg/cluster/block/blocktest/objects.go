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

// Meta points to the fields that objects of all kinds have.
type Meta struct {
	Name, UID, Version *string
	Created            *time.Time
}

// Objects is what stores in memory are made of, for one kind of objects. It is for any
// number of goroutines.
type Objects[T any] struct {
	Faulty
	// Now is the store's clock; nil: it counts writes.
	Now func() time.Time

	meta    func(*T) Meta
	written func(name string, now *T) // called after each write; nil: an object that is deleted
	all     map[string]T
	serial  int
}

// NewObjects returns a store without objects. meta finds the fields of an object.
func NewObjects[T any](meta func(*T) Meta) Objects[T] {
	return Objects[T]{meta: meta, written: func(string, *T) {}, all: map[string]T{}}
}

// Snapshot returns a copy of all objects by name, as a backup of etcd has them.
func (m *Objects[T]) Snapshot() (out []T) {
	m.Alone(func() { out = m.Matching(func(T) bool { return true }) })
	return out
}

// Restore makes the objects those of a backup. What was Late is lost.
func (m *Objects[T]) Restore(backup []T) {
	m.Reset(func() {
		clear(m.all)
		for _, o := range backup {
			m.all[*m.meta(&o).Name] = o
		}
	})
}

// Matching returns the objects that match, by name. The caller holds the lock.
func (m *Objects[T]) Matching(match func(T) bool) (out []T) {
	for _, name := range slices.Sorted(maps.Keys(m.all)) {
		if match(m.all[name]) {
			out = append(out, m.all[name])
		}
	}
	return out
}

// Put keeps an object with a new version. The caller holds the lock.
func (m *Objects[T]) Put(o T) T {
	m.serial++
	meta := m.meta(&o)
	*meta.Version = strconv.Itoa(m.serial)
	m.all[*meta.Name] = o
	m.written(*meta.Name, &o)
	return o
}

// Find returns the object of a name if accept accepts it; nil accepts every one. The
// caller holds the lock.
func (m *Objects[T]) Find(name string, accept func(Meta) bool) (T, error) {
	var none T
	o, there := m.all[name]
	if !there {
		return none, block.ErrNotFound
	}
	if accept != nil && !accept(m.meta(&o)) {
		return none, block.ErrConflict
	}
	return o, nil
}

// Seen accepts only the object of that UID and version.
func Seen(uid, version string) func(Meta) bool {
	return func(m Meta) bool { return *m.UID == uid && *m.Version == version }
}

// Create is that of a store.
func (m *Objects[T]) Create(ctx context.Context, o T) (T, error) {
	name := *m.meta(&o).Name
	return Call(ctx, &m.Faulty, Create, name, func() (T, error) {
		var none T
		if _, there := m.all[name]; there {
			return none, block.ErrExists
		}
		made := o
		meta := m.meta(&made)
		*meta.UID, *meta.Created = fmt.Sprintf("uid-%d", m.serial+1), time.Unix(int64(m.serial), 0).UTC()
		if m.Now != nil {
			*meta.Created = m.Now().UTC()
		}
		return m.Put(made), nil
	})
}

// Get is that of a store.
func (m *Objects[T]) Get(ctx context.Context, name string) (T, error) {
	return Call(ctx, &m.Faulty, Get, name, func() (T, error) { return m.Find(name, nil) })
}

// Delete is that of a store.
func (m *Objects[T]) Delete(ctx context.Context, name, uid, resourceVersion string) error {
	_, err := Call(ctx, &m.Faulty, Delete, name, func() (T, error) {
		there, err := m.Find(name, Seen(uid, resourceVersion))
		if err == nil {
			delete(m.all, name)
			m.written(name, nil)
		}
		return there, err
	})
	return err
}
