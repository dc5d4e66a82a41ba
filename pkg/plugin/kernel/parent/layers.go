// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package parent

import (
	"context"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
)

// Layers returns the index of a link, then the indexes of the links directly
// below it, and so on down: see plan.Link. For a link with nothing below it,
// Layers asks the kernel nothing.
func Layers(ctx context.Context, c Namespace, l rtnl.Link) ([][]int32, error) {
	out := [][]int32{{l.Index}}
	if !stacked(l) {
		return out, nil
	}
	links, err := c.Links(ctx)
	if err != nil {
		return nil, err
	}
	for layer := below(links, []int32{l.Index}); len(layer) > 0 && len(out) <= len(links); {
		out = append(out, layer)
		layer = below(links, layer)
	}
	return out, nil
}

// stacked says whether a link sends its frames through lower links. A veth is
// not stacked: its lower link is its other end.
func stacked(l rtnl.Link) bool {
	return aggregates(l.Kind) || slices.Contains([]string{"vlan", "macvlan", "macvtap"}, l.Kind)
}

func aggregates(kind string) bool { return kind == "bond" || kind == "team" }

// below returns the links directly below the links of a layer. It leaves out a
// lower link in another namespace, because its index means nothing here.
func below(links []rtnl.Link, layer []int32) []int32 {
	var out []int32
	for _, l := range links {
		if aggregates(l.SlaveKind) && slices.Contains(layer, l.Master) {
			out = append(out, l.Index)
		}
		if slices.Contains(layer, l.Index) && stacked(l) && l.Lower.Index != 0 && l.Lower.NSID == rtnl.NoNSID {
			out = append(out, l.Lower.Index)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Top returns the index of the link that takes the frames of a link: the bond,
// if the link is a slave, or else the link itself.
func Top(links []rtnl.Link, index int32) int32 {
	for _, l := range links {
		if l.Index == index && aggregates(l.SlaveKind) {
			return l.Master
		}
	}
	return index
}
