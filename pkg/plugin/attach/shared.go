// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// Do implements plan.Executor. A shared operation is done with the node's lock held. It is
// in the record already, so no other attachment undoes it from then on.
func (p *Pod) Do(ctx context.Context, run ...plan.Op) error {
	defer p.measure(run[0].Name())()
	if !run[0].Shared {
		return p.of(run[0]).Do(ctx, run...)
	}
	if !run[0].Marked() {
		return cnierr.New(cnierr.Bug, "share operation", fmt.Sprintf("%T", run[0].Kind), "", "what it makes carries no mark")
	}
	release, err := p.records.LockShared(ctx)
	if err != nil {
		return err
	}
	defer release()
	return p.of(run[0]).Do(ctx, run...)
}

// Undo implements plan.Executor. The last attachment that has a shared operation in its
// record undoes it. Each one removes it from its record before the lock is released, so of
// two that are deleted at the same time the second finds that it is the last.
func (p *Pod) Undo(ctx context.Context, run ...plan.Op) error {
	if !run[0].Shared {
		return p.undoRun(ctx, run...)
	}
	release, err := p.records.LockShared(ctx)
	if err != nil {
		return err
	}
	defer release()
	var errs []error
	for _, op := range slices.Backward(run) {
		errs = append(errs, p.undoUnlessHeld(ctx, op))
	}
	return errors.Join(errs...)
}

// undoRun undoes operations. Rules that stay in a pod are no reason to keep the pod: no
// other pod sees them. Nor is a VLAN that another program uses.
func (p *Pod) undoRun(ctx context.Context, run ...plan.Op) error {
	err := p.of(run[0]).Undo(ctx, run...)
	if run[0].Place == plan.Pod && errors.Is(err, kernel.ErrRulesLeft) {
		p.log.Warn("rules of the pod stay", "container", p.at.ContainerID, "interface", p.at.IfName, "error", err)
		return nil
	}
	if errors.Is(err, kernel.ErrInUse) {
		p.log.Warn("a VLAN stays", "container", p.at.ContainerID, "interface", p.at.IfName, "error", err)
		return nil
	}
	return err
}

// undoUnlessHeld undoes an operation unless another attachment has it, and removes it
// from the record.
func (p *Pod) undoUnlessHeld(ctx context.Context, op plan.Op) error {
	held, err := p.held(op)
	if err != nil {
		return err
	}
	if !held {
		if err := p.undoRun(ctx, op); err != nil {
			return err
		}
	}
	rec, err := p.records.Load(p.at)
	if errors.Is(err, record.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	rec.Plan.Ops = slices.DeleteFunc(rec.Plan.Ops, op.Same)
	err = p.records.Save(rec)
	if errors.Is(err, unix.ENOSPC) { // DEL must work on a full disk, and deletes the record
		p.log.Warn("the record still names what was left to other pods", "container", p.at.ContainerID, "interface", p.at.IfName, "error", err)
		return nil
	}
	return err
}

// held says whether another attachment has the operation. If a record cannot be read, its
// attachment may have the operation.
func (p *Pod) held(op plan.Op) (bool, error) {
	for rec, err := range p.records.All(p.at) {
		switch {
		case err != nil && rec.Attachment == (conf.Attachment{}): // not even a list
			return false, err
		case err != nil, slices.ContainsFunc(rec.Plan.Ops, op.SharedWith):
			return true, nil
		}
	}
	return false, nil
}
