// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package gidtable

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
)

// Several interfaces of a NIC can have one address. Each has an entry of its own
// (find_gid compares the interface, too). The kernel shows only the name of the
// interface, and interfaces of other namespaces may have that name. So an entry is that
// of an interface if it has the name, and if it was not there before the address was set.

// Before is what a table had before addresses were set. The zero value knows nothing.
type Before struct {
	read   int                  // the indexes below it were read
	others map[netip.Addr][]int // the indexes of entries of the same addresses
	hides  bool                 // the driver shows the reader only its own entries
}

// Others returns the indexes of the entries that an address had already.
func (b Before) Others(addr netip.Addr) []int { return b.others[addr] }

// UnusedRun is how many unused indexes in a row end Look. The kernel takes the lowest
// free index, and others may take some until the address is set.
const UnusedRun = 32

// Look returns which entries of addresses a table has. It does not read the rest of the
// table behind a run of unused indexes. Errors: ErrNone; those of sysfs as they are.
func (t Table) Look(addrs []netip.Addr) (Before, error) {
	out := Before{others: map[netip.Addr][]int{}}
	used, unused := 0, 0
	err := t.places(func(place int, gid netip.Addr) bool {
		out.read = place + 1
		if !gid.IsValid() {
			unused++
			return unused < UnusedRun
		}
		used, unused = used+1, 0
		if slices.Contains(addrs, gid) {
			out.others[gid] = append(out.others[gid], place)
		}
		return true
	})
	if unused < UnusedRun {
		out.read = math.MaxInt
	}
	out.hides = used == 0 // the NIC itself has the first entry
	return out, err
}

// Interface is an interface of a pod.
type Interface struct {
	Name   string // in the pod
	Before Before // the addresses were set
	// Alone says that the pod has the address alone. Then the first entry of the name is
	// the right one, and the table is not read behind it.
	Alone bool
}

// certain says whether the entry of an address and the name is that of the interface:
// Look has read the index, so the entry is new.
func (i Interface) certain(place int) bool {
	return i.Alone || i.Before.hides || place < i.Before.read
}

// was says whether an entry was there before the address was set.
func (i Interface) was(place int, gid netip.Addr) bool {
	return slices.Contains(i.Before.others[gid], place)
}

// Has says whether an entry is that of the interface, as far as that is known.
func (i Interface) Has(e Entry) bool { return e.Netdev == i.Name && !i.was(e.Index, e.GID) }

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
	out := ""
	for i, n := range places {
		if i > 0 {
			out += " and "
		}
		out += fmt.Sprint(n)
	}
	return out
}

// Locate finds the RoCE v2 entries of the addresses of an interface, and adds their GID
// indexes to found. It returns whether it has all. It does not look for addresses that
// are in found already. It stops at the last address that it finds for certain. So it
// reads one file for each index before that one, and two files for each entry of an
// address. If an entry is missing, or was at an index that Look did not read, Locate
// reads the whole table.
//
// Errors: ErrNone, SeveralError; those of sysfs as they are.
func (t Table) Locate(of Interface, want []netip.Addr, found map[netip.Addr]int) (bool, error) {
	missing := slices.DeleteFunc(slices.Clone(want), func(a netip.Addr) bool { _, have := found[a]; return have })
	if len(missing) == 0 {
		return true, nil
	}
	at, _, err := t.find(of, missing, nil)
	maps.Copy(found, at)
	return len(at) == len(missing), err
}

// Settled finds the RoCE v2 entries of addresses as Locate does, and also returns
// whether it has all of them and no entry of the interface for the addresses in gone. It
// sees an entry of these only before the last entry that it looks for. That is enough
// after a change of addresses: the kernel makes and removes entries in the order of the
// changes, from one work queue (gid_cache_wq), and gives a new entry the lowest free
// index. Errors are those of Locate.
func (t Table) Settled(of Interface, want, gone []netip.Addr) (found map[netip.Addr]int, settled bool, err error) {
	found, stale, err := t.find(of, want, gone)
	return found, err == nil && !stale && len(found) == len(want), err
}

// find returns the indexes of the entries of an interface. It stops at an entry of the
// interface for an address in gone.
func (t Table) find(of Interface, want, gone []netip.Addr) (found map[netip.Addr]int, stale bool, err error) {
	found = map[netip.Addr]int{}
	perhaps := map[netip.Addr][]int{}
	err = t.places(func(place int, gid netip.Addr) bool {
		_, have := found[gid]
		wanted := !have && slices.Contains(want, gid) && !of.was(place, gid) && t.kind(place) == RoCEv2
		old := slices.Contains(gone, gid) && !of.was(place, gid)
		switch {
		case !wanted && !old || t.netdev(place) != of.Name:
		case old:
			stale = true
		case of.certain(place):
			found[gid] = place
		default:
			perhaps[gid] = append(perhaps[gid], place)
		}
		return !stale && len(found) < len(want)
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
