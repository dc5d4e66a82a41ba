// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"fmt"

	"github.com/roce-cni/roce-cni/pkg/conf"
)

// Up brings a link up.
type Up struct {
	Link conf.LinkName `json:"link"`
}

func (Up) kind() string { return "up" }

// Commands implements Op.
func (u Up) Commands(netns string) []string {
	return []string{fmt.Sprintf("%s link set dev %s up", IP(netns), u.Link)}
}
