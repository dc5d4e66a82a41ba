// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"net/netip"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Neighbour says which MAC an address has on a link of ours, for ever: no question goes
// over the link, and no answer of the other side changes the entry. It replaces an entry
// of the same address.
type Neighbour struct {
	Link conf.LinkName `json:"link"`
	Addr netip.Addr    `json:"addr"`
	MAC  conf.MAC      `json:"mac"`
}

// commands implements Kind.
func (n Neighbour) commands(in namespaces) []string {
	return []string{in.ip() + shell.Command(" neigh replace %s lladdr %s dev %s nud permanent", n.Addr, n.MAC, n.Link)}
}
