// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package pool

import (
	"fmt"
	"net/netip"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
)

const (
	deriving   = "derive subnets from master"
	deriveHint = "give the NIC one address of each family that its pods need, or write the subnets into ipam.subnets; see the addresses: ip addr show dev "
)

// Subnets returns the subnets that follow from a NIC's own addresses: one for each
// family that the NIC has, IPv4 before IPv6. Errors: BadParent for a NIC without an
// address, or with several subnets of a family; BadConfig for settings that do not fit
// into a subnet.
func (from FromMaster) Subnets(nic string, addrs []netip.Prefix) ([]Subnet, error) {
	var out []Subnet
	for _, own := range addrs {
		prefix := own.Masked()
		if own.IsSingleIP() {
			continue
		}
		if n := len(out); n > 0 && out[n-1].Prefix.Addr().Is4() == prefix.Addr().Is4() {
			if out[n-1].Prefix == prefix && from.Derive == nil {
				continue
			}
			return nil, cnierr.New(cnierr.BadParent, deriving, nic, deriveHint+nic,
				"it has %s and addresses of %s: want one of each family", own, out[n-1].Prefix)
		}
		s, err := from.around(nic, own)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, cnierr.New(cnierr.BadParent, deriving, nic, deriveHint+nic, "it has no address with a subnet")
	}
	return out, nil
}

// around returns the subnet that contains an address.
func (from FromMaster) around(nic string, own netip.Prefix) (Subnet, error) {
	s := Subnet{Prefix: own.Masked(), Ranges: []netrange.Range{netrange.Of(own)}}
	if own.Bits() == own.Addr().BitLen()-1 {
		return s, cnierr.New(cnierr.BadParent, deriving, nic,
			"remove the address from the NIC, and write in ipam.table that the pod gets it", "its subnet %s has only one address for this end of the link, and the NIC has it", s.Prefix)
	}
	s.Gateway = gatewayAt(from.Gateway, s.Prefix)
	if s.Gateway == own.Addr() {
		return s, cnierr.New(cnierr.BadConfig, deriving, nic,
			"set ipam.gateway to the other end of the subnet, or to "+NoGateway, "the gateway would be %s, the NIC's own address", own.Addr())
	}
	if from.Derive == nil {
		return s, nil
	}
	base, per, index := uint64(from.Derive.Base), uint64(from.Derive.PerHost), netrange.Index(own.Addr(), own)
	host := netrange.ToNumber(index)
	first := base + host*per
	pods := netrange.Range{First: netrange.AtNumber(first, own), Last: netrange.AtNumber(first+per-1, own)}
	hint := fmt.Sprintf("give the NICs host indexes below ipam.derive.base (%d), and choose base and perHost so that all addresses fit into %s", base, s.Prefix)
	switch {
	case host >= base:
		return s, cnierr.New(cnierr.BadConfig, deriving, nic, hint,
			"its address %s has host index %d, which is in the range of the pods", own.Addr(), netrange.Number(index))
	case !pods.Within(s.Ranges[0]):
		return s, cnierr.New(cnierr.BadConfig, deriving, nic, hint,
			"host indexes %d to %d are not in %s", first, first+per-1, s.Prefix)
	}
	s.Ranges = []netrange.Range{pods}
	return s, nil
}

// gatewayAt returns the first or the last host address of a subnet.
func gatewayAt(which string, subnet netip.Prefix) netip.Addr {
	all := netrange.Of(subnet)
	a, next := all.First, netip.Addr.Next
	switch which {
	case LastHost:
		a, next = all.Last, netip.Addr.Prev
	case FirstHost:
	default:
		return netip.Addr{}
	}
	for unusable := netrange.Unusable(subnet); unusable[a] != ""; {
		a = next(a)
	}
	return a
}
