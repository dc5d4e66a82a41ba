// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam

import (
	"context"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
)

// Release puts every address that the owner holds, in all pools, into quarantine. It
// is success if the owner holds nothing, or if there is no database; Release makes
// none.
//
// ns is the namespace of the call. If it still exists, Release also reaps
// leases of namespaces that are gone.
func (b *Book) Release(ctx context.Context, k Key, ns netns.Ref) error {
	var w work
	err := b.store.Existing(ctx, func(l *ledger.Ledger) error {
		w = b.work(l)
		released, err := w.retire(k)
		if err == nil {
			err = w.dropAsides(k, ns)
		}
		if err != nil || !released {
			return err
		}
		return w.reap(k, ns, reapWindow)
	})
	if err != nil {
		return ignoreNone(err)
	}
	b.report(ctx, w)
	return nil
}

// retire puts everything that an owner holds into quarantine. It says whether the
// owner held anything.
func (w *work) retire(k Key) (bool, error) {
	h, held, err := w.Holding(k)
	if err == nil && held {
		_, err = w.Retire(h, allPlaces)
	}
	return held, err
}

// dropAsides frees the addresses that are set aside for an owner in a namespace.
func (w *work) dropAsides(k Key, ns netns.Ref) error {
	for a, err := range w.Asides() {
		if err != nil {
			return err
		}
		if !a.Of(k, ns.ID) {
			continue
		}
		if err := w.DropAside(a.Addr); err != nil {
			return err
		}
	}
	return nil
}

// Reject takes addresses away from the owner because another host on the network
// answers for them. They go into quarantine behind all others, and the owner's next
// Acquire gets others. If such an address is in a group, Reject also puts the owner's
// other addresses with the same slot into quarantine, so that the next Acquire finds
// another slot for the whole group. It leaves alone addresses that the owner does not
// hold.
//
// Of the Ask, it uses only Pool, Subnets and the Owner's key.
func (b *Book) Reject(ctx context.Context, ask Ask, addrs []netip.Addr) error {
	return ignoreNone(b.store.Existing(ctx, func(l *ledger.Ledger) error {
		h, held, err := l.Holding(ask.Owner.Key())
		if err != nil || !held {
			return err
		}
		slots := map[groupSlot]bool{}
		for _, p := range h.Places {
			if p.Pool == ask.Pool && slices.Contains(addrs, p.Addr) {
				slots[ask.slot(p.Addr)] = true
			}
		}
		_, err = l.Retire(h, func(p ledger.Place) State {
			at := ask.slot(p.Addr)
			switch {
			case p.Pool != ask.Pool:
				return 0
			case slices.Contains(addrs, p.Addr):
				return ledger.Conflicted
			case at.group != 0 && slots[at]:
				return ledger.Released
			}
			return 0
		})
		return err
	}))
}

// groupSlot is a slot of a group.
type groupSlot struct {
	group int
	slot  netip.Addr
}

// slot returns the slot of an address in its group. It returns the zero
// groupSlot if the address is in no subnet.
func (a Ask) slot(addr netip.Addr) groupSlot {
	for _, s := range a.Subnets {
		if s.Prefix.Contains(addr) {
			return groupSlot{s.Group, s.slot(addr)}
		}
	}
	return groupSlot{}
}

// ReleaseAddress ends the lease of one address, of any holder: the operator knows that
// the address is unused. The address goes into quarantine. An address in quarantine
// stays there, and one that is set aside becomes free. ReleaseAddress returns code 7
// for an address that the pool has not leased.
func (b *Book) ReleaseAddress(ctx context.Context, pool string, addr netip.Addr) error {
	spot, used := ledger.Spot{Pool: pool, Addr: addr}, false
	err := b.store.Existing(ctx, func(l *ledger.Ledger) error {
		if _, aside, err := l.Aside(addr); err != nil {
			return err
		} else if aside {
			used = true
			return l.DropAside(addr)
		}
		r, err := l.Run(pool, addr)
		used = r.Contains(addr)
		if err != nil || !used {
			return err
		}
		h, held, err := l.Holder(spot)
		if err != nil || !held {
			return err
		}
		_, err = l.Retire(h, func(p ledger.Place) State {
			if p.Spot == spot {
				return ledger.Released
			}
			return 0
		})
		return err
	})
	if err := ignoreNone(err); err != nil || used {
		return err
	}
	return cnierr.New(cnierr.BadConfig, "release address", addr.String(), "look for it with rocectl pool list", "pool %q has not leased it", pool)
}
