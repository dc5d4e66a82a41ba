// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
)

// slot returns the host index of an address of the subnet.
func (s Subnet) slot(a netip.Addr) netip.Addr { return netrange.Index(a, s.Prefix) }

// at returns the address with a slot in the subnet.
func (s Subnet) at(slot netip.Addr) netip.Addr { return netrange.AtIndex(slot, s.Prefix) }

// rails searches one slot that is free on several subnets.
type rails struct {
	*session
	missing []want
	usable  []netrange.Range // the slots that every subnet may lease
}

func (s *session) rails(wants []want) rails {
	var usable []netrange.Range
	for i, w := range wants {
		own := make([]netrange.Range, len(w.usable))
		for n, r := range w.usable {
			own[n] = r.Indexes(w.Prefix)
		}
		if i > 0 {
			own = netrange.Common(usable, own)
		}
		usable = own
	}
	return rails{session: s, missing: wants, usable: usable}
}

// groups returns the wants of each group that can have a common slot. It leaves
// out groups with subnets that overlap, because there a slot may be the same
// address twice.
func (s *session) groups() (out [][]int) {
	groups := map[int][]int{}
	for i, w := range s.wants {
		groups[w.Group] = append(groups[w.Group], i)
	}
	delete(groups, 0)
	for _, g := range slices.Sorted(maps.Keys(groups)) {
		members := groups[g]
		overlap := slices.ContainsFunc(members, func(i int) bool {
			return slices.ContainsFunc(members, func(j int) bool { return i < j && s.wants[i].Prefix.Overlaps(s.wants[j].Prefix) })
		})
		if !overlap {
			out = append(out, members)
		}
	}
	return out
}

