// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package pool

import (
	"fmt"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

// MaxRails is how many interfaces one attachment may have.
const MaxRails = 32

// mostNodes is how many nodes a message lists.
const mostNodes = 12

// Table reads the subnets of the rails of one node from a file that has those
// of all nodes. It checks only the entry of that node.
func Table(file string, content []byte, node string, f *strict.Faults) [][]Subnet {
	top, ok := f.Document(file, content)
	if !ok {
		return nil
	}
	nodes := top.At("nodes")
	nodes.Missing(`write {"nodes": {"gpu-01": [{"subnet": "172.16.0.0/31", "gateway": "172.16.0.0"}]}}`)
	byName := nodes.Object()
	top.Strict(nil)
	if !byName.Present() {
		return nil
	}
	if !byName.Has(node) {
		known := slices.DeleteFunc(slices.Clone(byName.Keys()), func(key string) bool { return !byName.Has(key) })
		nodes.Bad("add the node, under this name", "the table has no node %q, only %s", node, list(known))
		return nil
	}
	return ofNode(byName.At(node), f)
}

// ofNode reads one entry for each rail: a subnet, or a list of them.
func ofNode(v strict.Value, f *strict.Faults) [][]Subnet {
	entries := v.List()
	if n := len(entries); v.Kind() == strict.AList && (n == 0 || n > MaxRails) {
		v.Bad("write one entry for each rail", "want 1 to %d rails, got %d", MaxRails, n)
		return nil
	}
	var out [][]Subnet
	for _, e := range entries {
		if e.Kind() == strict.AList {
			out = append(out, subnets(e, f))
		} else {
			out = append(out, []Subnet{subnet(e, f)})
		}
	}
	return out
}

// list names some nodes.
func list(nodes []string) string {
	if len(nodes) == 0 {
		return "none"
	}
	nodes = slices.Sorted(slices.Values(nodes))
	more := ""
	if len(nodes) > mostNodes {
		more = fmt.Sprintf(" and %d more", len(nodes)-mostNodes)
		nodes = nodes[:mostNodes]
	}
	return strings.Join(nodes, ", ") + more
}
