// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"fmt"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Orphans are what is left of an attachment after its record was lost: the
// links of its other rails, and the rules that have our protocol number and an
// address of the link with Mark. No plan has them. DEL undoes them before the
// link itself; they are never done.
type Orphans struct {
	Link conf.LinkName `json:"link"`
	Mark string        `json:"mark"`
}

// commands implements Kind.
func (o Orphans) commands(in namespaces) []string {
	return []string{shell.Command("# rules of protocol %d from the addresses of %s in %s (", Protocol, o.Link, in.pod) + in.ip() + fmt.Sprintf(" rule show protocol %d)", Protocol)}
}
