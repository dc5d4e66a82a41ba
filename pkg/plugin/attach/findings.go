// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// findings is how an attachment differs from what ADD made. With several rails, an
// error about one of them names it.
type findings struct {
	damage []error
	// changed is what other programs have set. The attachment works with it.
	changed []error
}

// examine looks at every operation of a plan. told has the MACs that the runtime
// expects of the interfaces. Another MAC is then damage, whatever the plan says.
func examine(ctx context.Context, x plan.Executor, p plan.Plan, told map[conf.LinkName]conf.MAC) findings {
	if len(p.Interfaces) < 2 {
		return examineOps(ctx, x, p.Ops, told)
	}
	out := examineOps(ctx, x, p.OfNone(), nil)
	for _, i := range p.Interfaces {
		of := examineOps(ctx, x, p.Of(i), told)
		for _, err := range of.damage {
			out.damage = append(out.damage, inRail(i.Rail, i.Name, err))
		}
		for _, err := range of.changed {
			out.changed = append(out.changed, inRail(i.Rail, i.Name, err))
		}
	}
	return out
}

func examineOps(ctx context.Context, x plan.Executor, ops plan.Ops, told map[conf.LinkName]conf.MAC) findings {
	var out findings
	for _, op := range ops {
		mac, known := told[op.Link()]
		if known {
			op = op.WithMAC(mac)
		}
		damage, changed := divide(x.Check(ctx, op))
		for _, err := range changed {
			var c *kernel.ChangedError
			if errors.As(err, &c); known && c.Property == kernel.MAC {
				out.damage = append(out.damage, err)
			} else {
				out.changed = append(out.changed, err)
			}
		}
		out.damage = append(out.damage, damage...)
	}
	return out
}

// divide divides the findings of a check into damage and what others have changed.
func divide(err error) (damage, changed []error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			d, c := divide(e)
			damage, changed = append(damage, d...), append(changed, c...)
		}
		return damage, changed
	}
	var c *kernel.ChangedError
	switch {
	case err == nil:
		return nil, nil
	case errors.As(err, &c):
		return nil, []error{err}
	}
	return []error{err}, nil
}
