// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package ipam leases addresses from ranges. It has one database for each node and a
// quarantine; Pick, which chooses an address, is pure.
//
// It never leases an address to two attachments, never enumerates a subnet, never
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

	"github.com/roce-cni/roce-cni/pkg/ipam/ledger"
	"github.com/roce-cni/roce-cni/pkg/netrange"
)

// What a lease is about, in the words of package ledger.
type (
	// Owner is who asks for an address and what for.
	Owner = ledger.Owner
	// Netns is a network namespace. The leases of one without path are never
	// reaped.
	Netns = ledger.Netns
	// State is what a used address is doing.
	State = ledger.State
)

// Subnet is one subnet of a pool. An attachment gets one address of it, and
// another one for each further subnet with the same prefix.
type Subnet struct {
	Prefix  netip.Prefix
	Ranges  []netrange.Range // what may be leased unasked; empty: all of Prefix
	Exclude []netrange.Range // what may not, asked for or not
	Gateway netip.Addr       // never leased; zero: none
	// Group is the subnets, all of one family, of which an attachment gets
	// addresses with the same host part whenever one is free on all. Zero: none.
	Group int
}

// Ask is a request for one address of each subnet.
type Ask struct {
	Pool    string
	Subnets []Subnet
	// Quarantine is how long an address rests before it is given to another
	// owner. Zero: it does not.
	Quarantine time.Duration
	// RestedOnly refuses an address whose quarantine is not over, for a caller that
	// cannot ask the wire. The pod that had the address last gets it back all the same.
	RestedOnly bool
	// Requested are addresses that the attachment must get, at most one in
	// each subnet; the subnets of one prefix get theirs in this order. They may lie outside of the subnet's Ranges.
	Requested []netip.Addr
	Owner     Owner
	// Reserved are the addresses of the host.
	Reserved []netip.Addr
}

// Lease is one leased address.
type Lease struct {
	Prefix  netip.Prefix // the address, with the length of its subnet
	Gateway netip.Addr
	// Early says that the address has not rested as long as it should: the
	// wire must be asked before it is used. It stays so while it is leased.
	Early bool
}

// Config is what a Book works with. All fields but Log are needed.
type Config struct {
	Dir    string // the state directory, absolute
	BootID string // the leases of another boot are forgotten
	// Now returns CLOCK_BOOTTIME, which neither stops in a suspend nor jumps.
	Now func() time.Duration
	// Alive says whether the path of a Netns still names that namespace. An
	// error means that it cannot tell. NetnsAlive is the real one.
	Alive func(Netns) (bool, error)
	Log   *slog.Logger
}

// Book is the leases of a node. Its methods may be called by any number of
// goroutines and processes at once: each is one transaction of the database
// leases.db in the state directory, which is open no longer than that. They
// wait for one another as long as the context allows, then fail with code 11.
//
// All return code 107 for a database that cannot be read and code 5 when the
// file system fails; a call that fails has changed nothing.
type Book struct {
	store ledger.Store
	alive func(Netns) (bool, error)
	log   *slog.Logger
}

// New returns a Book. It does no I/O.
func New(c Config) *Book {
	log := c.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Book{
		store: ledger.Store{Dir: c.Dir, BootID: c.BootID, Now: c.Now},
		alive: c.Alive,
		log:   log,
	}
}

// work is a transaction with what housekeeping needs beside the tables.
type work struct {
	*ledger.Ledger
	alive func(Netns) (bool, error)
	notes []note
}

// note is something to log once the transaction is done: before that it has
// not happened.
type note struct {
	text string
	args []any
}

func (b *Book) work(l *ledger.Ledger) work { return work{Ledger: l, alive: b.alive} }

func (w *work) warn(text string, args ...any) { w.notes = append(w.notes, note{text, args}) }

func (w *work) report(ctx context.Context, log *slog.Logger) {
	for _, n := range w.notes {
		log.WarnContext(ctx, n.text, n.args...)
	}
}

// ignoreNone is for calls to which no database is an empty one.
func ignoreNone(err error) error {
	if errors.Is(err, ledger.ErrNone) {
		return nil
	}
	return err
}
