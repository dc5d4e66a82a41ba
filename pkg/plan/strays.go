// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"fmt"

	"github.com/roce-cni/roce-cni/pkg/conf"
)

// Strays are the rules of an attachment whose record is lost: those with our
// protocol number and from an address of the link that carries Mark. Nobody
// plans them, so they are only ever undone, before the link goes.
type Strays struct {
	Link conf.LinkName `json:"link"`
	Mark string        `json:"mark"`
}

func (Strays) kind() string { return "strays" }

// Commands implements Op.
func (s Strays) Commands(netns string) []string {
	return []string{fmt.Sprintf("# rules of protocol %d from the addresses of %s in %s (%s show protocol %d)", Protocol, s.Link, netns, IP(netns)+" rule", Protocol)}
}
