// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// The kernel gives a GID the first free index of the table (ib_cache_gid_add,
// find_gid). If two pods came and went at the same time, the GID indexes of one pod
// would differ from rail to rail. NCCL takes one index for all rails.

// undoLockTime is how long an undo waits for attachments that add or remove GIDs.
const undoLockTime = 20 * time.Second

// performInGIDOrder does the operations of an attachment. If it has several rails on
// shared devices, or promises a GID index, then from its first address to its last GID no
// other such attachment of the node adds or removes GIDs. This makes equal indexes on all
// rails likely ("aligned"). Only the operation Align makes them certain.
func (n Node) performInGIDOrder(ctx context.Context, k *pod, x plan.Executor, ops plan.Ops) error {
	x = &looker{x, k.rdma, ops}
	from, to := ops.Registration()
	if from == to {
		return ops.Do(ctx, x)
	}
	if err := ops[:from].Do(ctx, x); err != nil {
		return err
	}
	if err := n.register(ctx, x, ops[from:to]); err != nil {
		return err
	}
	return ops[to:].Do(ctx, x)
}

// looker is an executor of the operations of an attachment. It has the GID tables looked
// at just before it sets addresses.
type looker struct {
	plan.Executor
	rdma RDMA
	all  plan.Ops
}

// Do implements plan.Executor.
func (l *looker) Do(ctx context.Context, run ...plan.Op) error {
	if isAddress(run[0]) {
		if err := l.rdma.LookBefore(l.all, run); err != nil {
			return err
		}
	}
	return l.Executor.Do(ctx, run...)
}

// register does the operations that add GIDs, with the lock held.
func (n Node) register(ctx context.Context, x plan.Executor, ops plan.Ops) error {
	release, err := n.Records.LockGIDs(ctx)
	if err != nil {
		return err
	}
	defer release()
	return ops.Do(ctx, x)
}

// undoInGIDOrder undoes operations. It takes the same lock for the same attachments. It
// waits for the lock for no more than half of the time that the call has left. Then it
// goes on without the lock: GID indexes may differ, but nothing stays behind.
func (n Node) undoInGIDOrder(ctx context.Context, x plan.Executor, ops plan.Ops) error {
	if from, to := ops.Registration(); from == to {
		return ops.Undo(ctx, x)
	}
	wait := undoLockTime
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(end)/2)
	}
	locking, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	release, err := n.Records.LockGIDs(locking)
	if err != nil {
		n.Log.Warn("GID indexes may differ between rails", "error", err)
		return ops.Undo(ctx, x)
	}
	defer release()
	return ops.Undo(ctx, x)
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