// chooseGroup leases what a group still lacks. It takes one slot for all if
// there is one. Otherwise it leases each address alone and logs that.
func (s *session) chooseGroup(members []int) error {
	var missing []int
	var wants []want
	var requested, kept []netip.Addr
	for _, i := range members {
		w, has := s.wants[i], s.leases[i].Prefix
		switch {
		case !has.IsValid():
			missing, wants = append(missing, i), append(wants, w)
		case w.requested.IsValid():
			requested = append(requested, w.slot(has.Addr()))
		default:
			kept = append(kept, w.slot(has.Addr()))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	fixed := slices.Concat(requested, kept)
	leases := s.rails(wants).lease(fixed)
	for n, i := range missing {
		if leases != nil {
			s.leases[i] = leases[n]
		} else if err := s.chooseOne(i); err != nil {
			return err
		}
	}
	s.warnDifferent(members, fixed)
	return nil
}

// warnDifferent logs a warning when the addresses of a group have different
// slots.
func (s *session) warnDifferent(members []int, fixed []netip.Addr) {
	var addrs []netip.Addr
	slots := map[netip.Addr]bool{}
	for _, i := range members {
		a := s.leases[i].Prefix.Addr()
		addrs = append(addrs, a)
		slots[s.wants[i].slot(a)] = true
	}
	if len(slots) == 1 {
		return
	}
	why := "no host index is free on all rails"
	if len(fixed) > 0 {
		why = "the host index of an address that was requested, or that the interface had, is not free on all rails"
	}
	if slices.ContainsFunc(fixed, func(slot netip.Addr) bool { return slot != fixed[0] }) {
		why = "the addresses that were requested, or that the interface had, have different host indexes"
	}
	s.warn("the rails have different host indexes: "+why,
		"pool", s.ask.Pool, "owner", s.ask.Owner.String(), "interface", s.ask.Owner.IfName, "addresses", addrs)
}

// lease leases one slot on all rails. It returns nil if there is none. It
// prefers a slot that other rails of the group already have. Next come the
// slots that the pod had, and last the first free slot.
func (r rails) lease(fixed []netip.Addr) []Lease {
	if len(r.usable) == 0 {
		return nil
	}
	makeRoom := []func(){nothing, r.expireAll, r.reapAll}
	if len(fixed) > 0 {
		// Not reapAll: an ADD that requests an address must not look at every
		// lease only because its slot is taken on one rail.
		leases := r.try(makeRoom[:2], func(mine []ledger.Quarantined) netip.Addr { return r.firstOpen(fixed, mine) })
		if leases != nil {
			return leases
		}
	}
	return r.try(makeRoom, r.find)
}

// try leases the slot that find finds. It returns nil if find finds none.
func (r rails) try(rooms []func(), find func(mine []ledger.Quarantined) netip.Addr) []Lease {
	for _, makeRoom := range rooms {
		makeRoom()
		mine := r.Last(r.ask.Pool, r.ask.Owner.Identity())
		if slot := find(mine); slot.IsValid() {
			return r.take(slot, mine)
		}
	}
	return nil
}

// find returns a slot that the pod had, or else the first free one.
func (r rails) find(mine []ledger.Quarantined) netip.Addr {
	if slot := r.firstOpen(r.had(mine), mine); slot.IsValid() {
		return slot
	}
	slot, _ := Pick(r.usable, preferred(r.usable, r.ask.Owner), r.used)
	return slot
}

// had returns the slots that the pod had. The slots that it had on most rails
// come first.
func (r rails) had(mine []ledger.Quarantined) []netip.Addr {
	var slots []netip.Addr
	on := map[netip.Addr]int{}
	for _, w := range r.missing {
		for _, m := range mine {
			if !w.has(m.Addr) {
				continue
			}
			slot := w.slot(m.Addr)
			if on[slot]++; on[slot] == 1 {
				slots = append(slots, slot)
			}
		}
	}
	slices.SortStableFunc(slots, func(a, b netip.Addr) int { return on[b] - on[a] })
	return slots
}

// firstOpen returns the first of slots that the pod can have on all rails.
func (r rails) firstOpen(slots []netip.Addr, mine []ledger.Quarantined) netip.Addr {
	for _, slot := range slots {
		if r.open(slot, mine) {
			return slot
		}
	}
	return netip.Addr{}
}

// open says whether the pod can have the address of a slot on all rails: the
// address is free, or in quarantine and last leased by this pod.
func (r rails) open(slot netip.Addr, mine []ledger.Quarantined) bool {
	for _, w := range r.missing {
		a := w.at(slot)
		if !w.has(a) {
			return false
		}
		if quarantinedAt(mine, a) >= 0 {
			if r.aside(a) {
				return false
			}
		} else if _, used := r.session.used(a); used {
			return false
		}
	}
	return true
}

func quarantinedAt(quarantined []ledger.Quarantined, a netip.Addr) int {
	return slices.IndexFunc(quarantined, func(r ledger.Quarantined) bool { return r.Addr == a })
}

// used tells Pick whether a slot is used on any rail. The search ends with the range of
// usable that holds the slot, so Pick passes each used run of each rail once.
func (r rails) used(slot netip.Addr) (last netip.Addr, taken bool) {
	end := r.usable[netrange.Find(r.usable, slot)].Last
	free := 0 // the number of rails on which the slot is known to be free
	for i := 0; free < len(r.missing); i = (i + 1) % len(r.missing) {
		w := r.missing[i]
		to, used := r.session.used(w.at(slot))
		if !used {
			free++
			continue
		}
		if !w.Prefix.Contains(to) || !w.slot(to).Less(end) {
			return end, true
		}
		last, taken, free = w.slot(to), true, 1
		slot = last.Next()
	}
	return last, taken
}

// take leases an open slot on all rails.
func (r rails) take(slot netip.Addr, mine []ledger.Quarantined) []Lease {
	var out []Lease
	for _, w := range r.missing {
		a := w.at(slot)
		if i := quarantinedAt(mine, a); i >= 0 {
			r.Wake(r.ask.Owner, mine[i], false)
		} else {
			r.Give(r.ask.Owner, ledger.Spot{Pool: r.ask.Pool, Addr: a})
		}
		out = append(out, w.lease(a, false))
	}
	return out
}
