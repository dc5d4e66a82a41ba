// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf/strict"
)

// HostLink is the key "hostLink": the attachment is the first network of the pod, and a
// veth pair connects the pod with its node.
type HostLink struct {
	// Routes are what the pod reaches through its node, beside the addresses of the node
	// and 169.254.0.0/16: the ClusterIPs. Masked, each once.
	Routes []netip.Prefix
}

// HostLinkInterface is the name of the pod's end of the veth pair.
const HostLinkInterface LinkName = "host0"

const (
	maxHostRoutes = 64
	hostLinkHint  = `write the CIDRs of the cluster's Services, such as {"routes": ["10.96.0.0/12"]}; [] if the pod needs no ClusterIP`
)

// hostLink reads the key "hostLink", nil if it is absent.
func hostLink(v strict.Value) *HostLink {
	if !v.Present() {
		return nil
	}
	o := v.Object()
	if !o.Present() {
		return &HostLink{}
	}
	defer o.Strict(nil)
	routes := o.At("routes")
	routes.Missing(hostLinkHint)
	if routes.Kind() == strict.AString {
		routes.Bad(hostLinkHint, "%s is not possible: roce does not know the CIDRs of the cluster's Services", routes.Raw())
		return &HostLink{}
	}
	list := routes.List()
	if len(list) > maxHostRoutes {
		routes.Bad("", "%d entries, the limit is %d", len(list), maxHostRoutes)
		return &HostLink{}
	}
	out := &HostLink{}
	for _, e := range list {
		p, ok := e.Prefix()
		switch {
		case !ok:
		case p.Bits() == 0:
			e.Bad("the pod has its default route through the gateway of its subnet", "%s is the default route", p)
		case slices.Contains(out.Routes, p):
			e.Bad("keep one of the two", "%s appears twice", p)
		case p.Addr().IsMulticast() || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast():
			e.Bad("remove it: 169.254.0.0/16 is always reached through the node", "%s is no range of ClusterIPs", p)
		default:
			out.Routes = append(out.Routes, p)
		}
	}
	return out
}

// Linked says whether hostLink is about a rail: the interface that the runtime asked for.
func (r Request) Linked(one Rail) bool {
	return r.HostLink != nil && r.IfName != "" && one.IfName == r.IfName
}

// withDefault gives the rail of hostLink the default route of the pod.
func (r Request) withDefault(one Rail) Routing {
	one.Routing.DefaultRoute = one.Routing.DefaultRoute || r.Linked(one)
	return one.Routing
}

// contradictoryHostLink reports settings with which hostLink cannot work.
func contradictoryHostLink(r Request, f *strict.Faults) {
	if r.HostLink == nil {
		return
	}
	const key = "hostLink"
	switch linked := slices.IndexFunc(r.Rails, r.Linked); {
	case r.Prev != nil:
		f.Add(cnierr.BadConfig, key, "remove it, or set master to have roce make the interface", "another plugin makes the interface")
	case r.IPAM.Type == "":
		f.Add(cnierr.BadConfig, key, "set ipam.type", "without ipam the pod has no address that its node could reach")
	case r.IfName == "": // STATUS knows no interface
	case linked < 0:
		f.Add(cnierr.BadConfig, key, fmt.Sprintf(`leave ifName out of rails, or set it to %q for the rail that the node is to reach`, r.IfName),
			"no rail has the name %q, which the runtime asks for", r.IfName)
	case r.Rails[linked].Routing.Mode == RoutingNone:
		f.Add(cnierr.BadConfig, key, "set routing.mode to policy or main", "with the mode none there are no routes")
	}
}

// misplacedHostRoutes reports routes of hostLink that lie in a subnet of the pod: the pod
// would send packets for its neighbours to its node.
func misplacedHostRoutes(r Request, f *strict.Faults) {
	if r.HostLink == nil {
		return
	}
	for i, p := range r.HostLink.Routes {
		for _, one := range r.Rails {
			for _, s := range one.Subnets {
				if s.Prefix.Bits() <= p.Bits() && s.Prefix.Contains(p.Addr()) {
					f.Add(cnierr.BadConfig, fmt.Sprintf("hostLink.routes[%d]", i), "give only CIDRs of Services: hosts in the subnet are reached without the node",
						"%s lies in the subnet %s of the pod", p, s.Prefix)
				}
			}
		}
	}
}
