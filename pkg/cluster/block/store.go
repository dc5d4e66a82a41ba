// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Object is an object of the API server that a node makes its own: a Block, or a lease of
// package sticky.
type Object[S any] struct {
	// Name is the lock: what two nodes could compete for is in it, and the API server has
	// one object of a name.
	Name string
	// UID distinguishes two objects with the same name. The store makes it.
	UID string
	// ResourceVersion changes whenever the object is written. The store makes it.
	ResourceVersion string
	// Created is the time of creation, by the store's clock. It is for people.
	Created time.Time
	Spec    S
}

// Owner is a node that has an object. The name alone is not enough, because another machine
// may get it. The id alone is not enough, because a cloned image has the same id.
type Owner struct {
	NodeName  string `json:"nodeName"`
	MachineID string `json:"machineID"`
}

// String returns what distinguishes two owners.
func (o Owner) String() string { return o.NodeName + "/" + o.MachineID }

// Objects keeps the objects of a kind. blocktest.Kind tests its contract. Every method may also
// return ErrUnknown, *BusyError, or, if waiting does not help, a *cnierr.Error. The store has
// its own deadline for each request, of a minute or more: a busy server must not get the same
// work twice. The context ends a call early, with ErrUnknown.
type Objects[S, Q any] interface {
	// Create makes the object of that name, unless there is one. If several nodes try,
	// only one succeeds. Create returns the stored object, with UID, ResourceVersion
	// and Created. ErrExists: the name is taken, perhaps by this node.
	Create(ctx context.Context, o Object[S]) (Object[S], error)
	// Get returns an object as it was at some time after the call. ErrNotFound.
	Get(ctx context.Context, name string) (Object[S], error)
	// List returns the objects that a query matches, in any order, with everything that
	// was written before the call, unless the query is for a Cached list.
	List(ctx context.Context, q Q) ([]Object[S], error)
	// Delete removes the object if it still has this UID and ResourceVersion.
	// ErrNotFound; ErrConflict: it has another.
	Delete(ctx context.Context, name, uid, resourceVersion string) error
}

// Store keeps the blocks of a cluster.
type Store interface {
	Objects[Spec, Query]
	// Peek returns a block as a Cached list would, and costs less than a write. The
	// block may have been changed, deleted or created since. ErrNotFound.
	Peek(ctx context.Context, name string) (Block, error)
	// Touch writes a block unchanged and returns it: with a new ResourceVersion, so that a
	// Delete with the old one fails. ErrNotFound; ErrConflict: it has another UID.
	Touch(ctx context.Context, name, uid string) (Block, error)
}

// Query selects the blocks of a List.
type Query struct {
	Pool      string
	Rack      string // "": of all racks
	MachineID string // "": of all machines
	Freshness Freshness
}

// Freshness is how new a List must be.
type Freshness string

// A Cached list may lack recent writes, and costs the server least
// (resourceVersion=0). A Latest list has everything that was written before the call.
const (
	Cached Freshness = "cached"
	Latest Freshness = "latest"
)

// The answers of a Store.
var (
	// ErrExists: the name is taken.
	ErrExists = errors.New("an object of this name exists")
	// ErrNotFound: there is no object of that name.
	ErrNotFound = errors.New("no object of this name exists")
	// ErrConflict: the object of that name is another one than the request says.
	ErrConflict = errors.New("it has changed")
	// ErrUnknown: there is no answer. The server may have done the request, or may do
	// it later.
	ErrUnknown = errors.New("no answer")
)

// BusyError says that the server has refused the request and has done nothing (429,
// or 503).
type BusyError struct {
	After time.Duration // its Retry-After; 0: none
}

// Error says for how long, if the server does.
func (e *BusyError) Error() string {
	if e.After == 0 {
		return "the server is busy"
	}
	return fmt.Sprintf("the server is busy, for %v", e.After)
}

// Nodes has all Node objects: for each name the machine-id that it reports
// (status.nodeInfo.machineID), "" while it reports none.
type Nodes map[string]string

// OwnerState is the state of the owner of a block.
type OwnerState string

// The states of an owner. Replaced: the machine was installed again or got another
// machine-id, and has the same name. Its Node object reports another machine-id than
// the block.
const (
	Here     OwnerState = "here"
	Gone     OwnerState = "gone"
	Replaced OwnerState = "replaced"
)

// Owner returns the state of an owner. A Node object without machine-id may be the owner's.
func (n Nodes) Owner(owner Owner) OwnerState {
	machine, there := n[owner.NodeName]
	switch {
	case !there:
		return Gone
	case machine != "" && machine != owner.MachineID:
		return Replaced
	}
	return Here
}

// Abandoned says whether an owner is gone with all its pods, or was replaced: then the pods
// are the new machine's. bound has the names of Missing that pods are bound to. Without any
// node, the list is probably wrong, and no owner is abandoned.
func (n Nodes) Abandoned(owner Owner, bound map[string]bool) bool {
	state := n.Owner(owner)
	return len(n) > 0 && (state == Replaced || state == Gone && !bound[owner.NodeName])
}

// Owners returns the owners of blocks.
func Owners(blocks []Block) (out []Owner) {
	for _, b := range blocks {
		out = append(out, b.Spec.Owner)
	}
	return out
}

// Missing returns the names of owners without a Node object, in order.
func (n Nodes) Missing(owners []Owner) []string {
	var out []string
	for _, o := range owners {
		if n.Owner(o) == Gone {
			out = append(out, o.NodeName)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// OwnerNow asks for the state of an owner. machine is Claimer.Machine. The errors are
// those of machine.
func OwnerNow(ctx context.Context, machine func(ctx context.Context, node string) (string, error), owner Owner) (OwnerState, error) {
	id, err := machine(ctx, owner.NodeName)
	switch {
	case errors.Is(err, ErrNotFound):
		return Gone, nil
	case err != nil:
		return Here, err
	}
	return Nodes{owner.NodeName: id}.Owner(owner), nil
}
