// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
)

// want is one subnet of an Ask with what follows from the Ask.
type want struct {
	Subnet
	usable    []netrange.Range // what may be leased without a request for it
	requested netip.Addr       // zero: any
}

// wants returns a want for each subnet of an Ask. It reports every fault.
func (a Ask) wants() ([]want, error) {
	reserved := make([]netip.Addr, len(a.Reserved))
	for i, r := range a.Reserved {
		reserved[i] = r.Unmap().WithZone("") // in the form of a subnet's addresses
	}
	wants := make([]want, len(a.Subnets))
	for i, s := range a.Subnets {
		wants[i] = want{Subnet: s, usable: s.usable(reserved)}
	}
	var faults []error
	for _, addr := range a.Requested {
		if err := assignRequest(wants, addr, reserved); err != nil {
			faults = append(faults, err)
		}
	}
	return wants, errors.Join(faults...)
}

// assignRequest gives a requested address to the first want of its subnet that
// has no requested address yet.
func assignRequest(wants []want, addr netip.Addr, reserved []netip.Addr) error {
	const hint = "request another address, or change ipam.subnets"
	var in *want
	for i := range wants {
		w := &wants[i]
		switch {
		case !w.Prefix.Contains(addr):
		case in != nil && in.Prefix.Masked() != w.Prefix.Masked():
			return cnierr.New(cnierr.BadConfig, "lease requested address", addr.String(), hint,
				"it lies in both %v and %v", in.Prefix, w.Prefix)
		case in == nil || in.requested.IsValid() && in.requested != addr:
			in = w
		}
	}
	if in == nil {
		return cnierr.New(cnierr.BadConfig, "lease requested address", addr.String(), hint, "it lies in no subnet of the pool")
	}
	if why := in.refuse(addr, reserved); why != "" {
		return cnierr.New(cnierr.BadConfig, "lease requested address", addr.String(), hint, "it is %s", why)
	}
	if in.requested.IsValid() {
		return cnierr.New(cnierr.BadConfig, "lease requested address", addr.String(), "request one address of each subnet",
			"%v of %v is requested too", in.requested, in.Prefix)
	}
	in.requested = addr
	return nil
}

// usable returns the addresses that may be leased without a request for them,
// in ascending order.
func (s Subnet) usable(reserved []netip.Addr) []netrange.Range {
	ranges := s.Ranges
	if len(ranges) == 0 {
		ranges = []netrange.Range{netrange.Of(s.Prefix)}
	}
	holes := make([]netrange.Range, 0, len(s.Exclude)+len(reserved)+16)
	holes = append(holes, s.Exclude...)
	for a := range netrange.Unusable(s.Prefix) {
		holes = append(holes, netrange.Range{First: a, Last: a})
	}
	for _, a := range reserved {
		holes = append(holes, netrange.Range{First: a, Last: a})
	}
	for _, b := range netrange.Specials() {
		holes = append(holes, b.Range)
	}
	if s.Gateway.IsValid() {
		holes = append(holes, netrange.Range{First: s.Gateway, Last: s.Gateway})
	}
	return netrange.Minus(netrange.Clip(ranges, netrange.Of(s.Prefix)), holes)
}

// refuse returns the end of a sentence "it is ..." for an address of the subnet
// that is never leased, and "" for all others.
func (s Subnet) refuse(a netip.Addr, reserved []netip.Addr) string {
	if why := netrange.Unusable(s.Prefix)[a]; why != "" {
		return fmt.Sprintf("%s of %v", why, s.Prefix)
	}
	if a == s.Gateway {
		return "the gateway"
	}
	if slices.Contains(reserved, a) {
		return "an address of this host"
	}
	for _, b := range netrange.Specials() {
		if b.Contains(a) {
			return b.Why
		}
	}
	for _, r := range s.Exclude {
		if r.Contains(a) {
			return "excluded by " + r.String()
		}
	}
	return ""
}

// fits says whether the want can lease an address.
func (w want) fits(a netip.Addr) bool {
	if w.requested.IsValid() {
		return a == w.requested
	}
	return w.has(a)
}

// has says whether an address may be leased without a request for it.
func (w want) has(a netip.Addr) bool { return netrange.Has(w.usable, a) }

// lease returns the lease of an address of the subnet.
func (w want) lease(a netip.Addr, early bool) Lease {
	return Lease{Prefix: netip.PrefixFrom(a, w.Prefix.Bits()), Gateway: w.Gateway, Early: early}
}
