// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plan"
)

// up executes plan.Up.
type up struct {
	namespace
	op plan.Up
}

// ups is a run.
type ups []up

func (r ups) do(ctx context.Context) error {
	var changes []rtnl.Change
	for _, u := range r {
		changes = append(changes, rtnl.SetUp(string(u.op.Link)))
	}
	for i, err := range r[0].conn.Each(ctx, changes...) {
		if err != nil {
			return classify("bring up", string(r[i].op.Link), err,
				// macvlan_open
				meaning{unix.EADDRINUSE, cnierr.TryAgain, "another child of the same master has this MAC: wait if its pod is being deleted, otherwise give the pods different MACs"})
		}
	}
	return nil
}

// undo does nothing: a link that we made vanishes, and a link that another
// plugin made is for that plugin to bring down.
func (r ups) undo(context.Context) error { return nil }

func (r ups) check(ctx context.Context) error { return checkEach(ctx, r) }

func (u up) check(ctx context.Context) error {
	const action = "check state of"
	l, err := u.conn.LinkByName(ctx, string(u.op.Link))
	switch {
	case errors.Is(err, unix.ENODEV):
		return damaged(action, string(u.op.Link), u.redo(u.op), "%s has no such interface", u.place)
	case err != nil:
		return classify(action, string(u.op.Link), err)
	case l.Flags&unix.IFF_UP == 0:
		return damaged(action, string(u.op.Link), u.redo(u.op), "want it up, got down")
	}
	return nil
}
