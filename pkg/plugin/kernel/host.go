// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/parent"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// HostFacts returns what Facts would return for a pod with a new, empty
// namespace. It looks only at the namespace of the calling thread and needs no
// privileges. It takes a parent inside the pod as the configuration names it.
// Errors are those of Facts.
func HostFacts(ctx context.Context, req conf.Request, sys fs.FS) ([]plan.RailFacts, error) {
	if req.Prev != nil {
		return []plan.RailFacts{{Facts: adoptedHost(req)}}, nil
	}
	host, err := rtnl.Dial()
	if err != nil {
		return nil, classify("open socket of", "host", err)
	}
	defer host.Close()
	addrs, err := host.Addresses(ctx, 0)
	if err != nil {
		return nil, classify("read addresses of", "host", err)
	}
	var rails []plan.RailFacts
	if req.LinkInContainer {
		rails = unseen(req, addrs)
	} else if rails, err = onParents(ctx, parent.Place{Namespace: host, Addrs: addrs, Ask: rdmaSystem, Sys: sys}, req, addrs); err != nil {
		return nil, err
	}
	for i := range rails {
		rails[i].Pod.IPv6 = hasIPv6()
	}
	return rails, nil
}

// unseen returns the facts of rails with parents inside a pod.
func unseen(req conf.Request, addrs []rtnl.Address) (rails []plan.RailFacts) {
	taken := unique(addrs)
	for _, one := range req.Rails {
		var fault error
		if one.Parent.Name == "" {
			fault = cnierr.New(cnierr.BadParent, "select master", "linkInContainer",
				"name the interface in master", "only a look into the pod's namespace can find this interface")
		}
		l := plan.Link{Name: one.Parent.Name, MTU: max(req.MTU, 1500)}
		rails = append(rails, plan.RailFacts{Facts: plan.Facts{Parent: l, HostAddrs: taken}, Fault: fault})
	}
	return rails
}

// HostAddrs returns all addresses of the namespace of the calling thread, each
// once, sorted.
func HostAddrs(ctx context.Context) ([]netip.Addr, error) {
	host, err := rtnl.Dial()
	if err != nil {
		return nil, classify("open socket of", "host", err)
	}
	defer host.Close()
	addrs, err := host.Addresses(ctx, 0)
	return unique(addrs), classify("read addresses of", "host", err)
}

// HasAddress says whether an interface in the namespace at a path has an address that
// reaches beyond its link. It returns ErrNetnsGone, too.
func HasAddress(ctx context.Context, path string, name conf.LinkName) (has bool, err error) {
	ns, err := netns.Open(path)
	if err != nil {
		return false, netnsError(path, err)
	}
	defer ns.Close()
	err = ns.Enter(func() error {
		pod, err := rtnl.Dial()
		if err != nil {
			return err
		}
		defer pod.Close()
		l, err := pod.LinkByName(ctx, string(name))
		if err != nil {
			return ignore(err, unix.ENODEV)
		}
		addrs, err := pod.Addresses(ctx, l.Index)
		has = slices.ContainsFunc(addrs, func(a rtnl.Address) bool { return a.Scope == unix.RT_SCOPE_UNIVERSE })
		return err
	})
	return has, classify("read addresses of", string(name), err)
}

// NetnsID returns the identity of the namespace at a path. Like Open, it
// returns ErrNetnsGone.
func NetnsID(path string) (netns.ID, error) {
	ns, err := netns.Open(path)
	if err != nil {
		return netns.ID{}, netnsError(path, err)
	}
	ns.Close()
	return ns.ID, nil
}

// hasIPv6 says whether the kernel has IPv6. Links may have it disabled.
func hasIPv6() bool {
	_, err := os.Stat(procSys + "/net/ipv6")
	return err == nil
}
