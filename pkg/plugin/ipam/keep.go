// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam

import (
	"net/netip"

	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
)

// keep decides about the addresses that the attachment already has in the pool.
// An address that fits the request is its lease again, any other goes into
// quarantine. keep returns how many wants are left.
func (s *session) keep() (missing int, err error) {
	h, _, err := s.Holding(s.ask.Owner.Attachment())
	if err != nil {
		return 0, err
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
