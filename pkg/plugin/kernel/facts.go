// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/look"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/parent"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// Facts reads what the plan needs to know of each of the request's rails, except the
// node's identity. It changes nothing. It finds problems now that would otherwise fail
// later, after an address was leased. The fault of a rail says why its parent cannot
// serve. err is an error that concerns all rails; see parent.Select. The facts share
// their slices: do not write to them.
//
// With parents given by name it takes five round trips, for any number of rails: the
// parents and the addresses of the host, and the links, routes and rules of the pod. It
// takes one more if a parent is selected, or is a VLAN or a bond.
func (k *Kernel) Facts(ctx context.Context, req conf.Request) ([]plan.RailFacts, error) {
	if req.Prev != nil {
		f, err := k.adoptFacts(ctx, req)
		return []plan.RailFacts{{Facts: f, Fault: err}}, nil
	}
	const action = "read facts of"
	addrs, err := k.host.Addresses(ctx, 0)
	if err != nil {
		return nil, classify(action, "host", err)
	}
	place := parent.Place{Namespace: k.host, Addrs: addrs, Ask: k.system(req.LinkInContainer), Sys: k.sys}
	if req.LinkInContainer {
		place.Namespace = inPod{k.pod, k.host}
		if place.Addrs, err = k.pod.Addresses(ctx, 0); err != nil {
			return nil, classify(action, k.path, err)
		}
		addrs = append(addrs, place.Addrs...) // the parents' must not be leased either
	}
	rails, err := onParents(ctx, place, req, addrs)
	if err != nil {
		return nil, err
	}
	if req.Mode == conf.L2 && !req.LinkInContainer {
		k.keepModes(ctx, rails)
	}
	in, err := look.AtPod(ctx, k.pod)
	if err != nil {
		return nil, classify(action, k.path, err)
	}
	for i, one := range req.Rails {
		rails[i].Pod = k.podFacts(in, one.IfName)
	}
	return rails, nil
}

// inPod is the pod's namespace. The physical functions of its NICs are in the host's.
type inPod struct {
	*rtnl.Conn
	host *rtnl.Conn
}

// VFs implements parent.Namespace.
func (n inPod) VFs(ctx context.Context, pf string) ([]rtnl.VF, error) { return n.host.VFs(ctx, pf) }

// onParents returns the facts of each rail except those of the pod. addrs are
// the addresses that must not be leased.
func onParents(ctx context.Context, place parent.Place, req conf.Request, addrs []rtnl.Address) ([]plan.RailFacts, error) {
	links, faults, err := parent.Select(ctx, place, req)
	if err != nil {
		return nil, classify("read facts of", "master", err)
	}
	taken := unique(addrs)
	var rails []plan.RailFacts
	for i, l := range links {
		rails = append(rails, plan.RailFacts{Facts: plan.Facts{Parent: l, HostAddrs: taken}, Fault: faults[i]})
	}
	return rails, nil
}

// system returns the function that asks for the RDMA devices that are visible
// in the namespace of the parent.
func (k *Kernel) system(inPod bool) parent.System {
	return func(ctx context.Context) (s nldev.System, err error) {
		if !inPod {
			return rdmaSystem(ctx)
		}
		err = k.Enter(func() error {
			s, err = rdmaSystem(ctx)
			return err
		})
		return s, err
	}
}

// rdmaSystem asks in the namespace of the calling thread.
func rdmaSystem(ctx context.Context) (nldev.System, error) {
	c, err := nldev.Dial()
	if err != nil {
		return nldev.System{}, err
	}
	defer c.Close()
	return c.System(ctx)
}

// unique returns the addresses, each once, sorted.
func unique(as []rtnl.Address) []netip.Addr {
	var out []netip.Addr
	for _, a := range as {
		out = append(out, a.Prefix.Addr())
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// podFacts returns what a plan for an interface of that name needs to know of
// the pod.
func (k *Kernel) podFacts(in look.Pod, name conf.LinkName) plan.PodFacts {
	f := in.For(name)
	f.Netns, f.IPv6 = k.ID(), hasIPv6()
	return f
}
