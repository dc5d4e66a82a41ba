// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Scope is the scope of an IPv4 route, with the numbers of rtnetlink.
type Scope uint8

// The scopes that a route can have; IPv6 routes are always global.
const (
	ScopeGlobal Scope = 0
	ScopeLink   Scope = 253
)

// MainTable is the number of the main routing table (RT_TABLE_MAIN).
const MainTable = 254

// Route adds a unicast route through a link, with protocol number Protocol. An
// existing route with the same destination, table and metric that is not
// exactly this one is an error. It is never replaced.
type Route struct {
	Link   conf.LinkName `json:"link"`
	Table  uint32        `json:"table"`
	Dst    netip.Prefix  `json:"dst"`          // masked; 0.0.0.0/0 or ::/0 for default
	Via    netip.Addr    `json:"via,omitzero"` // zero: on the link
	Src    netip.Addr    `json:"src,omitzero"` // preferred source; zero: the kernel's choice
	Scope  Scope         `json:"scope,omitempty"`
	Metric uint32        `json:"metric,omitempty"` // 0: the kernel's default (IPv6: 1024)
	MTU    int           `json:"mtu,omitempty"`
	AdvMSS int           `json:"advmss,omitempty"`
	OnLink bool          `json:"onlink,omitempty"` // Via is on the link, but in none of its subnets
}

// commands implements Kind.
func (r Route) commands(in namespaces) []string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s route add %s", in.ip(), dstName(r.Dst))
	if r.Via.IsValid() {
		fmt.Fprintf(&b, " via %s", r.Via)
	}
	b.WriteString(shell.Command(" dev %s table %d proto %d", r.Link, r.Table, Protocol))
	if r.Dst.Addr().Is4() {
		fmt.Fprintf(&b, " scope %s", r.Scope)
	}
	if r.Src.IsValid() {
		fmt.Fprintf(&b, " src %s", r.Src)
	}
	if r.Metric != 0 {
		fmt.Fprintf(&b, " metric %d", r.Metric)
	}
	if r.MTU != 0 {
		fmt.Fprintf(&b, " mtu %d", r.MTU)
	}
	if r.AdvMSS != 0 {
		fmt.Fprintf(&b, " advmss %d", r.AdvMSS)
	}
	if r.OnLink {
		b.WriteString(" onlink")
	}
	return []string{b.String()}
}

// String returns the scope as ip-route(8) takes it.
func (s Scope) String() string {
	switch s {
	case ScopeGlobal:
		return "global"
	case ScopeLink:
		return "link"
	}
	return fmt.Sprint(uint8(s))
}

// dstName returns a destination as ip-route(8) takes it. Both families have a
// "default", so it writes the IPv6 one as ::/0.
func dstName(p netip.Prefix) string {
	if p.Bits() == 0 && p.Addr().Is4() {
		return "default"
	}
	return p.String()
}
