// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Up brings a link up.
type Up struct {
	Link conf.LinkName `json:"link"`
}

// commands implements Kind.
func (u Up) commands(in namespaces) []string {
	return []string{in.ip() + shell.Command(" link set dev %s up", u.Link)}
}
