// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package parent

import (
	"context"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plan"
)

// Pod is a pod's namespace and its host's.
type Pod struct {
	Links, Host Namespace
	NSID        int32 // the number by which the pod knows the host
}

// Carrier returns the link whose RDMA device a link of the pod uses that
// another plugin made: itself, or what it stands on in the pod, or in the host.
// device is what the runtime says that it is. Its errors are those of p.
func Carrier(ctx context.Context, p Pod, l rtnl.Link, device string) (plan.Link, error) {
	c, inPod := p.Links, true
	for range maxStack {
		if !child(l) || l.Lower.Index == 0 {
			break
		}
		if l.Lower.NSID != rtnl.NoNSID {
			if l.Lower.NSID != p.NSID {
				break // of a third namespace: nobody's RDMA device that we know
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

// maxStack bounds a walk down links that somebody may change at the same time
// (MAX_NEST_DEV).
const maxStack = 8

// child says whether the frames of a link are those of its lower link. A veth
// has one, too, but that is its other end.
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
