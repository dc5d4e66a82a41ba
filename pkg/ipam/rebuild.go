// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/ipam/ledger"
	"github.com/roce-cni/roce-cni/pkg/netrange"
)

// Evidence is what a node knows of its leases beside the database.
type Evidence struct {
	// Recorded is what attachments have on record. Since is when the record
	// was written: after the lease, and before the address could be another's.
	Recorded []ledger.Holding
	// Namespaces are all of the node but the host's own.
	Namespaces []Namespace
	Hidden     int // how many processes may have namespaces that are not among them
}

// Namespace is a network namespace and the addresses that are in it.
type Namespace struct {
	Netns
	Addrs []LinkAddr
}

// LinkAddr is an address that an interface has.
type LinkAddr struct {
	IfName string
	Addr   netip.Addr
}

// Source is how a rebuilt database comes to know of an address.
type Source int

// The sources, the better the later.
const (
	FromFile      Source = iota // it is in what can be read of the damaged file
	FromRecord                  // the attachment has it on record
	FromNamespace               // a namespace has it, and nothing says of which pool it is
)

// String returns the words that rocectl repair prints.
func (s Source) String() string {
	switch s {
	case FromFile:
		return "the damaged file"
	case FromRecord:
		return "its record"
	case FromNamespace:
		return "its namespace"
	}
	return "unknown"
}

// Rebuilt is what a database is rebuilt to.
type Rebuilt struct {
	Why     error     // what is wrong with it; nil: nothing, and the rest is empty
	Kept    string    // where the damaged file is afterwards
	Looked  int       // how many namespaces were looked into
	Hidden  int       // how many processes may have others
	Entries []Finding // what the new database has, ordered by pool, family and address
}

// Finding is a used address of a rebuilt database.
type Finding struct {
	Entry
	From Source
}

// PlanRebuild returns what Rebuild would do now, and does not do it.
func (b *Book) PlanRebuild(ctx context.Context, look func() (Evidence, error)) (Rebuilt, error) {
	return b.rebuild(ctx, look, func(claims) func(*ledger.Ledger) error { return nil })
}

// Rebuild makes a database that cannot be read, or contradicts itself, anew:
// from what can be read of it and from what look, which is called while nothing
// can be leased or released, knows beside it. A sound database, and none, is
// left alone; look is not called then.
//
// An address that the evidence shows in a namespace is leased in the new
// database: to whom it was, or else to its namespace, and then no pool leases
// it. If two claim an address, the later has it.
func (b *Book) Rebuild(ctx context.Context, look func() (Evidence, error)) (Rebuilt, error) {
	return b.rebuild(ctx, look, claims.fill)
}

func (b *Book) rebuild(ctx context.Context, look func() (Evidence, error), fill func(claims) func(*ledger.Ledger) error) (Rebuilt, error) {
	var out Rebuilt
	err := b.store.Rebuild(ctx, func(why error, left ledger.Remains) (func(*ledger.Ledger) error, error) {
		e, err := look()
		if err != nil {
			return nil, err
		}
		now := b.store.Now()
		c := b.claims(left, e, now)
		out = Rebuilt{Why: why, Kept: b.store.Damaged(), Looked: len(e.Namespaces), Hidden: e.Hidden, Entries: c.findings(now)}
		return fill(c), nil
	})
	if err != nil {
		return Rebuilt{}, ignoreNone(err)
	}
	return out, nil
}

// claim is what is said of one address.
type claim struct {
	state State
	at    time.Duration // when that began
	early bool
	owner Owner
	from  Source
}

// claims has one for each address: what is true of it, as far as can be known.
type claims map[ledger.Spot]claim

// claims weighs everything that is known.
func (b *Book) claims(left ledger.Remains, e Evidence, now time.Duration) claims {
	c := claims{}
	for _, r := range left.Resting {
		c.add(r.Spot, claim{r.State, r.Freed, false, r.Owner, FromFile})
	}
	c.addAll(left.Holdings, FromFile)
	c.addAll(e.Recorded, FromRecord)
	inUse := e.inUse()
	for s, is := range c {
		used := inUse[use{is.owner.Netns.Ino, s.Addr}]
		if is.state == ledger.Leased && is.from == FromFile && !used && b.gone(is.owner.Netns, e.Namespaces) {
			// It may be one of long ago that lay in a page that was given up.
			is.state, is.at = ledger.AtRest, now
			c[s] = is
		}
	}
	c.keepOthers(e.Namespaces, inUse, now)
	return c
}

