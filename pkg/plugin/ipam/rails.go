// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam

import (
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
func (s *session) groups() [][]int {
	var order []int
	groups := map[int][]int{}
	for i, w := range s.wants {
		if w.Group != 0 && len(groups[w.Group]) == 0 {
			order = append(order, w.Group)
		}
		groups[w.Group] = append(groups[w.Group], i)
	}
	var out [][]int
	for _, g := range order {
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
	leases, err := s.rails(wants).lease(fixed)
	if err != nil {
		return err
	}
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
func (r rails) lease(fixed []netip.Addr) ([]Lease, error) {
	if len(r.usable) == 0 {
		return nil, nil
	}
	makeRoom := []func() error{nothing, r.expireAll, r.reapAll}
	if len(fixed) > 0 {
		// Not reapAll: an ADD that requests an address must not look at every
		// lease only because its slot is taken on one rail.
		leases, err := r.try(makeRoom[:2], func(mine []ledger.Quarantined) (netip.Addr, error) { return r.firstOpen(fixed, mine) })
		if err != nil || leases != nil {
			return leases, err
		}
	}
	return r.try(makeRoom, r.find)
}

// try leases the slot that find finds. It returns nil if find finds none.
func (r rails) try(rooms []func() error, find func(mine []ledger.Quarantined) (netip.Addr, error)) ([]Lease, error) {
	for _, makeRoom := range rooms {
		if err := makeRoom(); err != nil {
			return nil, err
		}
		mine, err := r.Last(r.ask.Pool, r.ask.Owner.Identity())
		if err != nil {
			return nil, err
		}
		slot, err := find(mine)
		if err != nil {
			return nil, err
		}
		if slot.IsValid() {
			return r.take(slot, mine)
		}
	}
	return nil, nil
}

// find returns a slot that the pod had, or else the first free one.
func (r rails) find(mine []ledger.Quarantined) (netip.Addr, error) {
	if slot, err := r.firstOpen(r.had(mine), mine); err != nil || slot.IsValid() {
		return slot, err
	}
	slot, _, err := Pick(r.usable, preferred(r.usable, r.ask.Owner), r.used)
	return slot, err
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
func (r rails) firstOpen(slots []netip.Addr, mine []ledger.Quarantined) (netip.Addr, error) {
	for _, slot := range slots {
		if open, err := r.open(slot, mine); err != nil || open {
			return slot, err
		}
	}
	return netip.Addr{}, nil
}

// open says whether the pod can have the address of a slot on all rails: the
// address is free, or in quarantine and last leased by this pod.
func (r rails) open(slot netip.Addr, mine []ledger.Quarantined) (bool, error) {
	for _, w := range r.missing {
		a := w.at(slot)
		if !w.has(a) {
			return false, nil
		}
		taken := r.aside
		if quarantinedAt(mine, a) < 0 {
			taken = r.taken
		}
		if is, err := taken(a); err != nil || is {
			return false, err
		}
	}
	return true, nil
}

func (r rails) taken(a netip.Addr) (bool, error) {
	_, taken, err := r.session.used(a)
	return taken, err
}

func quarantinedAt(quarantined []ledger.Quarantined, a netip.Addr) int {
	return slices.IndexFunc(quarantined, func(r ledger.Quarantined) bool { return r.Addr == a })
}

// used tells Pick whether a slot is used. A slot is used if it is used on any
// rail. The search ends at the end of the range of usable that holds the slot.
// So Pick passes each used run of each rail once.
func (r rails) used(slot netip.Addr) (last netip.Addr, taken bool, err error) {
	end := r.usable[netrange.Find(r.usable, slot)].Last
	free := 0 // the number of rails on which the slot is known to be free
	for i := 0; free < len(r.missing); i = (i + 1) % len(r.missing) {
		w := r.missing[i]
		to, used, err := r.session.used(w.at(slot))
		if err != nil {
			return last, taken, err
		}
		if !used {
			free++
			continue
		}
		if !w.Prefix.Contains(to) || !w.slot(to).Less(end) {
			return end, true, nil
		}
		last, taken, free = w.slot(to), true, 1
		slot = last.Next()
	}
	return last, taken, nil
}

// take leases an open slot on all rails.
func (r rails) take(slot netip.Addr, mine []ledger.Quarantined) ([]Lease, error) {
	var out []Lease
	for _, w := range r.missing {
		a := w.at(slot)
		var err error
		if i := quarantinedAt(mine, a); i >= 0 {
			err = r.Wake(r.ask.Owner, mine[i])
		} else {
			err = r.Give(r.ask.Owner, ledger.Spot{Pool: r.ask.Pool, Addr: a})
		}
		if err != nil {
			return nil, err
		}
		out = append(out, w.lease(a, false))
	}
	return out, nil
}
