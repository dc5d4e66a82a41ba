// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package gidtable

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
)

// Several interfaces of a NIC can have one address. Each has an entry of its own
// (find_gid compares the interface, too). The kernel shows only the name of the
// interface, and interfaces of other namespaces may have that name. So an entry is that
// of an interface if it has the name, and if it was not there before the address was set.

// Before is where a table had entries of addresses before they were set. The zero value
// knows nothing.
type Before struct {
	read   int // the indexes below it were read
	others map[netip.Addr][]int
}

// Others returns the indexes of the entries that an address had already, without those
// that have been seen to be gone since then.
func (b Before) Others(addr netip.Addr) []int { return b.others[addr] }

// see notes what an index has now. If it does not have an address any more, the next entry
// there is new. If Look did not read it, its entry counts as there before.
func (b Before) see(place int, gid netip.Addr) {
	if b.others != nil && place >= b.read && gid.IsValid() && !slices.Contains(b.others[gid], place) {
		b.others[gid] = append(b.others[gid], place)
	}
	for a, places := range b.others {
		if a != gid {
			b.others[a] = slices.DeleteFunc(places, func(p int) bool { return p == place })
		}
	}
}

// Own says that the entry at an index is that of the interface itself: its address was set
// already.
func (b Before) Own(place int) { b.see(place, netip.Addr{}) }

// UnusedRun is how many unused indexes in a row end a look. The kernel gives a new entry the
// lowest free index (find_gid), but others may take some first, and after a failover of a
// bond programs hold the old ones of all pods: 16 pods with three addresses have 96 entries.
const UnusedRun = 96

// run counts unused indexes in a row, from an index on.
type run struct{ from, unused int }

// over says whether a look may end at an index. It may not if the driver hides entries: the
// first index, which the NIC itself has, then reads as unused.
func (r *run) over(place int, gid netip.Addr) bool {
	if place == 0 && !gid.IsValid() {
		r.from = math.MaxInt
	}
	r.unused++
	if gid.IsValid() || place < r.from {
		r.unused = 0
	}
	return r.unused >= UnusedRun
}

// Look returns which entries of addresses a table has. It reads nothing behind a run of
// unused indexes from an index on, and an entry there does not count as new. If the driver
// hides the entries of others, it reads the whole table. Errors: ErrNone; those of sysfs.
func (t Table) Look(addrs []netip.Addr, from int) (Before, error) {
	out := Before{read: math.MaxInt, others: map[netip.Addr][]int{}}
	unused := run{from: from}
	err := t.places(func(_ port, place int, gid netip.Addr) bool {
		if slices.Contains(addrs, gid) {
			out.others[gid] = append(out.others[gid], place)
		}
		if unused.over(place, gid) {
			out.read = place + 1
		}
		return out.read == math.MaxInt
	})
	return out, err
}

// Again looks for some of the addresses of an earlier look, up to an index at least. The
// interface does not have them now.
func (t Table) Again(before Before, addrs []netip.Addr, from int) (Before, error) {
	out, err := t.Look(addrs, from)
	for a, places := range before.others {
		if !slices.Contains(addrs, a) {
			out.others[a] = places
		}
	}
	return out, err
}

// Interface is an interface of a pod.
type Interface struct {
	Name   string // in the pod
	Before Before // the addresses were set
	// Alone says that the pod has the address alone, so that Before is not needed.
	Alone bool
}

// certain says whether the first entry of the name that was not there before is that of the
// interface.
func (i Interface) certain() bool { return i.Alone || i.Before.others != nil }

// was says whether an entry was there before the address was set, or counts as such.
func (i Interface) was(place int, gid netip.Addr) bool {
	return i.behind(place) || slices.Contains(i.Before.others[gid], place)
}

// behind says whether Look did not read an index, so that no entry there counts as new.
func (i Interface) behind(place int) bool { return i.Before.others != nil && place >= i.Before.read }

// Has says whether an entry is that of the interface, as far as that is known.
func (i Interface) Has(e Entry) bool { return e.Netdev == i.Name && !i.Had(e) }

// Had says whether an entry was there before the address was set, or counts as such.
func (i Interface) Had(e Entry) bool { return i.was(e.Index, e.GID) }

// SeveralError says that several entries of an address may be that of an interface.
type SeveralError struct {
	Addr   netip.Addr
	Places []int
	Name   string // of the interfaces
}

func (e *SeveralError) Error() string {
	return fmt.Sprintf("there are several RoCE v2 entries for %s, at the indexes %s, and each is of an interface called %s", e.Addr, Numbers(e.Places), e.Name)
}

// Numbers joins GID indexes for a sentence.
func Numbers(places []int) string {
	words := make([]string, 0, len(places))
	for _, n := range places {
		words = append(words, fmt.Sprint(n))
	}
	return strings.Join(words, " and ")
}

// Settled finds the RoCE v2 entries of the addresses of an interface, and returns their GID
// indexes. settled says that it has all, and that the interface has none for the addresses in
// gone. Errors: ErrNone, SeveralError; those of sysfs as they are.
//
// It reads one file for each index up to the last address that it finds for certain, and two
// for each entry of an address. If an entry is missing, or Before knows nothing, it reads the
// whole table; if it looks for none, it ends as Look does. So it sees entries of gone only
// before the last one that it looks for. That is enough: the kernel makes and removes entries
// in the order of the changes (gid_cache_wq), and gives a new one the lowest free index.
func (t Table) Settled(of Interface, want, gone []netip.Addr) (found map[netip.Addr]int, settled bool, err error) {
	found, stale, err := t.find(of, want, gone)
	return found, err == nil && !stale && len(found) == len(want), err
}

// find returns the indexes of the entries of an interface. It stops at an entry of the
// interface for an address in gone.
func (t Table) find(of Interface, want, gone []netip.Addr) (found map[netip.Addr]int, stale bool, err error) {
	found = map[netip.Addr]int{}
	perhaps := map[netip.Addr][]int{}
	var unused run
	err = t.places(func(p port, place int, gid netip.Addr) bool {
		of.Before.see(place, gid)
		_, have := found[gid]
		wanted := !have && slices.Contains(want, gid) && !of.was(place, gid) && p.kind(place) == RoCEv2
		old := slices.Contains(gone, gid) && !of.was(place, gid)
		switch {
		case !wanted && !old || p.netdev(place) != of.Name:
		case old:
			stale = true
		case of.certain():
			found[gid] = place
		default:
			perhaps[gid] = append(perhaps[gid], place)
		}
		if len(want) == 0 {
			return !stale && !unused.over(place, gid)
		}
		return !stale && len(found) < len(want) && !of.behind(place+1)
	})
	for a, places := range perhaps {
		if _, have := found[a]; have {
			continue
		}
		if len(places) > 1 {
			return found, stale, errors.Join(err, &SeveralError{a, places, of.Name})
		}
		found[a] = places[0]
	}
	return found, stale, err
}

// Own returns the entries that may be that of an interface, among those of one address
// and type: first those with its name and the index that was recorded, then those with
// its name, then the one with that index. was is nil if no index is recorded.
func Own(entries []Entry, name string, was *int) []Entry {
	var best []Entry
	top := 0
	for _, e := range entries {
		rank := 0
		if e.Netdev == name {
			rank = 2
		}
		if was != nil && *was == e.Index {
			rank++
		}
		if rank > top {
			best, top = nil, rank
		}
		if rank == top {
			best = append(best, e)
		}
	}
	return best
}
