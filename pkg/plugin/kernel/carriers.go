// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// carriers executes plan.Carriers.
type carriers struct {
	namespace
	op plan.Carriers
}

func (c carriers) do(context.Context) error { return c.onlyUndone() }

func (c carriers) check(context.Context) error { return c.onlyUndone() }

func (c carriers) onlyUndone() error {
	return cnierr.New(cnierr.Bug, "do", c.path, "", "carriers are only ever undone")
}

// undo removes the macvlans and ipvlans that have one of the addresses. It reads the links only if a
// link has one.
func (c carriers) undo(ctx context.Context) error {
	const action = "look for addresses in"
	addrs, err := c.conn.Addresses(ctx, 0)
	if err != nil {
		return classify(action, c.path, err)
	}
	addrs = slices.DeleteFunc(addrs, func(a rtnl.Address) bool { return !slices.Contains(c.op.Addresses, a.Prefix.Addr()) })
	if len(addrs) == 0 {
		return nil
	}
	links, err := c.conn.Links(ctx)
	if err != nil {
		return classify(action, c.path, err)
	}
	doomed := slices.DeleteFunc(slices.Clone(links), func(l rtnl.Link) bool {
		has := func(a rtnl.Address) bool { return a.Index == l.Index }
		return !childKind(l) || !slices.ContainsFunc(addrs, has) // an alias proves nothing: the pod can set one
	})
	return remove(ctx, c.conn, doomed, links)
}
