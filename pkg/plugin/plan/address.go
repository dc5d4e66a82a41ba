// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"net/netip"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Address puts an address on a link. An IPv6 address gets the flag NODAD,
// because the Conflict operation has already asked the network. A link-local
// address gets the scope of the link, all others get the global scope. An IPv4
// address also gets the broadcast address of its subnet, if there is one.
type Address struct {
	Link   conf.LinkName `json:"link"`
	Prefix netip.Prefix  `json:"prefix"` // not masked
}

// commands implements Kind.
func (a Address) commands(in namespaces) []string {
	extra := ""
	switch {
	case a.Prefix.Addr().Is6():
		extra = " nodad"
	case a.Prefix.Bits() < 31:
		extra = " brd +"
	}
	return []string{in.ip() + shell.Command(" addr add %s dev %s", a.Prefix, a.Link) + extra}
}
