// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"fmt"
	"net/netip"

	"github.com/roce-cni/roce-cni/pkg/conf"
)

// Address puts an address on a link. IPv6 addresses get the flag NODAD: the
// Conflict operation has asked the wire before. Link-local addresses get the
// link's scope, all others the global one. An IPv4 address of a subnet with a
// broadcast address gets that too.
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
	return []string{fmt.Sprintf("%s addr add %s dev %s%s", in.ip(), a.Prefix, a.Link, extra)}
}
