// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"io/fs"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/kernel/parent"
	"github.com/roce-cni/roce-cni/pkg/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plan"
)

// HostFacts returns what Facts would for a pod whose namespace is fresh and
// empty: it looks at the namespace of the calling thread alone and needs no
// privileges. A parent inside the pod is taken as it is named. Errors are
// those of Facts.
func HostFacts(ctx context.Context, req conf.Request, sys fs.FS) (facts []plan.Facts, faults []error, err error) {
	for _, one := range req.Each() {
		f, err := hostFacts(ctx, one, sys)
		facts, faults = append(facts, f), append(faults, err)
	}
	return facts, faults, nil
}

func hostFacts(ctx context.Context, req conf.Request, sys fs.FS) (plan.Facts, error) {
	if req.Prev != nil {
		return adoptedHost(req), nil
	}
	host, err := rtnl.Dial()
	if err != nil {
		return plan.Facts{}, classify("open socket of", "host", err)
	}
	defer host.Close()
	addrs, err := host.Addresses(ctx, 0)
	if err != nil {
		return plan.Facts{}, classify("read addresses of", "host", err)
	}
	facts := plan.Facts{HostAddrs: unique(addrs), Pod: plan.PodFacts{IPv6: hasIPv6()}}
	if req.LinkInContainer {
		if req.Parent.Name == "" {
			return plan.Facts{}, cnierr.New(cnierr.BadParent, "select master", "linkInContainer",
				"name the interface in master", "which interface of the pod is meant can be known only in the pod")
		}
		facts.Parent = plan.Link{Name: req.Parent.Name, MTU: max(req.MTU, 1500)}
		return facts, nil
	}
	l, err := parent.Select(ctx, host, addrs, req, rdmaSystem, sys)
	if err != nil {
		return plan.Facts{}, classify("read facts of", "master", err)
	}
	layers, err := layersFor(ctx, host, l, req)
	if err != nil {
		return plan.Facts{}, classify("read facts of", l.Name, err)
	}
	facts.Parent = plan.Link{Name: conf.LinkName(l.Name), MAC: ethernet(l), MTU: l.MTU, Layers: layers}
	return facts, nil
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

// NetnsID returns the identity of the namespace at a path. It returns
// ErrNetnsGone as Open does.
func NetnsID(path string) (plan.NetnsID, error) {
	fd, id, err := openNetns(path)
	if err != nil {
		return plan.NetnsID{}, netnsError(path, err)
	}
	return id, classify("close", path, unix.Close(fd))
}

// hasIPv6 says whether the kernel has IPv6, though links may have it disabled.
func hasIPv6() bool {
	_, err := os.Stat(procSys + "/net/ipv6")
	return err == nil
}
