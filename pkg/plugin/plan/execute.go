// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"context"
	"errors"
	"slices"
)

// Executor does runs of operations: one or more of one kind, in one batch. The
// comment of Op has the law for each operation. The law for a run:
//
//   - Do does the operations in their order, so that a route may be the way to
//     the gateway of the next one. It stops at the first that fails, and what it
//     has done of the run stays.
//   - Undo undoes them from the last to the first. It tries all.
//   - Check checks all.
//   - The links that a run names exist before it begins: no operation of a run
//     makes a link for another operation of the same run.
//
// Undo and Check return all that they found, joined.
type Executor interface {
	Do(ctx context.Context, run ...Op) error
	Undo(ctx context.Context, run ...Op) error
	Check(ctx context.Context, run ...Op) error
}

// Single does operations one at a time. Its law is that of Executor for runs of
// one operation.
type Single interface {
	Do(ctx context.Context, op Op) error
	Undo(ctx context.Context, op Op) error
	Check(ctx context.Context, op Op) error
}

// Each returns an executor of runs that passes their operations to x, one by one.
func Each(x Single) Executor { return each{x} }

type each struct{ Single }

func (e each) Do(ctx context.Context, run ...Op) error {
	for _, op := range run {
		if err := e.Single.Do(ctx, op); err != nil {
			return err
		}
	}
	return nil
}

func (e each) Undo(ctx context.Context, run ...Op) error {
	var errs []error
	for _, op := range slices.Backward(run) {
		errs = append(errs, e.Single.Undo(ctx, op))
	}
	return errors.Join(errs...)
}

func (e each) Check(ctx context.Context, run ...Op) error {
	var errs []error
	for _, op := range run {
		errs = append(errs, e.Single.Check(ctx, op))
	}
	return errors.Join(errs...)
}

// UndoError says that something of ours is left, because it could not be
// undone. Addresses of such an attachment must not be leased to others.
type UndoError struct{ Err error }

// Error returns the text of the cause.
func (e *UndoError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *UndoError) Unwrap() error { return e.Err }

// Do does the operations in order and stops at the first that fails. What was done before
// it stays, until the caller undoes all.
func (o Ops) Do(ctx context.Context, x Executor) error {
	for _, run := range o.Runs() {
		if err := x.Do(ctx, run...); err != nil {
			return err
		}
	}
	return nil
}

// Undo undoes the operations in reverse order. It goes on after a failure and
// returns all failures in one *UndoError, nil if there was none.
func (o Ops) Undo(ctx context.Context, x Executor) error {
	var errs []error
	for _, run := range slices.Backward(o.Runs()) {
		errs = append(errs, x.Undo(ctx, run...))
	}
	if err := errors.Join(errs...); err != nil {
		return &UndoError{err}
	}
	return nil
}
