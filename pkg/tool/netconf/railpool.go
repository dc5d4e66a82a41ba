// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package netconf

import (
	"encoding/json"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// railPool reads the Kubernetes object that a RailPool is.
func railPool(d document) (*block.Pool, error) {
	p := &block.Pool{}
	p.Name, _ = text(member(d.Metadata, "name"))
	if d.Spec == nil {
		return p, nil
	}
	return p, json.Unmarshal(d.Spec, &p.Spec)
}
