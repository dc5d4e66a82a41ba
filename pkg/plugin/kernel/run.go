// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// executor is a run of operations of one kind, together with the kernel that
// does them. Most kinds first ask for everything that the run needs, then make
// all changes, then interpret each answer. So a run of eight operations takes
// as many messages as a run of one.
type executor interface {
	do(ctx context.Context) error
	undo(ctx context.Context) error
	check(ctx context.Context) error
}

// executor returns the executor of a run. All operations of the run have one
// kind and one place.
func (k *Kernel) executor(run []plan.Op) (executor, error) {
	const action = "execute operation"
	if len(run) == 0 {
		return inTurn(nil), nil
	}
	first := run[0]
	for _, op := range run {
		if reflect.TypeOf(op.Kind) != reflect.TypeOf(first.Kind) || op.Place != first.Place {
			return nil, cnierr.New(cnierr.Bug, action, fmt.Sprintf("%T", op.Kind), "", "it is in a run of %T in %s", first.Kind, first.Place)
		}
	}
	n, err := k.at(first.Place)
	if err != nil {
		return nil, err
	}
	x := n.executor(run)
	if x == nil {
		return nil, cnierr.New(cnierr.Bug, action, fmt.Sprintf("%T", first.Kind), "", "the kernel has no executor for it in %s", first.Place)
	}
	return x, nil
}

// executor returns how a run is done in the namespace: a case for each kind of operations.
// It returns nil for other kinds, and for those that act in a pod only.
func (n namespace) executor(run []plan.Op) executor {
	if n.place != plan.Pod {
		switch run[0].Kind.(type) {
		case plan.Child, plan.Adopt, plan.Carriers, plan.Orphans:
			return nil
		}
	}
	switch run[0].Kind.(type) {
	case plan.Child:
		return children(each(run, func(op plan.Child) child { return child{n, op} }))
	case plan.VLAN:
		return inTurn(each(run, func(op plan.VLAN) executor { return vlan{n, op} }))
	case plan.Veth:
		return inTurn(each(run, func(op plan.Veth) executor { return veth{n, op} }))
	case plan.Neighbour:
		return neighbours(each(run, func(op plan.Neighbour) neighbour { return neighbour{n, op} }))
	case plan.Adopt:
		return inTurn(each(run, func(op plan.Adopt) executor { return adopt{n, op} }))
	case plan.Sysctl:
		return sysctls(each(run, func(op plan.Sysctl) sysctl { return sysctl{n, op} }))
	case plan.Up:
		return ups(each(run, func(op plan.Up) up { return up{n, op} }))
	case plan.Address:
		return addresses(each(run, func(op plan.Address) address { return address{n, op} }))
	case plan.Route:
		return routings(each(run, func(op plan.Route) routing { return routing{n, op} }))
	case plan.Rule:
		return rules(each(run, func(op plan.Rule) rule { return rule{n, op} }))
	case plan.Carriers:
		return inTurn(each(run, func(op plan.Carriers) executor { return carriers{namespace: n, op: op} }))
	case plan.Orphans:
		return inTurn(each(run, func(op plan.Orphans) executor { return orphans{namespace: n, op: op} }))
	}
	return nil
}

// each returns the values that the operations of a run are done with. All
// operations are of kind K.
func each[K plan.Kind, X any](run []plan.Op, with func(K) X) []X {
	out := make([]X, 0, len(run))
	for k := range plan.All[K](run) {
		out = append(out, with(k))
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

// checkEach checks the operations of a run one after the other. It need not be
// fast: no pod waits for a check.
func checkEach[X interface{ check(context.Context) error }](ctx context.Context, run []X) error {
	var errs []error
	for _, x := range run {
		errs = append(errs, x.check(ctx))
	}
	return errors.Join(errs...)
}

// onLink is an operation about something on a link.
type onLink interface {
	in() namespace
	link() conf.LinkName
	subject() string // in errors
}

// change makes the changes of a run, in one message. answered interprets what the kernel
// answers.
func change[X onLink](ctx context.Context, action string, run []X, to func(X, int32) rtnl.Change, answered func(X, rtnl.Link, error) error) error {
	links := named(ctx, run[0].in().conn, run, X.link)
	var changes []rtnl.Change
	for i, x := range run {
		if err := links[i].Err; err != nil {
			return classify(action, x.subject(), err)
		}
		changes = append(changes, to(x, links[i].Link.Index))
	}
	for i, err := range run[0].in().conn.Each(ctx, changes...) {
		if err := answered(run[i], links[i].Link, err); err != nil {
			return err
		}
	}
	return nil
}

// takeBack undoes a run from its end, in one message. to returns false if there is nothing
// to undo. gone are the answers that say so, too.
func takeBack[X onLink](ctx context.Context, action string, run []X, to func(X, int32) (c rtnl.Change, is bool, err error), gone ...unix.Errno) error {
	var errs []error
	var changes []rtnl.Change
	var of []X
	for i, l := range slices.Backward(named(ctx, run[0].in().conn, run, X.link)) {
		c, is, err := rtnl.Change{}, false, l.Err
		if err == nil {
			c, is, err = to(run[i], l.Link.Index)
		}
		if is {
			changes, of = append(changes, c), append(of, run[i])
		}
		errs = append(errs, classify(action, run[i].subject(), ignore(err, unix.ENODEV)))
	}
	for i, err := range run[0].in().conn.Each(ctx, changes...) {
		errs = append(errs, classify(action, of[i].subject(), ignore(err, gone...)))
	}
	return errors.Join(errs...)
}

// linkOf returns the link of an operation, for a check of it.
func linkOf(ctx context.Context, action string, x onLink, op plan.Kind) (rtnl.Link, error) {
	l, err := x.in().conn.LinkByName(ctx, string(x.link()))
	if errors.Is(err, unix.ENODEV) {
		return l, damaged(action, x.subject(), x.in().redo(op), "%s has no interface %q", x.in().place, x.link())
	}
	return l, classify(action, x.subject(), err)
}

// named looks up the link of each operation of a run. It asks once for each
// link, and for all links together.
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
