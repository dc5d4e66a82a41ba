// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"errors"
	"sync"

	"github.com/roce-cni/roce-cni/integration/scale/rival"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// request is what an API server is asked for, by what it costs.
type request string

const (
	createBlock request = "create block"
	meetBlock   request = "create block that exists"
	getBlock    request = "get block"
	peekBlock   request = "get block, cached"
	touchBlock  request = "touch block"
	listMine    request = "list of a machine's blocks" // for each block that there is
	listOwn     request = "latest list of a machine's" // as above
	listAll     request = "list of all blocks"         // for each block in the list

	getLease  request = "get lease"
	putLease  request = "update lease"
	loseLease request = "update lease in vain"

	getPool   request = "get pool" // as the next three, for each address that is taken
	putPool   request = "update pool"
	losePool  request = "update pool in vain"
	listPools request = "list of pools"

	missReservation   request = "get reservation that is not there"
	createReservation request = "create reservation"

	refused request = "refusal"

	// failedADD is no request.
	failedADD request = "failed ADD"
	// unanswered is one that the model does not know.
	unanswered request = "no answer"
)

// conflicting and writing are the requests that are counted as such.
func (r request) conflicting() bool { return r == meetBlock || r == loseLease || r == losePool }

func (r request) writing() bool {
	switch r {
	case createBlock, touchBlock, putLease, putPool, createReservation:
		return true
	}
	return r.conflicting()
}

func (r request) listing() bool {
	return r == listMine || r == listOwn || r == listAll || r == listPools
}

// tally counts requests. It is for any number of goroutines.
type tally struct {
	mu    sync.Mutex
	count map[request]int
}

func newTally() *tally { return &tally{count: map[request]int{}} }

func (t *tally) add(r request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count[r]++
}

// answered adds a request by its answer.
func (t *tally) answered(err error, good, conflict request) {
	switch {
	case err == nil, errors.Is(err, block.ErrNotFound):
		t.add(good)
	case errors.Is(err, block.ErrExists), errors.Is(err, block.ErrConflict):
		t.add(conflict)
	case errors.As(err, new(*block.BusyError)):
		t.add(refused)
	default:
		t.add(unanswered)
	}
}

// countedBlocks counts what a store is asked for.
type countedBlocks struct {
	block.Store
	tally *tally
}

func (c countedBlocks) Create(ctx context.Context, b block.Block) (block.Block, error) {
	out, err := c.Store.Create(ctx, b)
	c.tally.answered(err, createBlock, meetBlock)
	return out, err
}

func (c countedBlocks) Get(ctx context.Context, name string) (block.Block, error) {
	out, err := c.Store.Get(ctx, name)
	c.tally.answered(err, getBlock, getBlock)
	return out, err
}

func (c countedBlocks) Peek(ctx context.Context, name string) (block.Block, error) {
	out, err := c.Store.Peek(ctx, name)
	c.tally.answered(err, peekBlock, peekBlock)
	return out, err
}

func (c countedBlocks) List(ctx context.Context, q block.Query) ([]block.Block, error) {
	out, err := c.Store.List(ctx, q)
	r := listOf(q)
	c.tally.answered(err, r, r)
	return out, err
}

// listOf is what a list costs, beside what it brings.
func listOf(q block.Query) request {
	switch {
	case q.MachineID == "":
		return listAll
	case q.Freshness == block.Latest:
		return listOwn
	}
	return listMine
}

func (c countedBlocks) Touch(ctx context.Context, name, uid string) (block.Block, error) {
	out, err := c.Store.Touch(ctx, name, uid)
	c.tally.answered(err, touchBlock, touchBlock)
	return out, err
}

// countedObjects counts what is asked for.
type countedObjects struct {
	rival.Objects
	tally *tally
}

func (c countedObjects) Get(ctx context.Context, k rival.Kind, name string) (rival.Object, error) {
	out, err := c.Objects.Get(ctx, k, name)
	r := map[rival.Kind]request{rival.Leases: getLease, rival.Pools: getPool, rival.Reservations: missReservation}[k]
	c.tally.answered(err, r, r)
	return out, err
}

func (c countedObjects) List(ctx context.Context, k rival.Kind) error {
	err := c.Objects.List(ctx, k)
	c.tally.answered(err, listPools, listPools)
	return err
}

func (c countedObjects) Create(ctx context.Context, o rival.Object) error {
	err := c.Objects.Create(ctx, o)
	c.tally.answered(err, createReservation, createReservation)
	return err
}

func (c countedObjects) Update(ctx context.Context, o rival.Object) (rival.Object, error) {
	out, err := c.Objects.Update(ctx, o)
	if o.Kind == rival.Leases {
		c.tally.answered(err, putLease, loseLease)
	} else {
		c.tally.answered(err, putPool, losePool)
	}
	return out, err
}
