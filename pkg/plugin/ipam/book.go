// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package ipam leases addresses from ranges. It has one database for each node and a
// quarantine; Pick, which chooses an address, is pure.
//
// It never leases an address to two owners, never enumerates a subnet, never
// leases from a database that it cannot read, and never probes the network. It stands
// between the facts of the node and the plan. roce calls it in process, roce-ipam as
// an IPAM plugin. Read this file first, then acquire.go for the order in which an
// address is searched, and rails.go for addresses that belong together. Package ledger
// stores the leases.
package ipam

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
)

// The terms of a lease, from package ledger.
type (
	// Owner is the plugin that asks for an address for an attachment, with its pod.
	Owner = ledger.Owner
	// Key is what an Owner is known by.
	Key = ledger.Key
	// State is the state of a used address.
	State = ledger.State
)

// Subnet is one subnet of a pool. An attachment gets one address of it. If
// several subnets have the same prefix, it gets one address for each.
type Subnet struct {
	Prefix  netip.Prefix
	Ranges  []netrange.Range // what may be leased without a request; empty: all of Prefix
	Exclude []netrange.Range // what is never leased, requested or not
	Gateway netip.Addr       // never leased; zero: none
	// Group connects subnets of one family. An attachment gets addresses with
	// the same host index on all subnets of a group, if one is free on all.
	// Zero: no group.
	Group int
}

// Ask is a request for one address of each subnet.
type Ask struct {
	Pool    string
	Subnets []Subnet
	// Quarantine is how long no other owner gets a released address. Zero: no
	// quarantine.
	Quarantine time.Duration
	// RefuseQuarantined refuses an address in quarantine. It is for a caller that cannot ask
	// the network. The pod that had the address last still gets it back.
	RefuseQuarantined bool
	// Requested are addresses that the attachment must get, at most one in each subnet.
	// Subnets with the same prefix get theirs in this order. They may be outside of the
	// subnet's Ranges.
	Requested []netip.Addr
	Owner     Owner
	// Earlier are the addresses that the plugins before in the list gave.
	Earlier []netip.Addr
	// Reserved are the addresses of the host.
	Reserved []netip.Addr
}

// Lease is one leased address.
type Lease struct {
	Prefix  netip.Prefix // the address, with the length of its subnet
	Gateway netip.Addr
	// Early says that the quarantine of the address was not over: the network
	// must be asked before the address is used. It stays set while the address
	// is leased.
	Early bool
}

// Config has what a Book needs. Only Reaped and Log are optional.
type Config struct {
	Dir    string // the state directory, absolute
	BootID string // leases of another boot are dropped
	// Now returns CLOCK_BOOTTIME, which does not stop in a suspend and does not
	// jump.
	Now func() time.Duration
	// Observe returns a function that says whether a namespace still exists, and is
	// used in one transaction. An error means that this is not known. Use Observe.
	Observe func() func(netns.Ref) (bool, error)
	// Reaped, if there is one, is called for each owner with leases that were reaped, after the transaction.
	Reaped func(context.Context, Owner)
	Log    *slog.Logger
}

// Book has the leases of a node. Any number of goroutines and processes may
// call its methods at once. Each call is one transaction on the database
// leases.db in the state directory, and keeps it open no longer. Calls wait for
// one another as long as the context allows, and then fail with code 11.
//
// All methods return code 107 for a database that cannot be read, and code 5
// when the file system fails. A call that fails has changed nothing.
type Book struct {
	c     Config
	store ledger.Store
}

// New returns a Book. It does no I/O.
func New(c Config) *Book {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Reaped == nil {
		c.Reaped = func(context.Context, Owner) {}
	}
	return &Book{c, ledger.Store{Dir: c.Dir, BootID: c.BootID, Now: c.Now}}
}

// work is a transaction with what follows from it: before it has committed, nothing has
// happened.
type work struct {
	*ledger.Ledger
	alive  func(netns.Ref) (bool, error)
	reaped []Owner
	notes  []note
}

// note is a message to log.
type note struct {
	text string
	args []any
}

func (b *Book) work(l *ledger.Ledger) work { return work{Ledger: l, alive: b.c.Observe()} }

func (w *work) warn(text string, args ...any) { w.notes = append(w.notes, note{text, args}) }

// report tells what happened, after the transaction has committed.
func (b *Book) report(ctx context.Context, w work) {
	for _, n := range w.notes {
		b.c.Log.WarnContext(ctx, n.text, n.args...)
	}
	for _, o := range w.reaped {
		b.c.Reaped(ctx, o)
	}
}

// ignoreNone is for calls that treat a missing database as an empty one.
func ignoreNone(err error) error {
	if errors.Is(err, ledger.ErrNone) {
		return nil
	}
	return err
}
