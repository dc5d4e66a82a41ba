// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/ipam"
	"github.com/roce-cni/roce-cni/pkg/ipam/ledger"
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

// Check says which addresses of a record are not leased to its attachment any
// more, and so may be given to another one.
func (p Pools) Check(ctx context.Context, rec record.Record) error {
	entries, err := p.Book.List(ctx, "")
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range rec.Plan.Addresses {
		held := slices.ContainsFunc(entries, func(e ipam.Entry) bool {
			return e.Addr == a.Prefix.Addr() && e.State == ledger.Leased &&
				e.Owner.ContainerID == string(rec.ContainerID) && e.Owner.IfName == string(rec.IfName)
		})
		if !held {
			errs = append(errs, cnierr.New(cnierr.Damaged, "check lease of", a.Prefix.Addr().String(),
				"delete the pod: the address may be given to another one; rocectl pool list shows who has it",
				"it is not leased to interface %q of container %q", rec.IfName, rec.ContainerID))
		}
	}
	return errors.Join(errs...)
}

// Held returns the attachments that hold leases for a network.
func (p Pools) Held(ctx context.Context, network string) ([]record.Key, error) {
	entries, err := p.Book.List(ctx, "")
	var out []record.Key
	for _, e := range entries {
		k := record.Key{ContainerID: conf.ContainerID(e.Owner.ContainerID), IfName: conf.LinkName(e.Owner.IfName)}
		if e.State == ledger.Leased && e.Owner.Network == network && !slices.Contains(out, k) {
			out = append(out, k)
		}
	}
	return out, err
}

// Holds says whether an attachment holds leases for a network, or, since the
// database was rebuilt, its namespace does.
func (p Pools) Holds(ctx context.Context, network string, at record.Key, netns plan.NetnsID) (bool, error) {
	entries, err := p.Book.List(ctx, "")
	who := ipam.Attachment{ContainerID: string(at.ContainerID), IfName: string(at.IfName)}
	keeper := ledger.Keeper(ipam.Netns{Ino: netns.Ino}, who.IfName).Attachment()
	return slices.ContainsFunc(entries, func(e ipam.Entry) bool {
		owner := e.Owner.Attachment()
		return e.State == ledger.Leased && (owner == who && e.Owner.Network == network || owner == keeper)
	}), err
}

// Status says that a subnet of the pool has no address left, resting ones
// included, or that the leases cannot be read.
func (p Pools) Status(ctx context.Context, req conf.Request, f plan.Facts) error {
	usage, err := p.Book.Usage(ctx, Ask(req, f))
	if err != nil || req.Status.Pool == conf.Off {
		return err
	}
	for _, u := range usage {
		if u.Free.Sign() <= 0 && u.Resting == 0 {
			return cnierr.New(cnierr.PoolExhausted, "lease from pool", req.IPAM.Pool, "", "subnet %s is exhausted: %s", u.Prefix, u)
		}
	}
	return nil
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
