// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package repair makes again what the attachments of a node have lost, forgets those that are
// gone, and rebuilds a lease database that cannot be read.
//
// It works from the records of the attachments, and for the database also from the addresses
// in the network namespaces of the node. It never touches a sound database or what other
// programs have set, and never makes an address free that a namespace has. attachments.go has
// the attachments, this file the database.
package repair

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// Node is the database, and the other sources of information about the node's
// leases.
type Node struct {
	Leases  ledger.Store
	Records record.Store
	// Scan returns all network namespaces but the host's own, and the number of processes
	// that this one may not inspect: their namespaces may be missing. It is 0 for root of the node.
	Scan func(context.Context) (all []Namespace, hidden int, err error)
}

// Rebuilt is the content of the rebuilt database.
type Rebuilt struct {
	Why    error  // the damage; nil: there is none, and the other fields are empty
	Kept   string // where the damaged file is afterwards
	Looked int    // how many namespaces were looked into
	Hidden int    // the number of processes that Scan could not inspect
	// Leased is what the records say.
	Leased []ledger.Holding
	// Aside are addresses that a namespace has and that no record explains.
	Aside []ledger.Aside
}

// Plan returns what Do would do now. It does not do it.
func (n Node) Plan(ctx context.Context) (Rebuilt, error) { return n.try(ctx, false) }

// Do rebuilds a database that cannot be read or contradicts itself. It leaves a sound
// database alone, and makes none if there is none. If the process is killed, either the
// old or the new database is there.
//
// Do waits for running calls, as long as the context allows: one of them may have
// leased an address that no record has yet. Then it returns code 11. It returns code 5
// for a namespace or a record that cannot be read, unless the record is damaged.
func (n Node) Do(ctx context.Context) (Rebuilt, error) { return n.try(ctx, true) }

// between is the time between two looks at running calls. These wait for the
// database themselves, and end at once when they get it.
const between = 50 * time.Millisecond

var errBusy = errors.New("a call for it still runs")

