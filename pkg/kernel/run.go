// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plan"
)

// executor is a run of operations of one kind together with the kernel to do
// them. Most kinds ask what they need to know of all, change all, and judge the
// answer to each, so that a run of eight takes as many messages as one of one.
type executor interface {
	do(ctx context.Context) error
	undo(ctx context.Context) error
	check(ctx context.Context) error
}

func (k *Kernel) executor(run []plan.Op) (executor, error) {
	const action = "execute operation"
	if len(run) == 0 {
		return inTurn(nil), nil
	}
	for _, op := range run {
		if reflect.TypeOf(op) != reflect.TypeOf(run[0]) {
			return nil, cnierr.New(cnierr.Bug, action, fmt.Sprintf("%T", op), "", "it is in a run of %T", run[0])
		}
	}
	switch run[0].(type) {
	case plan.Macvlan:
		return macvlans(each(run, func(op plan.Macvlan) macvlan { return macvlan{k, op} })), nil
	case plan.Adopt:
		return inTurn(each(run, func(op plan.Adopt) executor { return adopt{k, op} })), nil
	case plan.Sysctl:
		return sysctls(each(run, func(op plan.Sysctl) sysctl { return sysctl{k, op} })), nil
	case plan.Up:
		return ups(each(run, func(op plan.Up) up { return up{k, op} })), nil
	case plan.Address:
		return addresses(each(run, func(op plan.Address) address { return address{k, op} })), nil
	case plan.Route:
		return routings(each(run, func(op plan.Route) routing { return routing{k, op} })), nil
	case plan.Rule:
		return policies(each(run, func(op plan.Rule) policy { return policy{k, op} })), nil
	case plan.Orphans:
		return inTurn(each(run, func(op plan.Orphans) executor { return orphans{k, op} })), nil
	}
	return nil, cnierr.New(cnierr.Bug, action, fmt.Sprintf("%T", run[0]), "", "the kernel has no executor for it")
}

// each returns what the operations of a run are done with. All are of type O.
func each[O plan.Op, X any](run []plan.Op, with func(O) X) []X {
	out := make([]X, 0, len(run))
	for _, op := range run {
		if o, ok := op.(O); ok {
			out = append(out, with(o))
		}
	}
	return out
}

// inTurn are operations that are done one after the other.
type inTurn []executor

func (r inTurn) do(ctx context.Context) error {
	for _, x := range r {
		if err := x.do(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (r inTurn) undo(ctx context.Context) error {
	var errs []error
	for _, x := range slices.Backward(r) {
		errs = append(errs, x.undo(ctx))
	}
	return errors.Join(errs...)
}

func (r inTurn) check(ctx context.Context) error { return checkEach(ctx, r) }

// checkEach checks the operations of a run one after the other: nobody waits
// for it.
func checkEach[X interface{ check(context.Context) error }](ctx context.Context, run []X) error {
	var errs []error
	for _, x := range run {
		errs = append(errs, x.check(ctx))
	}
	return errors.Join(errs...)
}

// named looks the link of each operation of a run up, each link once, all in
// one go.
func named[X any](ctx context.Context, c *rtnl.Conn, run []X, name func(X) conf.LinkName) []rtnl.Named {
	place := map[conf.LinkName]int{}
	var names []string
	for _, x := range run {
		if _, known := place[name(x)]; !known {
			place[name(x)] = len(names)
			names = append(names, string(name(x)))
		}
	}
	found := c.LinksByName(ctx, names...)
	out := make([]rtnl.Named, 0, len(run))
	for _, x := range run {
		out = append(out, found[place[name(x)]])
	}
	return out
}
