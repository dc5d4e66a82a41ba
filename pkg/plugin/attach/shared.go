// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/apply"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// refCounted is the executor of one attachment. It counts the attachments that have a
// shared operation in their records, in all state folders of the node. It does and undoes
// such operations with the node's lock held. The last attachment that has the operation in
// its record undoes it.
//
// The executor below knows our objects by the mark. If a foreign object is where ours
// should be, it is an error, and the object stays.
type refCounted struct {
	apply.Executor
	records record.Store
	common  record.Common
	at      conf.Attachment
	log     *slog.Logger
}

func (n Node) refCounted(x apply.Executor, rec record.Record) refCounted {
	return refCounted{x, n.Records, n.Common, rec.Attachment, n.Log}
}

// Do implements apply.Executor. The record has the operations before they are done,
// so that no other attachment undoes them from then on.
func (s refCounted) Do(ctx context.Context, run ...plan.Op) error {
	if !run[0].Shared {
		return s.Executor.Do(ctx, run...)
	}
	if !run[0].Marked() {
		return cnierr.New(cnierr.Bug, "share operation", fmt.Sprintf("%T", run[0].Kind), "", "what it makes carries no mark")
	}
	release, err := s.common.LockShared(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := s.common.Enter(s.records.Dir); err != nil {
		return err
	}
	return s.Executor.Do(ctx, run...)
}

// Undo implements apply.Executor. An operation that was undone, or left to another
// attachment, is removed from the record before the lock is released. If two
// attachments are deleted at the same time, the second one then finds that it is the
// last.
func (s refCounted) Undo(ctx context.Context, run ...plan.Op) error {
	if !run[0].Shared {
		return s.undo(ctx, run...)
	}
	release, err := s.common.LockShared(ctx)
	if err != nil {
		return err
	}
	defer release()
	dirs, err := s.others()
	if err != nil {
		return err
	}
	var errs []error
	for _, op := range slices.Backward(run) {
		errs = append(errs, s.leave(ctx, op, dirs))
	}
	return errors.Join(append(errs, s.leaveFolder())...)
}

// others returns the other state folders of the node. It drops the entries of those that are
// gone.
func (s refCounted) others() ([]string, error) {
	dirs, err := s.common.Others(s.records.Dir)
	if err != nil {
		return nil, err
	}
	var there []string
	for _, dir := range dirs {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			there = append(there, dir)
			continue
		}
		if err := s.common.Leave(dir); err != nil {
			return nil, err
		}
	}
	return there, nil
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
func (s refCounted) leave(ctx context.Context, op plan.Op, dirs []string) error {
	held, err := s.held(op, dirs)
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

// held says whether another attachment has the operation, in this state folder or in one
// of the others. If another folder cannot be listed, its attachments may have the operation.
func (s refCounted) held(op plan.Op, dirs []string) (bool, error) {
	if held, err := anyHas(s.records, s.at, op.SharedWith); err != nil || held {
		return held, err
	}
	for _, dir := range dirs {
		held, err := anyHas(record.Store{Dir: dir, BootID: s.records.BootID}, conf.Attachment{}, op.SharedWith)
		if err != nil {
			s.log.Warn("what attachments share stays on the host", "container", s.at.ContainerID, "interface", s.at.IfName, "error", err)
		}
		if err != nil || held {
			return true, nil
		}
	}
	return false, nil
}

// leaveFolder removes the entry of the state folder if none of its attachments shares
// anything any more.
func (s refCounted) leaveFolder() error {
	shares, err := anyHas(s.records, conf.Attachment{}, func(op plan.Op) bool { return op.Shared })
	if err != nil || shares {
		return err
	}
	return s.common.Leave(s.records.Dir)
}

// anyHas says whether an attachment, apart from one, has such an operation. If a record
// cannot be read, its attachment may have the operation, so anyHas returns true.
func anyHas(records record.Store, apart conf.Attachment, such func(plan.Op) bool) (bool, error) {
	for rec, err := range records.All() {
		switch {
		case err != nil && rec.Attachment == (conf.Attachment{}): // not even a list
			return false, err
		case rec.Attachment == apart:
		case err != nil, slices.ContainsFunc(rec.Plan.Ops, such):
			return true, nil
		}
	}
	return false, nil
}
