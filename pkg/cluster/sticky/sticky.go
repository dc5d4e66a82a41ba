// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package sticky decides which host index of a pool is reserved for a pod. A pod that
// comes back under its namespace, name and interface gets the same addresses, on any
// node of the rack.
//
// It never lets two nodes hold a host index, keeps no state between two calls, and
// never waits: the caller asks again after a temporary error. It runs in rocectl's
// agent and reaper, never in a plugin, and uses package block. The store is a
// parameter. Read this file first, for how a node takes and releases a host index, then
// reap.go for what happens when the pod does not come back, or runs on another node than
// the one that holds its host index.
package sticky

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
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
	// Written is the time of the last write of Holder, by the writer's clock: since then the
	// slot is free, or the last sign of the holder. No two writes are the same, so each
	// changes ResourceVersion.
	Written time.Time `json:"written,omitzero"`
}

// Key returns the pod and interface that the slot is reserved for.
func (s Spec) Key() nodefile.Key {
	return nodefile.Key{Namespace: s.Namespace, Pod: s.Pod, Interface: s.Interface}
}

// Store keeps the leases of a cluster. stickytest.Suite tests its contract.
type Store interface {
	block.Objects[Spec, Query]
	// Update writes Holder and Written of the lease, and nothing else, if it still has this
	// UID and ResourceVersion, and returns it. ErrNotFound; ErrConflict.
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

// Claimer takes and releases RailLeases for a node. All fields are needed. It has no
// state, so its calls may be repeated after any error, by this process or the next. A
// node must make one call at a time for each pool.
type Claimer struct {
	Store Store
	Node  block.Node
	// Now is written into leases.
	Now func() time.Time
}

const (
	// tries is how often a call starts again because another client wrote at the same
	// time.
	tries = 3
	// patience is how many host indexes of other pods Take meets before it lists all.
	patience = 4
)

// Take makes the node the holder of the slot that is reserved for a pod, or of a new slot, and
// returns the lease. It always writes the lease: a Release that got no answer may still be on
// its way, and the write makes it fail.
//
// Errors: *block.HeldError while another node is the holder; *NoneError; and the store's.
func (c Claimer) Take(ctx context.Context, s block.Slots, k nodefile.Key) (Lease, error) {
	return again(func() (Lease, error) {
		mine, err := c.Store.List(ctx, Query{Pool: s.Pool, Rack: s.Rack, Key: k})
		if err != nil {
			return Lease{}, err
		}
		if l, there := first(s, mine); there {
			return c.reuse(ctx, s, l)
		}
		return c.open(ctx, s, k)
	})
}

// again repeats do until no other client has written at the same time.
func again(do func() (Lease, error)) (l Lease, err error) {
	for range tries {
		l, err = do()
		if !block.Changed(err) {
			return l, err
		}
	}
	return Lease{}, &block.BusyError{}
}

// first returns the RailLease that counts, of all that a pod has in the rack, such as two that
// two nodes took at once: one with keep: true, or the oldest. A host index that pods may no
// longer have counts only with keep: true.
func first(s block.Slots, mine []Lease) (Lease, bool) {
	mine = slices.DeleteFunc(slices.Clone(mine), func(l Lease) bool {
		return misnamed(l) || l.Spec.Rack != s.Rack || !l.Spec.Keep && !s.Has(l.Spec.Slot)
	})
	if len(mine) == 0 {
		return Lease{}, false
	}
	rank := func(l Lease) int {
		if l.Spec.Keep {
			return 0
		}
		return 1
	}
	return slices.MinFunc(mine, func(a, b Lease) int {
		return cmp.Or(rank(a)-rank(b), a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	}), true
}

// reuse takes a slot that is reserved for the pod.
func (c Claimer) reuse(ctx context.Context, s block.Slots, l Lease) (Lease, error) {
	if !s.Has(l.Spec.Slot) {
		return Lease{}, &NoneError{fmt.Sprintf("RailLease %s reserves host index %d, which no pod can get: it is outside sticky.slots of RailPool %s, or excluded", l.Name, l.Spec.Slot, s.Pool)}
	}
	return c.hold(ctx, l)
}

// hold makes the node the holder of a lease, unless another one is.
func (c Claimer) hold(ctx context.Context, l Lease) (Lease, error) {
	if h := l.Spec.Holder; h != (block.Owner{}) && h != c.Node.Owner() {
		return Lease{}, &block.HeldError{Name: l.Name, Owner: h}
	}
	return c.write(ctx, l, c.Node.Owner())
}

func (c Claimer) write(ctx context.Context, l Lease, h block.Owner) (Lease, error) {
	now := c.now()
	if now.Equal(l.Spec.Written) { // a write that changes nothing does not count
		now = now.Add(time.Microsecond)
	}
	l.Spec.Holder, l.Spec.Written = h, now
	return c.Store.Update(ctx, l)
}

// now has the precision that the API server keeps.
func (c Claimer) now() time.Time { return c.Now().UTC().Truncate(time.Microsecond) }

// open creates a RailLease for a pod that has none. The order of the search follows from the pod,
// so that the same name is tried again after a lost answer.
func (c Claimer) open(ctx context.Context, s block.Slots, k nodefile.Key) (Lease, error) {
	taken, met := map[string]bool{}, 0
	for slot := range s.Order(k.String()) {
		name := s.Name(slot)
		if taken[name] {
			continue
		}
		l, err := c.make(ctx, s, slot, k)
		var other *otherError
		if !errors.As(err, &other) {
			return l, err
		}
		if met++; met != patience {
			continue
		}
		all, err := c.Store.List(ctx, Query{Pool: s.Pool, Rack: s.Rack})
		if err != nil {
			return Lease{}, err
		}
		for _, l := range all {
			taken[l.Name] = true
		}
	}
	return Lease{}, &NoneError{fmt.Sprintf("all %d host indexes in sticky.slots of RailPool %s are reserved for other pods: kubectl get railleases", s.Count(), s.Pool)}
}

// otherError says that a host index is reserved for another pod.
type otherError struct{ Lease Lease }

func (e *otherError) Error() string {
	return fmt.Sprintf("%s is kept for %v", e.Lease.Name, e.Lease.Spec.Key())
}

// make makes the lease of a slot, or takes that of this pod.
func (c Claimer) make(ctx context.Context, s block.Slots, slot int, k nodefile.Key) (Lease, error) {
	exists := false
	return block.Hold(ctx, c.Store, Lease{Name: s.Name(slot), Spec: Spec{
		Pool: s.Pool, Rack: s.Rack, Slot: slot, Namespace: k.Namespace, Pod: k.Pod, Interface: k.Interface,
		Holder: c.Node.Owner(), Written: c.now(),
	}}, &exists, func(ctx context.Context, there Lease) (Lease, error) {
		if there.Spec.Key() != k || misnamed(there) {
			return Lease{}, &otherError{there}
		}
		return c.hold(ctx, there)
	})
}

// Affirm confirms that the node still holds a lease, by its name, after a restart and from time
// to time. It writes the lease, so that no reaper takes the node as gone, and makes it again if
// an operator or a restore of etcd has removed it. After a restore, the returned lease may be
// reserved for another pod: the node then holds the slot until it releases it.
//
// Errors: *block.HeldError: the lease is lost, and the node must not lease its addresses any
// more. If pods have them, call Affirm again: the holder may release the lease. After an error
// of the store, the node holds the lease until more is known.
func (c Claimer) Affirm(ctx context.Context, l Lease) (Lease, error) {
	if l.UID != "" {
		if got, err := c.hold(ctx, l); !block.Changed(err) {
			return got, err
		}
	}
	exists := true
	return again(func() (Lease, error) {
		fresh := Lease{Name: l.Name, Spec: l.Spec}
		fresh.Spec.Keep, fresh.Spec.Holder, fresh.Spec.Written = false, c.Node.Owner(), c.now() // nodes must not set Keep
		return block.Hold(ctx, c.Store, fresh, &exists, c.hold)
	})
}

// Release removes the node as the holder, if it is. The caller guarantees that no pod of the
// node has the addresses, and that no ADD can get them. The host index stays reserved for the
// pod. After an error the node may still be the holder; only Take tells.
func (c Claimer) Release(ctx context.Context, l Lease) error {
	_, err := again(func() (Lease, error) {
		there, err := c.Store.Get(ctx, l.Name)
		if errors.Is(err, block.ErrNotFound) {
			return Lease{}, nil
		}
		if err != nil || there.Spec.Holder != c.Node.Owner() {
			return Lease{}, err
		}
		return c.write(ctx, there, block.Owner{})
	})
	return err
}

// Held returns the leases of a pool that the node holds, in all racks, by their names.
func (c Claimer) Held(ctx context.Context, pool string) ([]Lease, error) {
	all, err := c.Store.List(ctx, Query{Pool: pool, Node: c.Node.Name})
	if err != nil {
		return nil, err
	}
	mine := slices.DeleteFunc(all, func(l Lease) bool { return l.Spec.Holder != c.Node.Owner() })
	slices.SortFunc(mine, func(a, b Lease) int { return cmp.Compare(a.Name, b.Name) })
	return mine, nil
}
