// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package rebuild makes a lease database that cannot be read anew, from all
// that a node knows of its leases.
//
// It never touches a sound one, and never frees an address that a namespace
// has. It stands beside attach, above record, nsscan and ipam, which weighs
// what they say. This file is all there is.
package rebuild

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/ipam"
	"github.com/roce-cni/roce-cni/pkg/ipam/ledger"
	"github.com/roce-cni/roce-cni/pkg/kernel/nsscan"
	"github.com/roce-cni/roce-cni/pkg/record"
)

// Node is what is known.
type Node struct {
	Book    *ipam.Book
	Records record.Store
	// Scan returns the network namespaces but the host's own.
	Scan func(context.Context) (nsscan.Result, error)
}

// Plan returns what Do would do.
func (n Node) Plan(ctx context.Context) (ipam.Rebuilt, error) { return n.try(ctx, n.Book.PlanRebuild) }

// Do rebuilds the database; see ipam.Book.Rebuild. It waits, as long as the
// context allows, for calls that are at work: one may have leased an address
// that is not on record yet.
func (n Node) Do(ctx context.Context) (ipam.Rebuilt, error) { return n.try(ctx, n.Book.Rebuild) }

type rebuilder func(context.Context, func() (ipam.Evidence, error)) (ipam.Rebuilt, error)

// between is the time between two looks at calls that are at work. They wait
// for the database themselves and end at once when they get it.
const between = 50 * time.Millisecond

var errBusy = errors.New("a call for it still runs")

func (n Node) try(ctx context.Context, do rebuilder) (ipam.Rebuilt, error) {
	tick := time.NewTicker(between)
	defer tick.Stop()
	for {
		r, err := do(ctx, func() (ipam.Evidence, error) { return n.evidence(ctx) })
		if !errors.Is(err, errBusy) {
			return r, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return r, err
		}
	}
}

func (n Node) evidence(ctx context.Context) (ipam.Evidence, error) {
	busy, err := n.Records.Busy()
	if err != nil {
		return ipam.Evidence{}, err
	}
	if len(busy) > 0 {
		return ipam.Evidence{}, cnierr.New(cnierr.TryAgain, "look at container", string(busy[0]), "wait until the call is over, and try again", "%w", errBusy)
	}
	var e ipam.Evidence
	if e.Recorded, err = n.recorded(); err != nil {
		return e, err
	}
	there, err := n.Scan(ctx)
	e.Hidden = there.Hidden
	for _, ns := range there.Namespaces {
		addrs := make([]ipam.LinkAddr, 0, len(ns.Addrs))
		for _, a := range ns.Addrs {
			addrs = append(addrs, ipam.LinkAddr(a))
		}
		e.Namespaces = append(e.Namespaces, ipam.Namespace{Netns: ipam.Netns{Path: ns.Path, Dev: ns.ID.Dev, Ino: ns.ID.Ino}, Addrs: addrs})
	}
	return e, err
}

// recorded returns the leases of our pools that are on record. Of a record that
// cannot be read, the namespace shows the addresses.
func (n Node) recorded() ([]ledger.Holding, error) {
	keys, err := n.Records.List()
	if err != nil {
		return nil, err
	}
	var out []ledger.Holding
	for _, k := range keys {
		rec, err := n.Records.Load(k.ContainerID, k.IfName)
		switch {
		case errors.Is(err, record.ErrNotExist), cnierr.CodeOf(err) == cnierr.Unreadable:
			continue
		case err != nil:
			return nil, err
		case rec.IPAM == conf.PoolType && rec.BootID == n.Records.BootID && len(rec.Plan.Addresses()) > 0:
			out = append(out, holding(rec))
		}
	}
	return out, nil
}

// holding returns what a record says of leases. One that does not say of which
// pool they are keeps them from all.
func holding(rec record.Record) ledger.Holding {
	h := ledger.Holding{Owner: ipam.Owner{
		ContainerID: string(rec.ContainerID), IfName: string(rec.IfName), Network: rec.Network,
		PodNamespace: rec.Pod.Namespace, PodName: rec.Pod.Name, PodUID: rec.Pod.UID,
		Netns: ipam.Netns{Path: rec.Netns, Dev: rec.NetnsID.Dev, Ino: rec.NetnsID.Ino},
	}}
	pool := cmp.Or(rec.Pool, ledger.AnyPool)
	for _, a := range rec.Plan.Addresses() {
		h.Places = append(h.Places, ledger.Place{
			Spot: ledger.Spot{Pool: pool, Addr: a.Prefix.Addr()}, Since: rec.Saved, Early: a.Early,
		})
	}
	return h
}
