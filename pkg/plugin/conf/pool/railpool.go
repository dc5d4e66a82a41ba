// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package pool

import (
	"regexp"

	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

// RailPool is a pool that spans nodes. The agent of the node writes into a file
// what this node may lease of the pool, and how long the quarantine is.
type RailPool struct {
	Name string
	// Rail is the pool's rail that the only interface of a network is on, nil
	// if the configuration does not say it.
	Rail *int
}

// ReadRailPool reads the keys "railPool" and "rail" of ipam. rails is the
// number of the network's rails, at most 1 for a network with one interface. It
// returns nil if there is no railPool.
func ReadRailPool(ipam *strict.Object, rails int) *RailPool {
	v, rail := ipam.At("railPool"), ipam.At("rail")
	if !v.Present() {
		if rail.Present() {
			rail.Bad(`write "railPool": "compute", or remove the key`, "has no effect without railPool")
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
			key.Bad(other.hint, "the RailPool defines it")
		}
	}
	if !rail.Present() {
		return &p
	}
	n := int(rail.Whole(0, 0, MaxRails-1))
	p.Rail = &n
	if rails > 1 {
		rail.Bad("remove it", "each of the %d rails uses the RailPool's rail with the same number", rails)
	}
	return &p
}

// OfRailPool returns the name of the node's pool that has the leases of a RailPool. No
// configuration can have this name: there, the name of a pool has no colon.
func OfRailPool(name string) string { return "rail:" + name }

// isRailPool says whether a RailPool can have a name. The limit is lower than
// for other objects, because names of blocks begin with the name of the pool.
func isRailPool(name string) bool {
	return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`).MatchString(name)
}
