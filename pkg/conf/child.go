// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import "github.com/roce-cni/roce-cni/pkg/conf/strict"

// childMode reads "child" and "mode". The modes of an ipvlan other than l2 have no ARP, so
// that no gateway and no other host could be asked.
func childMode(top *strict.Object) Mode {
	mode := top.At("mode")
	if kind := strict.Choice(top.At("child"), Bridge.Kind(), L2.Kind()); kind == L2.Kind() {
		return strict.Choice(mode, L2)
	}
	return strict.Choice(mode, Bridge, Private, VEPA, Passthru)
}

// bcQueueLen reads "bcqueuelen", which an ipvlan does not have.
func bcQueueLen(v strict.Value, mode Mode) uint32 {
	n := uint32(v.Whole(0, 0, maxBCQueueLen))
	if mode == L2 && n != 0 {
		v.Bad("remove the key", "an ipvlan has no queue for broadcasts")
	}
	return n
}
