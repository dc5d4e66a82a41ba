// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// MACInUseError is returned by Do of plan.Up when another child of the same parent is up
// with the MAC of the link. A pod that has gone may have left it, in a namespace that
// something keeps.
type MACInUseError struct{ Link conf.LinkName }

// Error says who has the MAC.
func (e *MACInUseError) Error() string { return "another child of the same master has its MAC" }

// AddressInUseError is returned by Do of plan.Address when another ipvlan of the same NIC
// has the address.
type AddressInUseError struct {
	Link conf.LinkName
	Addr netip.Addr
}

// Error says who has the address.
func (e *AddressInUseError) Error() string { return "another ipvlan of the same master has it" }

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
		changes = append(changes, rtnl.SetUp(string(u.op.Link), u.op.MTU))
	}
	for i, err := range r[0].conn.Each(ctx, changes...) {
		if errors.Is(err, unix.EADDRINUSE) { // macvlan_open
			return cnierr.New(cnierr.TryAgain, "bring up", string(r[i].op.Link),
				"wait if the pod of that child is being deleted, otherwise give the pods different MACs", "%w", &MACInUseError{r[i].op.Link})
		}
		if err != nil {
			return classify("bring up", string(r[i].op.Link), err)
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
