// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package rival has the two other designs that integration/scale compares with blocks:
// their requests to an API server, in their order and with their waits.
//
// It is written from the sources of those projects but contains none of their code,
// and it runs only to be measured. It stands below integration/scale, which has the
// API server, a real one and a model. Read this file first, then node.go for what a
// node does.
package rival

import (
	"context"
	"fmt"
)

// Kind is a kind of object.
type Kind string

// The kinds.
const (
	Leases       Kind = "leases"
	Pools        Kind = "pools"
	Reservations Kind = "reservations"
)

// LeaseName is the name of the one lease.
const LeaseName = "addresses"

// PoolName is the name of the object of a rail's pool.
func PoolName(rail int) string { return fmt.Sprintf("rail-%d", rail) }

// Object is one of them.
type Object struct {
	Kind    Kind
	Name    string
	Version string // of a written one
	Holder  string // of a lease
	// Taken is how many addresses of a pool are: the next one, because no pod returns
	// any, is the lowest that is free.
	Taken int
}

// Key tells objects apart.
func (o Object) Key() string { return string(o.Kind) + "/" + o.Name }

// Objects is what is asked of an API server. The errors are block.Store's:
// ErrConflict is an update of another version than there is.
type Objects interface {
	Get(ctx context.Context, k Kind, name string) (Object, error)
	List(ctx context.Context, k Kind) error
	Create(ctx context.Context, o Object) error
	Update(ctx context.Context, o Object) (Object, error)
}
