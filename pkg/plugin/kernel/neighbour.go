// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"fmt"

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
	return change(ctx, action, r, func(x neighbour, index int32) rtnl.Change { return rtnl.SetNeighbour(x.want(index)) },
		func(x neighbour, _ rtnl.Link, err error) error { return classify(action, x.subject(), err) })
}

func (r neighbours) undo(ctx context.Context) error {
	return takeBack(ctx, "delete neighbour", r, func(x neighbour, index int32) (rtnl.Change, bool, error) {
		return rtnl.DeleteNeighbour(x.want(index)), true, nil
	}, unix.ENOENT)
}

func (r neighbours) check(ctx context.Context) error { return checkEach(ctx, r) }

func (x neighbour) check(ctx context.Context) error {
	const action = "check neighbour"
	l, err := linkOf(ctx, action, x, x.op)
	if err != nil {
		return err
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

func (x neighbour) link() conf.LinkName { return x.op.Link }

func (x neighbour) want(index int32) rtnl.Neighbour {
	return rtnl.Neighbour{Index: index, Addr: x.op.Addr, Address: x.op.MAC[:]}
}

func (x neighbour) subject() string { return fmt.Sprintf("%s on %s", x.op.Addr, x.op.Link) }
