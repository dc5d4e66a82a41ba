// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
)

// Carriers are the macvlans and ipvlans of the pod that have one of the addresses, although the
// attachment's own links are gone: a link of ours with another alias and MAC, or a copy
// that the pod has made. No plan has them. DEL undoes them before it releases the
// addresses; they are never done. Their aliases do not matter, because the pod can set
// any alias, also one with the form of a mark.
type Carriers struct {
	Addresses []netip.Addr `json:"addresses"`
}

// commands implements Kind.
func (c Carriers) commands(in namespaces) []string {
	var addrs []string
	for _, a := range c.Addresses {
		addrs = append(addrs, a.String())
	}
	return []string{fmt.Sprintf("# macvlans and ipvlans in %s with %s (%s -d addr show)", shell.Word(in.pod), strings.Join(addrs, ", "), in.ip())}
}

// MarkPrefix begins the alias of each link of ours.
const MarkPrefix = "roce:"
