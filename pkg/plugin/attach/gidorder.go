// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/align"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// The kernel gives a GID the first free index of the table (ib_cache_gid_add,
// find_gid). If two pods came and went at the same time, the GID indexes of one pod
// would differ from rail to rail. NCCL takes one index for all rails.

// undoLockTime is how long an undo waits for attachments that add or remove GIDs.
const undoLockTime = 20 * time.Second

// inGIDOrder does the operations of an attachment. If it has several rails on shared devices,
// or promises a GID index, then from its first address to its last GID no other such
// attachment of the node adds or removes GIDs. This makes equal indexes on all rails likely;
// only the operation Align makes them certain.
func (p *Pod) inGIDOrder(ctx context.Context, ops plan.Ops) error {
	from, to, several := ops.Registration()
	if err := ops[:from].Do(ctx, p); err != nil {
		return err
	}
	if err := p.register(ctx, ops, ops[from:to], several); err != nil {
		return err
	}
	return ops[to:].Do(ctx, p)
}

// register does those operations of an attachment that add GIDs. RDMA looks at the GID
// tables just before, so that it can tell the new entries from old ones.
func (p *Pod) register(ctx context.Context, all, ops plan.Ops, several bool) error {
	if several {
		release, err := p.records.LockGIDs(ctx)
		if err != nil {
			return err
		}
		defer release()
	}
	if err := p.RDMA.LookBefore(all, all); err != nil {
		return err
	}
	return ops.Do(ctx, p)
}

// undo undoes operations of the attachment. It takes the same lock for the same
// attachments. It waits for the lock for no more than half of the time that the call has
// left. Then it goes on without the lock: GID indexes may differ, but nothing stays behind.
func (p *Pod) undo(ctx context.Context, ops plan.Ops) error {
	if _, _, several := ops.Registration(); several {
		wait := undoLockTime
		if end, ok := ctx.Deadline(); ok {
			wait = min(wait, time.Until(end)/2)
		}
		locking, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		if release, err := p.records.LockGIDs(locking); err == nil {
			defer release()
		} else {
			p.log.Warn("GID indexes may differ between rails", "error", err)
		}
	}
	return ops.Undo(ctx, p)
}

// errIndexesMoved is the cause of an error about promised GID indexes that were right, and
// are not any more.
var errIndexesMoved = errors.New("the indexes changed while the pod was made")

// compareGIDs logs the GID indexes of an attachment if they differ from rail to rail, as
// other entries of a NIC make them. If the configuration promises equal indexes, or a
// number, and they are others, it is an error with errIndexesMoved.
func (n Node) compareGIDs(rec record.Record) error {
	var rails []string
	var indexes [][]int
	var most []int
	for g := range plan.All[plan.GID](rec.Plan.Ops) {
		at := g.Indexes()
		if len(at) > len(most) {
			most = at
		}
		rails, indexes = append(rails, fmt.Sprintf("%s %v", g.Targets[0].Link, at)), append(indexes, at)
	}
	differ := slices.ContainsFunc(indexes, func(at []int) bool { return !slices.Equal(at, most[:len(at)]) })
	for promise := range plan.All[plan.Align](rec.Plan.Ops) {
		if differ || promise.Index > 0 && slices.Index(most, int(promise.Index)) != 0 {
			return cnierr.New(cnierr.NoGID, align.Action, string(rec.IfName), "look at the NICs: the runtime tries again",
				"%w: %s", errIndexesMoved, strings.Join(rails, ", "))
		}
		return nil
	}
	if differ {
		n.Log.Warn("GID indexes differ between rails: set rdma.gidIndex to equal, or use rocectl env, which prints settings that need no common index",
			"container", rec.ContainerID, "indexes", strings.Join(rails, ", "))
	}
	return nil
}

// fillers is the namespace of the node's fillers (plan.Align), which is opened when it is
// needed. Who changes something there holds the lock of the GID tables.
type fillers struct {
	machine Machine
	path    string
	kernel  Kernel // nil: not open
	rdma    RDMA
}

// side implements align.Aligner.Node.
func (f *fillers) side(make bool) (*align.Side, error) {
	if f.kernel != nil {
		return &align.Side{Kernel: f.kernel, Tables: f.rdma}, nil
	}
	k, err := f.machine.Open(f.path)
	if errors.Is(err, kernel.ErrNetnsGone) {
		if !make {
			return nil, nil
		}
		if err := f.machine.MakeNetns(f.path); err != nil {
			return nil, err
		}
		k, err = f.machine.Open(f.path)
	}
	if err != nil {
		return nil, err
	}
	f.kernel, f.rdma = k, f.machine.RDMA(f.path, k.Enter)
	return &align.Side{Kernel: f.kernel, Tables: f.rdma}, nil
}

func (f *fillers) close() {
	if f.kernel != nil {
		f.rdma.Close()
		f.kernel.Close()
	}
}

// drop deletes the record of an attachment that is gone. If the settings of the node say so,
// the node's fillers go with the last one that needs them. The attachment is gone in any case,
// and its next DEL would not look for fillers, so an error about them is only logged.
func (n Node) drop(ctx context.Context, rec record.Record) error {
	if err := n.Records.Delete(rec.Attachment); err != nil || !n.RemoveFillers || !needsFillers(rec) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLockTime)
	defer cancel()
	if err := n.removeFillers(ctx); err != nil {
		n.Log.Warn("the fillers of the GID tables stay", "error", err)
	}
	return nil
}

// removeFillers removes the node's fillers unless an attachment needs them. The record of an
// attachment is older than its first filler, so none that is being made is missed.
func (n Node) removeFillers(ctx context.Context) error {
	release, err := n.Records.LockGIDs(ctx)
	if err != nil {
		return err
	}
	defer release()
	for rec, err := range n.Records.All() {
		if err != nil || needsFillers(rec) {
			return nil //nolint:nilerr // a record that cannot be read may be of such an attachment
		}
	}
	return n.Machine.RemoveNetns(n.Fillers)
}

func needsFillers(rec record.Record) bool {
	return slices.ContainsFunc(rec.Plan.Ops, plan.Is[plan.Align])
}
