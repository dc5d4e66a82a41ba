// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Store keeps the blocks of a cluster. What it promises is what
// blocktest.Suite tests. Every method may also return ErrUnknown, *BusyError, or
// an error that waiting does not mend, such as a missing right, as a
// *cnierr.Error. A deadline for each request is the store's own, of a minute or
// more: a server that is busy must not get the same work twice. The context ends
// a call early, with ErrUnknown.
type Store interface {
	// Create makes the block of that name, unless there is one: of all who try,
	// one succeeds. It returns the block as it is kept, with UID,
	// ResourceVersion and Created. ErrExists: the name is taken, by whomever.
	Create(ctx context.Context, b Block) (Block, error)
	// Get returns a block as it was at some time after the call. ErrNotFound.
	Get(ctx context.Context, name string) (Block, error)
	// Peek returns a block as a Cached list would, for less than a write costs: it
	// may have changed, gone or come since. ErrNotFound.
	Peek(ctx context.Context, name string) (Block, error)
	// List returns the blocks that a query matches, in any order.
	List(ctx context.Context, q Query) ([]Block, error)
	// Touch writes a block as it is, so that its ResourceVersion is another one,
	// and returns it: a Delete that was decided on before fails. ErrNotFound:
	// there is none of that name. ErrConflict: there is, with another UID.
	Touch(ctx context.Context, name, uid string) (Block, error)
	// Delete removes the block if it still has this UID and ResourceVersion.
	// ErrNotFound; ErrConflict: it has not.
	Delete(ctx context.Context, name, uid, resourceVersion string) error
}

// Query is what a List is about.
type Query struct {
	Pool      string
	Rack      string // "": of all racks
	MachineID string // "": of all machines
	Freshness Freshness
}

// Freshness is how new a List must be.
type Freshness string

// A Cached list may lack what was written lately, and costs the server least
// (resourceVersion=0). The Latest one has everything that was written before the
// call.
const (
	Cached Freshness = "cached"
	Latest Freshness = "latest"
)

// The answers of a Store.
var (
	// ErrExists: the name is taken.
	ErrExists = errors.New("an object of this name exists")
	// ErrNotFound: there is no block of that name.
	ErrNotFound = errors.New("no object of this name exists")
	// ErrConflict: the block is not the one that was meant.
	ErrConflict = errors.New("it has changed")
	// ErrUnknown: there is no answer. What was asked for may have been done, or
	// may be done later.
	ErrUnknown = errors.New("no answer")
)

// BusyError says that the server has refused, and done nothing (429, or 503).
type BusyError struct {
	After time.Duration // its Retry-After; 0: it has not said
}

// Error says for how long.
func (e *BusyError) Error() string { return fmt.Sprintf("the server is busy, for %v", e.After) }