func (c claims) addAll(holdings []ledger.Holding, from Source) {
	for _, h := range holdings {
		for _, p := range h.Places {
			c.add(p.Spot, claim{ledger.Leased, p.Since, p.Early, h.Owner, from})
		}
	}
}

// add believes what is said later, and of what is said of one moment, the last
// that is added.
func (c claims) add(s ledger.Spot, is claim) {
	if was, ok := c[s]; !ok || was.at <= is.at {
		c[s] = is
	}
}

// use is an address in a namespace.
type use struct {
	ino  uint64
	addr netip.Addr
}

func (e Evidence) inUse() map[use]bool {
	out := map[use]bool{}
	for _, n := range e.Namespaces {
		for _, a := range n.Addrs {
			out[use{n.Ino, a.Addr}] = true
		}
	}
	return out
}

// gone says for certain that a namespace is gone: another one is visible where
// it was.
func (b *Book) gone(n Netns, there []Namespace) bool {
	folder := filepath.Dir(n.Path)
	visible := slices.ContainsFunc(there, func(o Namespace) bool { return sameFolder(filepath.Dir(o.Path), folder) })
	if n.Path == "" || !visible {
		return false
	}
	alive, err := b.alive(n)
	return err == nil && !alive
}

// keepOthers keeps every address of a namespace that is not leased to somebody
// in it from all pools.
func (c claims) keepOthers(namespaces []Namespace, inUse map[use]bool, now time.Duration) {
	leased := map[use]bool{}
	for s, is := range c {
		if is.state == ledger.Leased {
			leased[use{is.owner.Netns.Ino, s.Addr}] = true
		}
	}
	others := map[netip.Addr]Owner{}
	for _, n := range namespaces {
		for _, a := range n.Addrs {
			if leased[use{n.Ino, a.Addr}] || !leasable(a.Addr) {
				continue
			}
			keeper := ledger.Keeper(n.Netns, a.IfName)
			if was, ok := others[a.Addr]; ok && was.Netns != n.Netns {
				keeper = ledger.Keeper(Netns{}, a.IfName) // whichever goes first, it is not free
			}
			others[a.Addr] = keeper
		}
	}
	for a, keeper := range others {
		c[ledger.Spot{Pool: ledger.AnyPool, Addr: a}] = claim{ledger.Leased, now, false, keeper, FromNamespace}
	}
	// The file may have told an old story, in which it still is, or may come to
	// be again, another's.
	maps.DeleteFunc(c, func(s ledger.Spot, is claim) bool {
		_, ok := others[s.Addr]
		return ok && is.from == FromFile && (is.state != ledger.Leased || !inUse[use{is.owner.Netns.Ino, s.Addr}])
	})
}

// leasable says whether a subnet of a pool may have an address.
func leasable(a netip.Addr) bool {
	return !a.IsLinkLocalUnicast() && !slices.ContainsFunc(netrange.Specials(), func(s netrange.Special) bool { return s.Contains(a) })
}

// fill returns what files the claims in an empty database.
func (c claims) fill() func(*ledger.Ledger) error {
	return func(l *ledger.Ledger) error {
		for s, is := range c {
			if is.state == ledger.Leased {
				continue
			}
			if err := l.RestoreResting(ledger.Resting{Spot: s, State: is.state, Freed: is.at, Owner: is.owner}); err != nil {
				return err
			}
		}
		for _, h := range c.holdings() {
			if err := l.Restore(h); err != nil {
				return err
			}
		}
		return nil
	}
}

// holdings returns the leases by attachment. The owner is as the best and
// latest claim has it: it changes when a runtime repeats an ADD.
func (c claims) holdings() map[conf.Attachment]ledger.Holding {
	out := map[conf.Attachment]ledger.Holding{}
	best := map[conf.Attachment]claim{}
	for s, is := range c {
		if is.state != ledger.Leased {
			continue
		}
		at := is.owner.Attachment()
		h, was := out[at], best[at]
		if len(h.Places) == 0 || cmp.Or(cmp.Compare(is.from, was.from), cmp.Compare(is.at, was.at)) > 0 {
			h.Owner, best[at] = is.owner, is
		}
		h.Places = append(h.Places, ledger.Place{Spot: s, Since: is.at, Early: is.early})
		out[at] = h
	}
	return out
}

func (c claims) findings(now time.Duration) []Finding {
	out := make([]Finding, 0, len(c))
	for s, is := range c {
		out = append(out, Finding{Entry{s.Pool, s.Addr, is.state, is.early, now - is.at, is.owner}, is.from})
	}
	slices.SortFunc(out, func(a, b Finding) int { return cmp.Or(cmp.Compare(a.Pool, b.Pool), a.Addr.Compare(b.Addr)) })
	return out
}
