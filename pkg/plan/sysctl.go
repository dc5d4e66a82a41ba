// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"fmt"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/conf"
)

// Sysctl sets kernel parameters of one link. They belong to the link and
// vanish with it. A parameter of a family that the kernel lacks is left out
// by the plan, not by the executor.
type Sysctl struct {
	Link conf.LinkName `json:"link"`
	Set  []Setting     `json:"set"`
}

// Setting is one kernel parameter. Path is below /proc/sys, with slashes,
// because interface names may hold dots: "net/ipv4/conf/net1/arp_ignore".
type Setting struct {
	Path  string `json:"path"`
	Value string `json:"value"`
}

func (Sysctl) kind() string { return "sysctl" }

// Commands implements Op.
func (s Sysctl) Commands(netns string) []string {
	args := make([]string, 0, len(s.Set))
	for _, v := range s.Set {
		args = append(args, v.Path+"="+shellQuote(v.Value))
	}
	return []string{fmt.Sprintf("ip netns exec %s sysctl -qw %s", netns, strings.Join(args, " "))}
}

// shellQuote quotes s for a POSIX shell if it needs to be.
func shellQuote(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(plainShell, r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

const plainShell = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-"
