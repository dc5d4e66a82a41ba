// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// neighbour executes plan.Neighbour.
type neighbour struct {
	namespace
	op plan.Neighbour
}

// neighbours is a run.
type neighbours []neighbour

func (r neighbours) do(ctx context.Context) error {
	const action = "set neighbour"
	var changes []rtnl.Change
	for i, l := range r.links(ctx) {
		if l.Err != nil {
			return classify(action, r[i].subject(), l.Err)
		}
		changes = append(changes, rtnl.SetNeighbour(r[i].want(l.Link.Index)))
	}
	for i, err := range r[0].conn.Each(ctx, changes...) {
		if err != nil {
			return classify(action, r[i].subject(), err)
		}
	}
	return nil
}

func (r neighbours) undo(ctx context.Context) error {
	const action = "delete neighbour"
	var errs []error
	var changes []rtnl.Change
	var of neighbours
	for i, l := range slices.Backward(r.links(ctx)) {
		if l.Err != nil {
			errs = append(errs, classify(action, r[i].subject(), ignore(l.Err, unix.ENODEV)))
			continue
		}
		changes, of = append(changes, rtnl.DeleteNeighbour(r[i].want(l.Link.Index))), append(of, r[i])
	}
	for i, err := range r[0].conn.Each(ctx, changes...) {
		errs = append(errs, classify(action, of[i].subject(), ignore(err, unix.ENOENT)))
	}
	return errors.Join(errs...)
}

func (r neighbours) check(ctx context.Context) error { return checkEach(ctx, r) }

func (x neighbour) check(ctx context.Context) error {
	const action = "check neighbour"
	l, err := x.conn.LinkByName(ctx, string(x.op.Link))
	if errors.Is(err, unix.ENODEV) {
		return damaged(action, x.subject(), x.redo(x.op), "%s has no interface %q", x.place, x.op.Link)
	}
	if err != nil {
		return classify(action, x.subject(), err)
	}
	has, err := x.conn.HasNeighbour(ctx, x.want(l.Index))
	if err != nil {
		return classify(action, x.subject(), err)
	}
	if !has {
		return damaged(action, x.subject(), x.redo(x.op), "want it permanent with MAC %s, got none or another one", x.op.MAC)
	}
	return nil
}

func (r neighbours) links(ctx context.Context) []rtnl.Named {
	return named(ctx, r[0].conn, r, func(x neighbour) conf.LinkName { return x.op.Link })
}

func (x neighbour) want(index int32) rtnl.Neighbour {
	return rtnl.Neighbour{Index: index, Addr: x.op.Addr, Address: x.op.MAC[:]}
}

func (x neighbour) subject() string { return fmt.Sprintf("%s on %s", x.op.Addr, x.op.Link) }
