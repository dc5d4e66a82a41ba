// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
)

// Release puts every address that the owner holds, in all pools, into quarantine. It
// is success if the owner holds nothing, or if there is no database; Release makes
// none.
//
// ns is the namespace of the call. If it still exists, a Release of something also reaps
// leases of namespaces that are gone.
func (b *Book) Release(ctx context.Context, k Key, ns netns.Ref) error {
	var w work
	err := b.store.Existing(ctx, func(l *ledger.Ledger) error {
		w = b.work(l)
		h := w.Holding(k)
		w.Retire(h, allPlaces)
		for a := range w.Asides() {
			if a.Of(k, ns.ID) {
				w.DropAside(a.Addr)
			}
		}
		if len(h.Places) > 0 { // to look at ns can be to look at all processes
			w.reap(k, ns, reapWindow)
		}
		return nil
	})
	if err != nil {
		return ignoreNone(err)
	}
	b.report(ctx, w)
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
		h := l.Holding(ask.Owner.Key())
		slots := map[groupSlot]bool{}
		for _, p := range h.Places {
			if p.Pool == ask.Pool && slices.Contains(addrs, p.Addr) {
				slots[ask.slot(p.Addr)] = true
			}
		}
		l.Retire(h, func(p ledger.Place) State {
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
		return nil
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
		if _, used = l.Aside(addr); used {
			l.DropAside(addr)
			return nil
		}
		if used = l.Run(pool, addr).Contains(addr); !used {
			return nil
		}
		l.Retire(l.Holder(spot), func(p ledger.Place) State {
			if p.Spot == spot {
				return ledger.Released
			}
			return 0
		})
		return nil
	})
	if err := ignoreNone(err); err != nil || used {
		return err
	}
	return cnierr.New(cnierr.BadConfig, "release address", addr.String(), "look for it with rocectl pool list", "pool %q has not leased it", pool)
}

// reapWindow is how many namespaces one call looks at, and reapSample how many if one of them
// is gone.
const (
	reapWindow = 2
	reapSample = 32
)

// reap puts leases of namespaces that are gone into quarantine, because Multus sends no GC
// to secondary networks and a DEL may never come. It looks at no more than limit namespaces:
// those of the owners that are stored next to the owner of this call, which is chance and
// needs almost no further pages.
//
// A missing path proves nothing while a process has the namespace, and nothing in a
// container without /run/netns. So reap reaps nothing unless it finds the namespace of the
// present call in the same folder, or both are named by a process. It also reaps nothing if
// most namespaces that it looked at seem to be gone.
func (w *work) reap(k Key, present netns.Ref, limit int) {
	if !w.visible(present) {
		return
	}
	checked, gone, dead := w.look(k, present, limit)
	if gone > 4 && 2*gone > checked {
		w.warn("most of the checked namespaces are gone, which can be an error: no lease is freed", "checked", checked, "gone", gone)
		return
	}
	for _, n := range dead {
		h := n.Holding()
		w.warn("leases are freed: their namespace is gone", "owner", h.Owner.String(), "container", h.Owner.ContainerID,
			"interface", h.Owner.IfName, "netns", h.Owner.Netns.Path, "addresses", len(h.Places))
		w.reaped = append(w.reaped, h.Owner)
		w.Retire(h, allPlaces)
	}
}

// look judges up to limit namespaces, of up to four times as many attachments: a pod can have
// many interfaces in one namespace. It returns the number of namespaces that
// it judged, the number of those that are gone, and the holdings of those.
func (w *work) look(k Key, present netns.Ref, limit int) (checked, gone int, dead []ledger.Neighbour) {
	known := map[netns.Ref]bool{present: false}
	seen := 0
	for n := range w.Neighbours(k) {
		isDead, ok := known[n.Netns]
		if seen == 4*limit || !ok && checked == limit {
			break
		}
		seen++
		if !ok {
			isDead = w.ended(k, present, n)
			known[n.Netns] = isDead
			checked++
			if isDead {
				gone++
				limit = max(limit, reapSample)
			}
		}
		if isDead {
			dead = append(dead, n)
		}
	}
	return checked, gone, dead
}

// ended says whether the namespace of a holding is surely gone. The kernel gives the inode
// number of a namespace that is gone to the next one. Where namespaces are named by
// process, the namespace of the present call can therefore look like that of a dead pod.
func (w *work) ended(k Key, present netns.Ref, n ledger.Neighbour) bool {
	return w.dead(present, n.Netns) ||
		n.Netns.Path != present.Path && n.Netns.ID == present.ID && leftByProcess(n.Netns.Path) && n.Holding().Owner.ContainerID != k.ContainerID
}

// visible says whether the namespace of the present call is at its path.
func (w *work) visible(present netns.Ref) bool {
	if present.Path == "" {
		return false
	}
	alive, err := w.alive(present)
	return err == nil && alive
}

// dead says whether a namespace is surely gone.
func (w *work) dead(present, n netns.Ref) bool {
	if n.Path == "" || !samePlace(n.Path, present.Path) {
		return false
	}
	alive, err := w.alive(n)
	return err == nil && !alive
}

// leftByProcess says whether a path names a namespace by a process that has ended.
func leftByProcess(path string) bool {
	_, ok := netns.ByProcess(path)
	there, err := netns.At(path)
	return ok && there == (netns.Ref{}) && err == nil
}

// samePlace says whether a process that finds a namespace at one path would also find
// one at the other: both name it by a process of the same procfs, or both are in the same
// folder.
func samePlace(a, b string) bool {
	procA, okA := netns.ByProcess(a)
	procB, okB := netns.ByProcess(b)
	if okA || okB {
		return okA && okB && sameFolder(procA, procB)
	}
	return sameFolder(filepath.Dir(a), filepath.Dir(b))
}

// sameFolder says whether two paths are the same folder, such as /run/netns and
// /var/run/netns on most machines.
func sameFolder(a, b string) bool {
	if a == b {
		return true
	}
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}
