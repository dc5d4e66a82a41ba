// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package parent

import (
	"context"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// Pod is a pod's namespace and its host's.
type Pod struct {
	Links, Host Namespace
	NSID        int32 // the number by which the pod knows the host
}

// Carrier returns the link with the RDMA device that the pod uses through l. l is
// a link of the pod that another plugin made. The result is l itself, or a link
// below it, in the pod or in the host. device is the name that the runtime gives
// for the device of l. The errors of Carrier are those of p.
func Carrier(ctx context.Context, p Pod, l rtnl.Link, device string) (plan.Link, error) {
	c, inPod := p.Links, true
	for range maxStack {
		if !child(l) || l.Lower.Index == 0 {
			break
		}
		if l.Lower.NSID != rtnl.NoNSID {
			if l.Lower.NSID != p.NSID {
				break // it is in a third namespace: we know no RDMA device there
			}
			c, inPod = p.Host, false
		}
		var err error
		if l, err = c.LinkByIndex(ctx, l.Lower.Index); err != nil {
			return plan.Link{}, err
		}
		if !inPod {
			break // Layers knows the way down from here
		}
	}
	layers, err := Layers(ctx, c, l)
	if err != nil {
		return plan.Link{}, err
	}
	if device == "" && inPod && (l.Bus == "pci" || l.Bus == "auxiliary") {
		device = l.Dev
	}
	return plan.Link{Name: conf.LinkName(l.Name), MAC: ethernet(l), MTU: l.MTU, Layers: layers, Device: device, InPod: inPod}, nil
}

// maxStack bounds a walk down links that can change at the same time
// (MAX_NEST_DEV).
const maxStack = 8

// child says whether a link sends its frames through its lower link. A veth is
// no child: its lower link is its other end.
func child(l rtnl.Link) bool {
	return slices.Contains([]string{"macvlan", "macvtap", "ipvlan", "ipvtap", "vlan"}, l.Kind)
}

// ethernet returns the link's address, zero if it has no Ethernet address.
func ethernet(l rtnl.Link) conf.MAC {
	if len(l.Address) != len(conf.MAC{}) {
		return conf.MAC{}
	}
	return conf.MAC(l.Address)
}
