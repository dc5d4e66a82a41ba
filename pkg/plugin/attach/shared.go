// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// refCounted is the executor of one attachment. It counts the attachments that have a
// shared operation in their records. It does and undoes such operations with the node's
// lock held. The last attachment that has the operation in
// its record undoes it.
//
// The executor below knows our objects by the mark. If a foreign object is where ours
// should be, it is an error, and the object stays.
type refCounted struct {
	plan.Executor
	records record.Store
	at      conf.Attachment
	log     *slog.Logger
}

func (n Node) refCounted(x plan.Executor, rec record.Record) refCounted {
	return refCounted{x, n.Records, rec.Attachment, n.Log}
}

// Do implements plan.Executor. The record has the operations before they are done,
// so that no other attachment undoes them from then on.
func (s refCounted) Do(ctx context.Context, run ...plan.Op) error {
	if !run[0].Shared {
		return s.Executor.Do(ctx, run...)
	}
	if !run[0].Marked() {
		return cnierr.New(cnierr.Bug, "share operation", fmt.Sprintf("%T", run[0].Kind), "", "what it makes carries no mark")
	}
	release, err := s.records.LockShared(ctx)
	if err != nil {
		return err
	}
	defer release()
	return s.Executor.Do(ctx, run...)
}

// Undo implements plan.Executor. An operation that was undone, or left to another
// attachment, is removed from the record before the lock is released. If two
// attachments are deleted at the same time, the second one then finds that it is the
// last.
func (s refCounted) Undo(ctx context.Context, run ...plan.Op) error {
	if !run[0].Shared {
		return s.undo(ctx, run...)
	}
	release, err := s.records.LockShared(ctx)
	if err != nil {
		return err
	}
	defer release()
	var errs []error
	for _, op := range slices.Backward(run) {
		errs = append(errs, s.leave(ctx, op))
	}
	return errors.Join(errs...)
}

// undo undoes operations. Rules that stay in a pod are no reason to keep the pod: no
// other pod sees them.
func (s refCounted) undo(ctx context.Context, run ...plan.Op) error {
	err := s.Executor.Undo(ctx, run...)
	if run[0].Place == plan.Pod && errors.Is(err, kernel.ErrRulesLeft) {
		s.log.Warn("rules of the pod stay", "container", s.at.ContainerID, "interface", s.at.IfName, "error", err)
		return nil
	}
	return err
}

// leave undoes an operation unless another attachment has it, and removes it from the
// record.
func (s refCounted) leave(ctx context.Context, op plan.Op) error {
	held, err := s.held(op)
	if err != nil {
		return err
	}
	if !held {
		if err := s.undo(ctx, op); err != nil {
			return err
		}
	}
	rec, err := s.records.Load(s.at)
	if errors.Is(err, record.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	rec.Plan.Ops = slices.DeleteFunc(rec.Plan.Ops, op.Same)
	err = s.records.Save(rec)
	if errors.Is(err, unix.ENOSPC) { // DEL must work on a full disk, and deletes the record
		s.log.Warn("the record still names what was left to other pods", "container", s.at.ContainerID, "interface", s.at.IfName, "error", err)
		return nil
	}
	return err
}

// held says whether another attachment has the operation. If a record cannot be read, its
// attachment may have the operation.
func (s refCounted) held(op plan.Op) (bool, error) {
	for rec, err := range s.records.All() {
		switch {
		case err != nil && rec.Attachment == (conf.Attachment{}): // not even a list
			return false, err
		case rec.Attachment == s.at:
		case err != nil, slices.ContainsFunc(rec.Plan.Ops, op.SharedWith):
			return true, nil
		}
	}
	return false, nil
}
