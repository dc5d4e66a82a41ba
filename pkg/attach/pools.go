// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/ipam"
	"github.com/roce-cni/roce-cni/pkg/plan"
	"github.com/roce-cni/roce-cni/pkg/record"
)

// Pools leases from the node's own address pools.
type Pools struct{ Book *ipam.Book }

// NeedsLink implements Leaser.
func (Pools) NeedsLink() bool { return false }

// Acquire implements Leaser.
func (p Pools) Acquire(ctx context.Context, req conf.Request, f plan.Facts) (plan.Lease, error) {
	leases, err := p.Book.Acquire(ctx, Ask(req, f))
	return leased(req, leases), err
}

// Preview returns what Acquire would give now, and changes nothing.
func (p Pools) Preview(ctx context.Context, req conf.Request, f plan.Facts) (plan.Lease, error) {
	leases, err := p.Book.Preview(ctx, Ask(req, f))
	return leased(req, leases), err
}

// Reject implements Leaser. An address that was asked for has no substitute.
func (p Pools) Reject(ctx context.Context, req conf.Request, taken []plan.Target) (bool, error) {
	addrs := make([]netip.Addr, 0, len(taken))
	more := true
	for _, t := range taken {
		addrs = append(addrs, t.Addr)
		more = more && !slices.Contains(req.IPAM.Requested, t.Addr)
	}
	return more, p.Book.Reject(ctx, req.IPAM.Pool, addrs, ipam.Attachment{ContainerID: string(req.ContainerID), IfName: string(req.IfName)})
}

// Release implements Leaser.
func (p Pools) Release(ctx context.Context, rec record.Record) error {
	at := ipam.Attachment{ContainerID: string(rec.ContainerID), IfName: string(rec.IfName)}
	return p.Book.Release(ctx, at, ipam.Netns{Path: rec.Netns, Dev: rec.NetnsID.Dev, Ino: rec.NetnsID.Ino})
}

// Ask returns the request in the words of the address pools.
func Ask(req conf.Request, f plan.Facts) ipam.Ask {
	subnets := make([]ipam.Subnet, 0, len(req.IPAM.Subnets))
	for _, s := range req.IPAM.Subnets {
		subnets = append(subnets, ipam.Subnet(s))
	}
	return ipam.Ask{
		Pool:       req.IPAM.Pool,
		Subnets:    subnets,
		Quarantine: req.IPAM.Quarantine,
		Requested:  req.IPAM.Requested,
		Reserved:   f.HostAddrs,
		Owner: ipam.Owner{
			ContainerID: string(req.ContainerID), IfName: string(req.IfName), Network: req.Network,
			PodNamespace: req.Pod.Namespace, PodName: req.Pod.Name, PodUID: req.Pod.UID,
			Netns: ipam.Netns{Path: req.Netns, Dev: f.Pod.Netns.Dev, Ino: f.Pod.Netns.Ino},
		},
	}
}

func leased(req conf.Request, leases []ipam.Lease) plan.Lease {
	out := plan.Lease{Routes: req.IPAM.Routes}
	for _, l := range leases {
		out.Addresses = append(out.Addresses, plan.LeasedAddress{Prefix: l.Prefix, Gateway: l.Gateway, Early: l.Early})
	}
	return out
}
