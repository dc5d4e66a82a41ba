// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

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

// MaxVLAN is the greatest number of a VLAN (IEEE 802.1Q); the least is 1.
const MaxVLAN = 4094

// VLAN is a VLAN on a NIC of the host.
type VLAN struct {
	ID  int      `json:"id"` // 1 to MaxVLAN
	NIC LinkName `json:"nic"`
}

// Name returns the name of the interface that roce makes for the VLAN: that of the NIC
// with the number behind it. If the kernel does not take such a long name, it is made from
// the number and a hash of the NIC's name.
func (v VLAN) Name() LinkName {
	name := fmt.Sprintf("%s.%d", v.NIC, v.ID)
	if len(name) <= longestIfName {
		return LinkName(name)
	}
	sum := sha256.Sum256([]byte(v.NIC))
	return LinkName(fmt.Sprintf("vlan%d.%s", v.ID, hex.EncodeToString(sum[:3])))
}

// contradictoryVLAN reports a VLAN where roce makes no child on a NIC of the host.
func contradictoryVLAN(r Request, f *strict.Faults) {
	switch {
	case r.VLAN == 0:
	case r.LinkInContainer:
		f.Add(cnierr.BadConfig, "vlan", "remove the key, or linkInContainer", "the VLAN would be in the pod's namespace, and is made on the host")
	case r.Prev != nil:
		f.Add(cnierr.BadConfig, "vlan", "set the VLAN in the plugin before roce", "the plugin before roce makes the interface")
	}
}
