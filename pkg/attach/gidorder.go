// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/apply"
	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plan"
	"github.com/roce-cni/roce-cni/pkg/record"
)

// The kernel gives a GID the first free index of the table (ib_cache_gid_add,
// find_gid). If two pods came and went at the same time, the GID indexes of one pod
// would differ from rail to rail. NCCL takes one index for all rails.

// doAligned does the operations of an attachment. If it has several rails on shared
// devices, then from its first address to its last GID no other such attachment of the
// node adds or removes GIDs. So the GID indexes are the same on all rails ("aligned").
// Attachments with one rail do not take this lock.
func (n Node) doAligned(ctx context.Context, x apply.Executor, ops plan.Ops) error {
	from, to := ops.Registration()
	if err := apply.Do(ctx, x, ops[:from]); err != nil {
		return err
	}
	err := n.aligned(ctx, to > from, func() error { return apply.Do(ctx, x, ops[from:to]) })
	if err != nil {
		return err
	}
	return apply.Do(ctx, x, ops[to:])
}

// undoAligned undoes operations. For several rails it holds the same lock. If it does
// not get the lock in time, it goes on without it: GID indexes may then differ, but
// nothing stays behind.
func (n Node) undoAligned(ctx context.Context, x apply.Executor, ops plan.Ops) error {
	from, to := ops.Registration()
	var left error
	err := n.aligned(ctx, to > from, func() error { left = apply.Undo(ctx, x, ops); return nil })
	if err != nil {
		n.Log.Warn("GID indexes may differ between rails", "error", err)
		return apply.Undo(ctx, x, ops)
	}
	return left
}

func (n Node) aligned(ctx context.Context, several bool, fn func() error) error {
	if !several {
		return fn()
	}
	release, err := n.Records.LockGIDs(ctx)
	if err != nil {
		return err
	}
	defer release()
	return fn()
}

// compareGIDs logs the GID indexes of an attachment if they differ from rail to rail.
// They differ when other users of a NIC have entries in its GID table. If the
// configuration promises equal indexes, it is an error: they were equal, and something
// has moved them.
func (n Node) compareGIDs(rec record.Record) error {
	var rails []string
	var indexes [][]int
	for g := range plan.All[plan.GID](rec.Plan.Ops) {
		var at []int
		for _, t := range g.Targets {
			if t.Index != nil {
				at = append(at, *t.Index)
			}
		}
		rails, indexes = append(rails, fmt.Sprintf("%s %v", g.Targets[0].Link, at)), append(indexes, at)
	}
	if !slices.ContainsFunc(indexes, func(at []int) bool { return !slices.Equal(at, indexes[0]) }) {
		return nil
	}
	for range plan.All[plan.Align](rec.Plan.Ops) {
		return cnierr.New(cnierr.NoGID, aligning, string(rec.IfName), "look at the NICs: the runtime tries again",
			"the indexes changed while the pod was made: %s", strings.Join(rails, ", "))
	}
	n.Log.Warn("GID indexes differ between rails: set rdma.gidIndex to equal, or use rocectl env, which prints settings that need no common index",
		"container", rec.ContainerID, "indexes", strings.Join(rails, ", "))
	return nil
}
