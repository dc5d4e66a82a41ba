// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package apply does, undoes and checks a list of operations over an executor.
//
// It knows no operation: what one means is in plan, how it is done in kernel
// and probe. It never writes a record; attach does that around it. Everything
// is in this file.
package apply

import (
	"context"
	"errors"

	"github.com/roce-cni/roce-cni/pkg/plan"
)

// Executor does one operation. Its law is the comment of plan.Op.
type Executor interface {
	Do(ctx context.Context, op plan.Op) error
	Undo(ctx context.Context, op plan.Op) error
	Check(ctx context.Context, op plan.Op) error
}

// UndoError says that something of ours is left, because it could not be
// undone. Addresses of such an attachment must not be given away.
type UndoError struct{ Err error }

// Error returns the text of the cause.
func (e *UndoError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *UndoError) Unwrap() error { return e.Err }

// Do does the operations in order and stops at the first that fails. What was
// done before it stands: the caller undoes the whole list, which is the same
// as undoing what was done, because undoing what is missing is success.
func Do(ctx context.Context, x Executor, ops plan.Ops) error {
	for _, op := range ops {
		if err := x.Do(ctx, op); err != nil {
			return err
		}
	}
	return nil
}

// Undo undoes the operations in reverse order. It goes on after a failure and
// returns all of them in one *UndoError, nil if there was none.
func Undo(ctx context.Context, x Executor, ops plan.Ops) error {
	var errs []error
	for i := len(ops) - 1; i >= 0; i-- {
		errs = append(errs, x.Undo(ctx, ops[i]))
	}
	if err := errors.Join(errs...); err != nil {
		return &UndoError{err}
	}
	return nil
}

// Check checks the operations in order and returns everything that is not as
// it was done, joined.
func Check(ctx context.Context, x Executor, ops plan.Ops) error {
	var errs []error
	for _, op := range ops {
		errs = append(errs, x.Check(ctx, op))
	}
	return errors.Join(errs...)
}
