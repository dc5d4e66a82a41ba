// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
)

// watched is a store that counts its answers. Claimers wait for an answer without
// limit. watched logs once that there is no answer.
type watched struct {
	store block.Store
	log   *slog.Logger
	count func(op, answer string)

	mu     sync.Mutex
	silent bool
}

// note counts an answer.
func (w *watched) note(op string, err error) {
	if errors.Is(err, context.Canceled) { // this node ended it
		return
	}
	got := answer(err)
	w.count(op, got)
	w.mu.Lock()
	defer w.mu.Unlock()
	silent := got == "none" || got == "busy"
	switch {
	case silent && !w.silent:
		w.log.Warn("the API server does not answer, or is busy: the node keeps what it has, and the agent tries again", "op", op, "error", err)
	case !silent && w.silent:
		w.log.Info("the API server answers again")
	}
	w.silent = silent
}

// Create is block.Store's.
func (w *watched) Create(ctx context.Context, b block.Block) (block.Block, error) {
	got, err := w.store.Create(ctx, b)
	w.note("create", err)
	return got, err
}

// Get is block.Store's.
func (w *watched) Get(ctx context.Context, name string) (block.Block, error) {
	got, err := w.store.Get(ctx, name)
	w.note("get", err)
	return got, err
}

// Peek is block.Store's.
func (w *watched) Peek(ctx context.Context, name string) (block.Block, error) {
	got, err := w.store.Peek(ctx, name)
	w.note("peek", err)
	return got, err
}

// List is block.Store's.
func (w *watched) List(ctx context.Context, q block.Query) ([]block.Block, error) {
	got, err := w.store.List(ctx, q)
	w.note("list", err)
	return got, err
}

// Touch is block.Store's.
func (w *watched) Touch(ctx context.Context, name, uid string) (block.Block, error) {
	got, err := w.store.Touch(ctx, name, uid)
	w.note("touch", err)
	return got, err
}

// Delete is block.Store's.
func (w *watched) Delete(ctx context.Context, name, uid, resourceVersion string) error {
	err := w.store.Delete(ctx, name, uid, resourceVersion)
	w.note("delete", err)
	return err
}

// watchedLeases is the same for leases.
type watchedLeases struct {
	*watched
	leases sticky.Store
}

// Create is sticky.Store's.
func (w watchedLeases) Create(ctx context.Context, l sticky.Lease) (sticky.Lease, error) {
	got, err := w.leases.Create(ctx, l)
	w.note("create_lease", err)
	return got, err
}

// Get is sticky.Store's.
func (w watchedLeases) Get(ctx context.Context, name string) (sticky.Lease, error) {
	got, err := w.leases.Get(ctx, name)
	w.note("get_lease", err)
	return got, err
}

// List is sticky.Store's.
func (w watchedLeases) List(ctx context.Context, q sticky.Query) ([]sticky.Lease, error) {
	got, err := w.leases.List(ctx, q)
	w.note("list_leases", err)
	return got, err
}

// Update is sticky.Store's.
func (w watchedLeases) Update(ctx context.Context, l sticky.Lease) (sticky.Lease, error) {
	got, err := w.leases.Update(ctx, l)
	w.note("update_lease", err)
	return got, err
}

// Delete is sticky.Store's.
func (w watchedLeases) Delete(ctx context.Context, name, uid, resourceVersion string) error {
	err := w.leases.Delete(ctx, name, uid, resourceVersion)
	w.note("delete_lease", err)
	return err
}
