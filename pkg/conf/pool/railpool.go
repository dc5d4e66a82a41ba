// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package pool

import (
	"regexp"

	"github.com/roce-cni/roce-cni/pkg/conf/strict"
)

// RailPool is a pool that spans nodes: what this node may lease of it, and how
// long an address rests, its agent writes into a file.
type RailPool struct {
	Name string
	// Rail is which of the pool's rails the one interface of a network is on, nil
	// if nobody says it.
	Rail *int
}

// ReadRailPool reads the keys "railPool" and "rail" of ipam for a network with so
// many rails, or with one interface. It returns nil if there is no railPool.
func ReadRailPool(ipam *strict.Object, rails int) *RailPool {
	v, rail := ipam.At("railPool"), ipam.At("rail")
	if !v.Present() {
		if rail.Present() {
			rail.Bad(`write "railPool": "compute", or remove the key`, "means nothing without railPool")
		}
		return nil
	}
	p := RailPool{}
	var ok bool
	if p.Name, ok = v.Text(""); ok && !isRailPool(p.Name) {
		v.Bad("kubectl get railpools lists them", "%q is not the name of a RailPool", p.Name)
	}
	for _, other := range []struct{ key, hint string }{
		{"table", "keep one of the two"},
		{"pool", "remove it: networks that name one RailPool share its leases"},
		{"quarantine", "remove it, or set spec.quarantine of the RailPool"},
	} {
		if key := ipam.At(other.key); key.Present() {
			key.Bad(other.hint, "the RailPool says it")
		}
	}
	if !rail.Present() {
		return &p
	}
	n := int(rail.Whole(0, 0, MaxRails-1))
	p.Rail = &n
	if rails > 1 {
		rail.Bad("remove it", "each of the %d rails has the addresses of the RailPool's rail of its number", rails)
	}
	return &p
}

// isRailPool says whether a RailPool can have a name: names of blocks begin with
// it.
func isRailPool(name string) bool {
	return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`).MatchString(name)
}
