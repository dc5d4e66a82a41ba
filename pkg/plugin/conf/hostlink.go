// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

// HostLink is the key "hostLink": the attachment is the first network of the pod, and a
// veth pair connects the pod with its node.
type HostLink struct {
	// Routes are what the pod reaches through its node, beside the addresses of the node
	// and node-local DNS: the ClusterIPs. Masked, each once.
	Routes []netip.Prefix
	// Auto says that the CIDRs of the cluster's Services belong to Routes, too. Only the
	// node knows them: Request.WithServices adds them.
	Auto bool
}

// HostLinkInterface is the name of the pod's end of the veth pair.
const HostLinkInterface LinkName = "host0"

const (
	maxHostRoutes = 64
	// AutoRoutes is the element of hostLink.routes for the CIDRs of the cluster's Services.
	AutoRoutes   = "auto"
	hostRoutes   = "hostLink.routes"
	hostLinkHint = `write {"routes": ["auto"]} if rocectl agent runs on the nodes, or the CIDRs of the cluster's Services, such as ["10.96.0.0/12"]; [] if the pod needs no ClusterIP`
)

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
		routes.Bad(hostLinkHint, "%s is not in a list", routes.Raw())
		return &HostLink{}
	}
	list := routes.List()
	if len(list) > maxHostRoutes {
		routes.Bad("", "%d entries, the limit is %d", len(list), maxHostRoutes)
		return &HostLink{}
	}
	out := &HostLink{}
	for _, e := range list {
		out.read(e)
	}
	return out
}

func (h *HostLink) read(e strict.Value) {
	if string(e.Raw()) == `"`+AutoRoutes+`"` {
		if h.Auto {
			e.Bad("keep one of the two", "%q appears twice", AutoRoutes)
		}
		h.Auto = true
		return
	}
	p, ok := e.Prefix()
	switch {
	case !ok:
	case p.Bits() == 0:
		e.Bad("the pod has its default route through the gateway of its subnet", "%s is the default route", p)
	case slices.Contains(h.Routes, p):
		e.Bad("keep one of the two", "%s appears twice", p)
	case p.Bits() < widestService && !p.Addr().IsMulticast():
		e.Bad("give only CIDRs of Services: other packets leave through the gateway of the pod's subnet", "%s is wider than /%d", p, widestService)
	case !linked(p):
		e.Bad("remove it: give CIDRs of Services, and addresses of 169.254.0.0/16 at which the node offers something", "%s is neither", p)
	default:
		h.Routes = append(h.Routes, p)
	}
}

// widestService is the shortest prefix through which a pod may reach its node. 0.0.0.0/1 and
// 128.0.0.0/1 together would be a default route.
const widestService = 8

// Service says whether ClusterIPs may be in a prefix: it is masked, no wider than
// widestService, and no range with a meaning of its own.
func Service(p netip.Prefix) bool {
	return linked(p) && !p.Addr().IsLinkLocalUnicast() && !Metadata(p)
}

// linked says whether a pod can reach a prefix through its node: ClusterIPs, or link-local
// IPv4 addresses of the node.
func linked(p netip.Prefix) bool {
	a := p.Addr()
	return p == p.Masked() && p.Bits() >= widestService && !a.Is4In6() && !a.IsMulticast() && !a.IsLoopback() &&
		(!a.IsLinkLocalUnicast() || a.Is4())
}

// Metadata says whether a prefix has an address of the metadata service of a cloud, which gives
// the credentials of the node to each program that reaches it.
func Metadata(p netip.Prefix) bool {
	return slices.ContainsFunc([]string{
		"169.254.169.254", // most clouds
		"fd00:ec2::254",   // AWS
		"fd20:ce::254",    // Google
		"168.63.129.16",   // Azure
		"100.100.100.200", // Alibaba
		"169.254.0.23",    // Tencent
	}, func(a string) bool { return p.Contains(netip.MustParseAddr(a)) })
}

// WithServices completes a request that has "auto" in its routes with the CIDRs of the
// cluster's Services. It does not change r. The error is BadConfig: for more routes than hostLink may
// have, and for a CIDR in a subnet of the pod. Subnets that are not known yet are compared
// in Request.WithSubnets.
func (r Request) WithServices(cidrs []netip.Prefix) (Request, error) {
	link := *r.HostLink
	for _, p := range cidrs {
		if !slices.Contains(link.Routes, p) {
			link.Routes = append(slices.Clip(link.Routes), p)
		}
	}
	r.HostLink = &link
	f := &strict.Faults{}
	if n := len(link.Routes); n > maxHostRoutes {
		f.Add(cnierr.BadConfig, hostRoutes, `write larger CIDRs in place of "auto"`, "%d with those of the cluster's Services, the limit is %d", n, maxHostRoutes)
	}
	misplacedHostRoutes(r, f)
	if err := f.Err(operation, r.Network); err != nil {
		return Request{}, err
	}
	return r, nil
}

// Linked says whether hostLink is about a rail: the interface that the runtime asked for.
func (r Request) Linked(one Rail) bool {
	return r.HostLink != nil && r.IfName != "" && one.IfName == r.IfName
}

func (r Request) withDefault(one Rail) Routing {
	one.Routing.DefaultRoute = one.Routing.DefaultRoute || r.Linked(one)
	return one.Routing
}

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
	case ifNameProblem(string(r.IfName)) != "": // it is reported; STATUS knows no interface
	case linked < 0:
		f.Add(cnierr.BadConfig, key, fmt.Sprintf(`leave ifName out of rails, or set it to %q for the rail that the node is to reach`, r.IfName),
			"no rail has the name %q, which the runtime asks for", r.IfName)
	case slices.ContainsFunc(r.Rails, func(one Rail) bool { return one.IfName == HostLinkInterface }):
		f.Add(cnierr.BadConfig, key, "choose another name for the interface of the rail", "the pod's end of the link has the name %q", HostLinkInterface)
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
	for _, p := range r.HostLink.Routes {
		for _, one := range r.Rails {
			for _, s := range one.Subnets {
				if s.Prefix.Bits() <= p.Bits() && s.Prefix.Contains(p.Addr()) {
					f.Add(cnierr.BadConfig, hostRoutes, "give only CIDRs of Services, and choose another subnet if it is one: hosts in the subnet are reached without the node",
						"%s lies in the subnet %s of the pod", p, s.Prefix)
				}
			}
		}
	}
}
