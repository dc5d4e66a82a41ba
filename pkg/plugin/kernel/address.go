// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// address executes plan.Address.
type address struct {
	namespace
	op plan.Address
}

// addresses is a run.
type addresses []address

func (a address) link() conf.LinkName { return a.op.Link }

func (a address) subject() string { return a.op.Prefix.String() }

func (r addresses) do(ctx context.Context) error {
	return change(ctx, addingAddress, r, func(a address, index int32) rtnl.Change { return rtnl.AddAddress(index, a.op.Prefix) },
		func(a address, l rtnl.Link, err error) error { return a.added(ctx, l, err) })
}

const addingAddress = "add address"

// added interprets what the kernel answers about adding the address. The kernel
// answers EEXIST only for the same link: in both families another link may have
// the address too.
func (a address) added(ctx context.Context, l rtnl.Link, err error) error {
	if errors.Is(err, unix.EADDRINUSE) { // ipvlan_addr4_validator_event, ipvlan_addr6_validator_event
		return cnierr.New(cnierr.AddressTaken, addingAddress, a.subject(),
			"find the ipvlan of the same NIC that has the address: ip -d addr show type ipvlan, in each network namespace", "%w", &AddressInUseError{a.op.Link, a.op.Prefix.Addr()})
	}
	if !errors.Is(err, unix.EEXIST) {
		return classify(addingAddress, a.subject(), err,
			// ipv6_add_addr, for a link with disable_ipv6
			meaning{unix.EACCES, cnierr.IO, "set net/ipv6/conf/" + string(a.op.Link) + "/disable_ipv6 to 0 in " + a.place.String() + ": another program set it to 1 again"})
	}
	there, err := a.conn.Addresses(ctx, l.Index)
	if err != nil {
		return classify(addingAddress, a.subject(), err)
	}
	for _, is := range there {
		if is.Prefix == a.op.Prefix {
			return nil
		}
	}
	return cnierr.New(cnierr.IO, addingAddress, a.subject(),
		"remove the address that is there, which roce-cni did not add", "%s has %s", a.op.Link, list(there))
}

// undo removes each address from its own link and from no other.
func (r addresses) undo(ctx context.Context) error {
	return takeBack(ctx, "delete address", r, func(a address, index int32) (rtnl.Change, bool, error) {
		return rtnl.DeleteAddress(index, a.op.Prefix), true, nil
	}, unix.ENODEV, unix.EADDRNOTAVAIL)
}

func (r addresses) check(ctx context.Context) error { return checkEach(ctx, r) }

func (a address) check(ctx context.Context) error {
	const action = "check address"
	l, err := linkOf(ctx, action, a, a.op)
	if err != nil {
		return err
	}
	there, err := a.conn.Addresses(ctx, l.Index)
	if err != nil {
		return classify(action, a.subject(), err)
	}
	var before []string
	for _, is := range there {
		remove := a.ip("addr del %s dev %s", is.Prefix, a.op.Link)
		switch {
		case is.Prefix == a.op.Prefix && is.Flags&unix.IFA_F_DADFAILED == 0:
			return a.connected(ctx, l, is)
		case is.Prefix == a.op.Prefix:
			return damaged(action, a.subject(), a.redo(a.op, remove),
				"%s has it, but duplicate address detection failed: another machine has it too", a.op.Link)
		case is.Prefix.Addr() == a.op.Prefix.Addr():
			before = append(before, remove)
		}
	}
	return damaged(action, a.subject(), a.redo(a.op, before...), "want it on %s, got %s", a.op.Link, list(there))
}

// connected looks for the route to the subnet. The kernel makes it with the
// address (fib_add_ifaddr, addrconf_prefix_route) and removes it when the link
// goes down. A route that another program made is good enough: it reaches the
// subnet.
func (a address) connected(ctx context.Context, l rtnl.Link, is rtnl.Address) error {
	const action = "check address"
	subnet, addr := a.op.Prefix.Masked(), a.op.Prefix.Addr()
	if subnet.IsSingleIP() || l.Flags&unix.IFF_UP == 0 || is.Flags&unix.IFA_F_NOPREFIXROUTE != 0 {
		return nil
	}
	there, err := a.conn.RoutesOf(ctx, rtnl.Family(addr), plan.MainTable)
	if err != nil {
		return classify(action, a.subject(), err)
	}
	if slices.ContainsFunc(there, func(r rtnl.Route) bool {
		return r.Dst == subnet && r.Index == l.Index && !r.Via.IsValid() && r.Type == unix.RTN_UNICAST
	}) {
		return nil
	}
	// Another link of the pod may be in the same subnet: then the kernel would
	// refuse "add".
	add := a.ip("route append %s dev %s proto kernel metric 256", subnet, a.op.Link)
	if addr.Is4() {
		add = a.ip("route append %s dev %s proto kernel scope link src %s", subnet, a.op.Link, addr)
	}
	moved, err := a.routedByOthers(ctx, l, addr)
	if err != nil {
		return classify(action, a.subject(), err)
	}
	if moved {
		return damaged(action, a.subject(), []string{add}, "%w", &ChangedError{Property: subnetRoute, Want: "in the main table", Got: "none"})
	}
	return damaged(action, a.subject(), []string{add}, "%w", ErrNoSubnetRoute)
}

// routedByOthers says whether another program has a rule for packets from an address of a
// link. The plugin sbr adds such rules, and moves the link's routes of the main table to its
// own tables, and those that it has no rule for, too.
func (n namespace) routedByOthers(ctx context.Context, l rtnl.Link, family netip.Addr) (bool, error) {
	there, err := n.conn.Addresses(ctx, l.Index)
	if err != nil {
		return false, err
	}
	rules, err := n.conn.Rules(ctx, rtnl.Family(family))
	return slices.ContainsFunc(rules, func(r rtnl.Rule) bool {
		return r.Protocol != plan.Protocol && r.From.IsSingleIP() &&
			slices.ContainsFunc(there, func(a rtnl.Address) bool { return a.Prefix.Addr() == r.From.Addr() })
	}), err
}

func list(as []rtnl.Address) string {
	if len(as) == 0 {
		return "no address"
	}
	var names []string
	for _, a := range as {
		names = append(names, a.Prefix.String())
	}
	return strings.Join(names, ", ")
}
