// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"fmt"
	"net/netip"
)

// Rule sends packets from an address to a table. When Table is 0, it makes them
// fail with "unreachable" (FR_ACT_UNREACHABLE). It carries protocol number
// Protocol. An existing rule counts as done only if it is exactly this one,
// protocol included. The kernel refuses a second equal rule only with
// NLM_F_EXCL (fib_newrule).
type Rule struct {
	From     netip.Prefix `json:"from"` // a /32 or /128
	Table    uint32       `json:"table,omitempty"`
	Priority uint32       `json:"priority"`
}

// commands implements Kind.
func (r Rule) commands(in namespaces) []string {
	family := ""
	if r.From.Addr().Is6() {
		family = " -6"
	}
	return []string{fmt.Sprintf("%s%s rule add from %s %s priority %d protocol %d",
		in.ip(), family, r.From, r.action(), r.Priority, Protocol)}
}

func (r Rule) action() string {
	if r.Table == 0 {
		return "unreachable"
	}
	return fmt.Sprintf("lookup %d", r.Table)
}
