// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// journal is an executor. Its state is the list of operations that are done and
// not undone, by name. It fails where it is told to.
type journal struct {
	stands   []string
	failDo   string
	failUndo string
}

var errRefused = errors.New("refused")

func name(op plan.Op) string { return fmt.Sprintf("%T", op.Kind) }

func (j *journal) Do(_ context.Context, op plan.Op) error {
	if name(op) == j.failDo {
		return fmt.Errorf("do %s: %w", name(op), errRefused)
	}
	j.stands = append(j.stands, name(op))
	return nil
}

func (j *journal) Undo(_ context.Context, op plan.Op) error {
	if name(op) == j.failUndo {
		return fmt.Errorf("undo %s: %w", name(op), errRefused)
	}
	switch i := slices.Index(j.stands, name(op)); i {
	case -1: // missing: success
	case len(j.stands) - 1:
		j.stands = j.stands[:i]
	default:
		return fmt.Errorf("undo %s out of order: %v stand", name(op), j.stands)
	}
	return nil
}

func (j *journal) Check(_ context.Context, op plan.Op) error {
	if !slices.Contains(j.stands, name(op)) {
		return fmt.Errorf("%s is gone", name(op))
	}
	return nil
}

// rules and wire operations have nothing that would take them away, so
// Teardown keeps them all.
var ops = plan.InPod(plan.Rule{}, plan.Conflict{}, plan.Gateway{}, plan.Announce{})

func TestDoDoesEverythingInOrder(t *testing.T) {
	t.Parallel()
	j := &journal{}
	if err := ops.Do(context.Background(), plan.Each(j)); err != nil {
		t.Fatal(err)
	}
	want := []string{"plan.Rule", "plan.Conflict", "plan.Gateway", "plan.Announce"}
	if diff := cmp.Diff(want, j.stands); diff != "" {
		t.Error(diff)
	}
	if err := plan.Each(j).Check(context.Background(), ops...); err != nil {
		t.Error(err)
	}
}

func TestUndoingTheWholeListAfterAFailureLeavesNothing(t *testing.T) {
	t.Parallel()
	for i, op := range ops {
		j := &journal{failDo: name(op)}
		if err := ops.Do(context.Background(), plan.Each(j)); !errors.Is(err, errRefused) {
			t.Errorf("failing at %s: got %v", name(op), err)
		}
		if len(j.stands) != i {
			t.Errorf("failing at %s: %v stand, want the %d before it", name(op), j.stands, i)
		}
		if err := ops.Undo(context.Background(), plan.Each(j)); err != nil || len(j.stands) != 0 {
			t.Errorf("failing at %s leaves %v, %v", name(op), j.stands, err)
		}
	}
}

func TestUndoGoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	j := &journal{stands: []string{"plan.Rule"}, failUndo: "plan.Announce"}
	err := plan.InPod(plan.Rule{}, plan.Announce{}).Undo(context.Background(), plan.Each(j))
	var left *plan.UndoError
	if !errors.As(err, &left) || !errors.Is(err, errRefused) || len(j.stands) != 0 {
		t.Errorf("got %v, %v stand; want an UndoError and nothing", err, j.stands)
	}
}

// refusing is an executor that can undo nothing.
type refusing struct {
	journal
	tried []string
}

func (r *refusing) Undo(_ context.Context, op plan.Op) error {
	r.tried = append(r.tried, op.Kind.(plan.Move).Device.Name)
	return fmt.Errorf("undo %s: %w", r.tried[len(r.tried)-1], errRefused)
}

func TestUndoGoesOnWithinARun(t *testing.T) {
	t.Parallel()
	var run plan.Ops
	for _, name := range []string{"mlx5_0", "mlx5_1", "mlx5_2"} {
		run = append(run, plan.Op{Kind: plan.Move{Device: plan.RDMADevice{Name: name}}})
	}
	r := &refusing{}
	err := run.Undo(context.Background(), plan.Each(r))
	if diff := cmp.Diff([]string{"mlx5_2", "mlx5_1", "mlx5_0"}, r.tried); diff != "" {
		t.Errorf("tried to undo (-want +got):\n%s", diff)
	}
	if runs := slices.Concat(run, ops[:2]).Runs(); len(runs) != 3 || len(runs[0]) != 3 {
		t.Errorf("got the runs %v, want one of three operations and two of one", runs)
	}
	if want := "undo mlx5_2: refused\nundo mlx5_1: refused\nundo mlx5_0: refused"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestCheckNamesEverythingThatIsGone(t *testing.T) {
	t.Parallel()
	err := plan.Each(&journal{stands: []string{"plan.Rule", "plan.Announce"}}).Check(context.Background(), ops...)
	if err == nil || err.Error() != "plan.Conflict is gone\nplan.Gateway is gone" {
		t.Errorf("got %v", err)
	}
}
