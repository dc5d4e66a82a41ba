// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lease

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// pools leases from the node's own address pools.
type pools Allocator

// key returns the key under which the program holds the leases of an attachment.
func (p pools) key(network string, at conf.Attachment) ipam.Key {
	return ipam.Key{ContainerID: string(at.ContainerID), IfName: string(at.IfName), Network: network, Program: p.Program}
}

// Acquire implements source.
func (p pools) Acquire(ctx context.Context, req conf.Request, rails []plan.Rail) ([]plan.Rail, error) {
	leases, err := p.Book.Acquire(ctx, p.ask(req, rails))
	return leased(rails, leases), p.why(ctx, req, rails, err)
}

// Preview returns what Acquire would give now, and changes nothing.
func (p pools) Preview(ctx context.Context, req conf.Request, rails []plan.Rail) ([]plan.Rail, error) {
	leases, err := p.Book.Preview(ctx, p.ask(req, rails))
	return leased(rails, leases), p.why(ctx, req, rails, err)
}

// Reject implements source. An address that was asked for has no substitute.
func (p pools) Reject(ctx context.Context, req conf.Request, rails []plan.Rail, taken []plan.Target) (bool, error) {
	ask := p.ask(req, rails)
	more := true
	addrs := make([]netip.Addr, len(taken))
	for i, t := range taken {
		addrs[i], more = t.Addr, more && !slices.Contains(ask.Requested, t.Addr)
	}
	return more, p.Book.Reject(ctx, ask, addrs)
}

// Release implements source.
func (p pools) Release(ctx context.Context, rec record.Record) error {
	return p.Book.Release(ctx, p.key(rec.Network, rec.Attachment), netns.Ref{Path: rec.Netns, ID: rec.NetnsID})
}

// check says which addresses of a record are not leased to its attachment any more.
// Another attachment may get these addresses.
func (p pools) check(ctx context.Context, rec record.Record) error {
	entries, err := p.Book.List(ctx, "")
	if err != nil {
		return err
	}
	owner := p.key(rec.Network, rec.Attachment)
	var errs []error
	for _, a := range rec.Plan.Addresses() {
		held := slices.ContainsFunc(entries, func(e ipam.Entry) bool {
			return e.Addr == a.Prefix.Addr() && e.State == ledger.Leased && e.Owner.Key() == owner
		})
		if !held {
			errs = append(errs, cnierr.New(cnierr.Damaged, "check lease of", a.Prefix.Addr().String(),
				"delete the pod: the address may be given to another one; rocectl pool list shows who has it",
				"it is not leased to interface %q of container %q", rec.IfName, rec.ContainerID))
		}
	}
	return errors.Join(errs...)
}

// Status returns an error if a subnet of the pool has no address left that ADD could
// lease, or if the leases cannot be read. With RefuseQuarantined, ADD leases no address in
// quarantine.
func (p pools) Status(ctx context.Context, req conf.Request, rails []plan.Rail) error {
	usage, err := p.Book.Usage(ctx, p.ask(req, rails))
	if err != nil || req.Status.Pool == conf.Off {
		return err
	}
	return p.exhausted(req.IPAM, usage)
}

// why explains the error of an exhausted RailPool: it says how full the node's blocks
// are. Other nodes own the other addresses of the subnets.
func (p pools) why(ctx context.Context, req conf.Request, rails []plan.Rail, err error) error {
	if req.IPAM.RailPool == nil || cnierr.CodeOf(err) != cnierr.PoolExhausted {
		return err
	}
	usage, _ := p.Book.Usage(ctx, p.ask(req, rails)) // without usage, err says enough
	return cmp.Or(p.exhausted(req.IPAM, usage), err)
}

// exhausted returns the error when a subnet has no address left that ADD may lease.
func (p pools) exhausted(c conf.IPAM, usage []ipam.Usage) error {
	i := slices.IndexFunc(usage, func(u ipam.Usage) bool {
		return u.Free.Sign() <= 0 && (u.Quarantined == 0 || p.RefuseQuarantined && u.Quarantined == u.Refused)
	})
	if i < 0 {
		return nil
	}
	u, are := usage[i], "leased"
	if c.RailPool == nil {
		return cnierr.New(cnierr.PoolExhausted, "lease from pool", c.Pool, "", "subnet %s is exhausted: %s", u.Prefix, u)
	}
	if u.Quarantined > 0 {
		are = "leased or in quarantine"
	}
	return cnierr.New(cnierr.PoolExhausted, "lease from RailPool", c.RailPool.Name,
		"wait: rocectl agent claims another block for the node, unless the RailPool is full, at fault or being deleted: kubectl get railpools, kubectl describe railpool; kubectl get railblocks shows who has the blocks",
		"all %d addresses of the node's blocks in %s are %s", u.Leased+u.Quarantined, u.Prefix, are)
}

// ask returns the request in the form that package ipam needs: the subnets of all
// rails, one after the other. The n-th subnets of a family get the same host index on
// all rails.
func (p pools) ask(req conf.Request, rails []plan.Rail) ipam.Ask {
	ask := ipam.Ask{
		Pool:              req.IPAM.LeasePool(),
		Quarantine:        req.IPAM.Quarantine,
		RefuseQuarantined: p.RefuseQuarantined,
		Reserved:          rails[0].Facts.HostAddrs,
		Owner: ipam.Owner{
			ContainerID: string(req.ContainerID), IfName: string(req.IfName), Network: req.Network, Program: p.Program,
			PodNamespace: req.Pod.Namespace, PodName: req.Pod.Name, PodUID: req.Pod.UID,
			Netns: netns.Ref{Path: req.Netns, ID: rails[0].Facts.Pod.Netns},
		},
	}
	if req.Before != nil {
		for _, ip := range req.Before.IPs {
			a, _ := netip.AddrFromSlice(ip.Address.IP) // an invalid one is equal to no lease
			ask.Earlier = append(ask.Earlier, a.Unmap())
		}
	}
	for _, r := range rails {
		var seen [2]int // IPv4, IPv6
		for _, s := range r.Subnets {
			sub := ipam.Subnet{Prefix: s.Prefix, Ranges: s.Ranges, Exclude: s.Exclude, Gateway: s.Gateway}
			family := 0
			if s.Prefix.Addr().Is6() {
				family = 1
			}
			if seen[family]++; len(rails) > 1 {
				sub.Group = 2*seen[family] + family
			}
			ask.Subnets = append(ask.Subnets, sub)
		}
		ask.Requested = append(ask.Requested, r.Requested...)
	}
	return ask
}

// leased returns the rails with their leases. The leases have the order of the
// subnets.
func leased(rails []plan.Rail, leases []ipam.Lease) []plan.Rail {
	out := slices.Clone(rails)
	for i, r := range rails {
		out[i].Lease = plan.Lease{Routes: r.Routes}
		for range min(len(r.Subnets), len(leases)) {
			l := leases[0]
			leases = leases[1:]
			out[i].Lease.Addresses = append(out[i].Lease.Addresses, plan.LeasedAddress{Prefix: l.Prefix, Gateway: l.Gateway, Early: l.Early})
		}
	}
	return out
}