func (n Node) try(ctx context.Context, do bool) (Rebuilt, error) {
	tick := time.NewTicker(between)
	defer tick.Stop()
	for {
		r, err := n.once(ctx, do)
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

func (n Node) once(ctx context.Context, do bool) (out Rebuilt, err error) {
	err = n.Leases.Rebuild(ctx, func(why error) (func(*ledger.Ledger), error) {
		recorded, err := n.recorded()
		if err != nil {
			return nil, err
		}
		there, hidden, err := n.Scan(ctx)
		if err != nil {
			return nil, err
		}
		out = Rebuilt{Why: why, Kept: n.Leases.Damaged(), Looked: len(there), Hidden: hidden}
		out.Leased = latest(recorded)
		out.Aside = unexplained(out.Leased, there)
		if !do {
			return nil, nil
		}
		return out.fill, nil
	})
	if errors.Is(err, ledger.ErrNone) {
		err = nil
	}
	return out, err
}

// fill stores everything in an empty database.
func (r Rebuilt) fill(l *ledger.Ledger) {
	for _, h := range r.Leased {
		l.Restore(h)
	}
	for _, a := range r.Aside {
		l.SetAside(a)
	}
}

// recorded returns the leases of our pools that records have. Only roce has records. It
// skips a record that cannot be read, or that is too old to name the pool: its addresses
// are found in the namespace.
func (n Node) recorded() ([]ledger.Holding, error) {
	busy, err := n.Records.Busy()
	if err != nil {
		return nil, err
	}
	if len(busy) > 0 {
		return nil, cnierr.New(cnierr.TryAgain, "look at container", string(busy[0]), "wait until the call is over, and try again", "%w", errBusy)
	}
	var out []ledger.Holding
	for rec, err := range n.Records.All() {
		switch {
		case cnierr.CodeOf(err) == cnierr.Unreadable:
			continue
		case err != nil:
			return nil, err
		case rec.IPAM == conf.PoolType && rec.Pool != "" && rec.BootID == n.Records.BootID:
			out = append(out, holding(rec))
		}
	}
	return out, nil
}

func holding(rec record.Record) ledger.Holding {
	h := ledger.Holding{Owner: ledger.Owner{
		ContainerID: string(rec.ContainerID), IfName: string(rec.IfName), Network: rec.Network, Program: conf.PluginType,
		PodNamespace: rec.Pod.Namespace, PodName: rec.Pod.Name, PodUID: rec.Pod.UID,
		Netns: netns.Ref{Path: rec.Netns, ID: rec.NetnsID},
	}}
	for _, a := range rec.Plan.Addresses() {
		h.Places = append(h.Places, ledger.Place{
			Spot: ledger.Spot{Pool: rec.Pool, Addr: a.Prefix.Addr()}, Since: rec.Saved, Early: a.Early,
		})
	}
	return h
}

// latest decides about an address that two records have: the later record keeps
// it. It drops holdings without addresses.
func latest(recorded []ledger.Holding) []ledger.Holding {
	since := map[ledger.Spot]time.Duration{}
	for _, h := range recorded {
		for _, p := range h.Places {
			since[p.Spot] = max(since[p.Spot], p.Since)
		}
	}
	var out []ledger.Holding
	for _, h := range recorded {
		h.Places = slices.DeleteFunc(h.Places, func(p ledger.Place) bool {
			at, open := since[p.Spot]
			if !open || p.Since < at {
				return true
			}
			delete(since, p.Spot) // if two records have the same time, the first keeps it
			return false
		})
		if len(h.Places) > 0 {
			out = append(out, h)
		}
	}
	return out
}

type use struct {
	ino  uint64
	addr netip.Addr
}

// unexplained returns the addresses in namespaces that no interface there has leased,
// in the order of the addresses.
func unexplained(leased []ledger.Holding, there []Namespace) []ledger.Aside {
	explained := map[use]bool{}
	for _, h := range leased {
		for _, p := range h.Places {
			explained[use{h.Owner.Netns.Ino, p.Addr}] = true
		}
	}
	found := map[netip.Addr]ledger.Owner{}
	for _, n := range there {
		for _, a := range n.Addrs {
			if explained[use{n.ID.Ino, a.Addr}] || !leasable(a.Addr) {
				continue
			}
			o := ledger.Owner{IfName: a.IfName, Netns: n.Ref}
			if a.Marked {
				o.Program = conf.PluginType
			}
			if was, ok := found[a.Addr]; ok && was.Netns != o.Netns {
				o = ledger.Owner{} // several namespaces: when one of them goes, the address is not free
			}
			found[a.Addr] = o
		}
	}
	out := make([]ledger.Aside, 0, len(found))
	for addr, o := range found {
		out = append(out, ledger.Aside{Addr: addr, Owner: o})
	}
	slices.SortFunc(out, func(a, b ledger.Aside) int { return a.Addr.Compare(b.Addr) })
	return out
}

// leasable says whether a pool can have an address at all.
func leasable(a netip.Addr) bool {
	return !a.IsLinkLocalUnicast() && !slices.ContainsFunc(netrange.Specials(), func(s netrange.Special) bool { return s.Contains(a) })
}

// Namespace is a network namespace with the addresses in it.
type Namespace struct {
	netns.Ref
	Addrs []Addr
}

// Addr is an address that an interface has.
type Addr struct {
	IfName string
	Addr   netip.Addr
	Marked bool // roce made the interface, as its alias says
}

const needsRoot = "run it as root on the node itself, where all processes and namespaces are visible"

// Scan is Scan of a Node, without the namespace of the calling thread; see netns.Each. proc is
// the path of procfs. It never reports a namespace as empty that it could not read.
//
// It leaves out a namespace that vanishes during the scan. It returns an error of code IO for a
// namespace that it cannot look into.
func Scan(ctx context.Context, proc string) (all []Namespace, hidden int, err error) {
	own, err := netns.OwnID()
	if err != nil {
		return nil, 0, cnierr.New(cnierr.IO, "look at namespace", "of this thread", needsRoot, "%w", err)
	}
	for ns, err := range netns.Each(proc) {
		switch {
		case errors.Is(err, netns.ErrHidden):
			hidden++
			continue
		case err != nil:
			return nil, 0, cnierr.New(cnierr.IO, "look for namespaces in", proc, needsRoot, "%w", err)
		case ns.ID == own:
			continue
		}
		n := Namespace{Ref: ns.Ref}
		err := ns.Enter(func() (err error) {
			n.Addrs, err = addresses(ctx)
			return err
		})
		if err != nil {
			return nil, 0, cnierr.New(cnierr.IO, "read addresses of namespace", ns.Path, needsRoot, "%w", err)
		}
		all = append(all, n)
	}
	return all, hidden, ctx.Err()
}

// addresses returns the addresses in the calling thread's namespace.
func addresses(ctx context.Context) ([]Addr, error) {
	c, err := rtnl.Dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	links, err := c.Links(ctx)
	if err != nil {
		return nil, err
	}
	of := map[int32]rtnl.Link{}
	for _, l := range links {
		of[l.Index] = l
	}
	addrs, err := c.Addresses(ctx, 0)
	out := make([]Addr, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, Addr{of[a.Index].Name, a.Prefix.Addr(), strings.HasPrefix(of[a.Index].Alias, plan.MarkPrefix)})
	}
	return out, err
}
