// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam

import (
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
)

// keep decides about the addresses that the owner already has in the pool. An address
// that fits the request is its lease again, any other goes into quarantine. keep returns
// how many wants are left. It refuses a request when a plugin before in the list has
// leased as this owner: the address is on that plugin's interface.
func (s *session) keep() (missing int, err error) {
	h, _, err := s.Holding(s.ask.Owner.Key())
	if err != nil {
		return 0, err
	}
	for _, p := range h.Places {
		if slices.Contains(s.ask.Earlier, p.Addr) {
			return 0, cnierr.New(cnierr.BadConfig, "lease address for", s.ask.Owner.IfName, "list each plugin that leases addresses only once",
				"another plugin of type %q in the list of network %q has leased %s", s.ask.Owner.Program, s.ask.Owner.Network, p.Addr)
		}
	}
	missing = len(s.wants)
	left, err := s.Retire(h, func(p ledger.Place) State {
		if p.Pool != s.ask.Pool {
			return 0
		}
		i := s.fitting(p.Addr)
		if i < 0 {
			return ledger.Released
		}
		s.leases[i] = s.wants[i].lease(p.Addr, p.Early)
		missing--
		return 0
	})
	if err != nil || len(left.Places) == 0 || left.Owner == s.ask.Owner {
		return missing, err
	}
	// The runtime repeated the ADD, maybe with a new namespace.
	return missing, s.Save(ledger.Holding{Owner: s.ask.Owner, Places: left.Places})
}

// fitting returns a want without a lease that an address fits, or -1.
func (s *session) fitting(a netip.Addr) int {
	for i, w := range s.wants {
		if !s.leases[i].Prefix.IsValid() && w.fits(a) {
			return i
		}
	}
	return -1
}
