// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam

import (
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
)

// quarantineLeft returns how much of its quarantine an address still has, in whole
// seconds.
func (s *session) quarantineLeft(r ledger.Quarantined) time.Duration {
	return (quarantineFor(r.State, s.ask.Quarantine) - (s.Now - r.Freed)).Round(time.Second)
}

const quarantineHint = "wait until the quarantine is over, widen ipam.subnets[].ranges, or shorten ipam.quarantine"

// inQuarantine returns the error for a requested address that is in quarantine.
func (s *session) inQuarantine(r ledger.Quarantined) error {
	return cnierr.New(cnierr.TryAgain, "lease requested address", r.Addr.String(), quarantineHint,
		"it is in quarantine for %v more: its last user may still have it, and this program cannot probe for conflicts", s.quarantineLeft(r))
}

// allInQuarantine returns the error for a subnet in which all addresses that are left are in
// quarantine. r is longest in quarantine.
func (s *session) allInQuarantine(w want, r ledger.Quarantined) error {
	usage, err := s.usageOf(w)
	if err != nil {
		return err
	}
	return cnierr.New(cnierr.PoolExhausted, "lease address", s.ask.Pool, quarantineHint,
		"all free addresses of %v are in quarantine, the next one (%v) for %v more, and this program cannot probe for conflicts: %v",
		w.Prefix, r.Addr, s.quarantineLeft(r), usage)
}
