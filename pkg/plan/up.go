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

// commands implements Kind.
func (u Up) commands(in namespaces) []string {
	return []string{fmt.Sprintf("%s link set dev %s up", in.ip(), u.Link)}
}
