// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// routing executes plan.Route.
type routing struct {
	namespace
	op plan.Route
}

// routings is a run.
type routings []routing

// do adds the routes. With NLM_F_EXCL the kernel refuses a second route with the same
// destination and metric in both families. Without it, IPv6 would add ours as another
// path of an existing route (fib6_add_rt2node).
func (rs routings) do(ctx context.Context) error {
	return change(ctx, addingRoute, rs, func(r routing, index int32) rtnl.Change { return rtnl.AddRoute(r.want(index)) },
		func(r routing, l rtnl.Link, err error) error { return r.added(ctx, l, err) })
}

func (r routing) link() conf.LinkName { return r.op.Link }

const addingRoute = "add route"

// added interprets what the kernel answers about adding the route.
func (r routing) added(ctx context.Context, l rtnl.Link, err error) error {
	if !errors.Is(err, unix.EEXIST) {
		const unreachable = "the gateway must lie in a subnet of the interface: correct gateway or routes"
		return classify(addingRoute, r.subject(), err,
			meaning{unix.ENETUNREACH, cnierr.BadConfig, unreachable},
			meaning{unix.EHOSTUNREACH, cnierr.BadConfig, unreachable},
			meaning{unix.ENETDOWN, cnierr.IO, r.ip("link set dev %s up", r.op.Link)})
	}
	there, err := r.existing(ctx)
	if err != nil {
		return classify(addingRoute, r.subject(), err)
	}
	want := r.want(l.Index)
	for _, is := range there {
		if is == want {
			return nil
		}
		if is.Dst == want.Dst && is.TOS == 0 && is.Metric == want.Metric {
			return cnierr.New(cnierr.RouteTaken, addingRoute, r.subject(),
				"remove the route from "+r.place.String()+r.orChoose("routing.table or routing.metric"),
				"there is one already: %s", r.describe(ctx, is))
		}
	}
	return cnierr.New(cnierr.TryAgain, addingRoute, r.subject(), cnierr.Again, "a conflicting route was removed at the same moment")
}

// undo removes the routes that have our protocol number, our link and our
// gateway. It looks first, once for each table: a deletion in IPv4 with metric
// 0 matches any metric (fib_table_delete, fib_nh_match).
func (rs routings) undo(ctx context.Context) error {
	type place struct {
		family uint8
		table  uint32
	}
	tables := map[place][]rtnl.Route{}
	return takeBack(ctx, "delete route", rs, func(r routing, index int32) (c rtnl.Change, is bool, err error) {
		at := place{rtnl.Family(r.op.Dst.Addr()), r.op.Table}
		there, known := tables[at]
		if !known {
			if there, err = r.existing(ctx); err != nil {
				return c, false, err
			}
		}
		j := slices.IndexFunc(there, r.marked(index))
		if is = j >= 0; is {
			c = rtnl.DeleteRoute(there[j])
			there = slices.Delete(there, j, j+1) // a second equal operation needs another route
		}
		tables[at] = there
		return c, is, nil
	}, unix.ESRCH)
}

// marked returns a function that says whether a route is ours to remove.
func (r routing) marked(index int32) func(rtnl.Route) bool {
	mark := func(x rtnl.Route) rtnl.Route {
		return rtnl.Route{Dst: x.Dst, TOS: x.TOS, Metric: x.Metric, Via: x.Via, Index: x.Index, Protocol: x.Protocol}
	}
	want := mark(r.want(index))
	return func(is rtnl.Route) bool { return mark(is) == want }
}

func (rs routings) check(ctx context.Context) error { return checkEach(ctx, rs) }

func (r routing) check(ctx context.Context) error {
	const action = "check route"
	l, err := linkOf(ctx, action, r, r.op)
	if err != nil {
		return err
	}
	there, err := r.existing(ctx)
	if err != nil {
		return classify(action, r.subject(), err)
	}
	want, got := r.want(l.Index), "none"
	var before []string
	for _, is := range there {
		if is == want {
			return nil
		}
		if is.Dst == want.Dst && is.TOS == 0 && is.Metric == want.Metric {
			got = r.describe(ctx, is)
			before = append(before, r.deleteRoute(ctx, is))
		}
	}
	if r.op.Table == plan.MainTable && before == nil {
		moved, err := r.routedByOthers(ctx, l, r.op.Dst.Addr())
		if err != nil {
			return classify(action, r.subject(), err)
		}
		if moved {
			return damaged(action, r.subject(), r.redo(r.op), "%w", &ChangedError{Property: "the route", Want: "in the main table", Got: got})
		}
	}
	return damaged(action, r.subject(), r.redo(r.op, before...), "want it through %s, got %s", r.op.Link, got)
}

// existing returns the routes of the operation's family and table.
func (r routing) existing(ctx context.Context) ([]rtnl.Route, error) {
	return r.conn.RoutesOf(ctx, rtnl.Family(r.op.Dst.Addr()), r.op.Table)
}

func (r routing) subject() string { return fmt.Sprintf("%s table %d", r.op.Dst, r.op.Table) }

// describe describes an existing route that is not ours.
func (n namespace) describe(ctx context.Context, is rtnl.Route) string {
	name := fmt.Sprintf("interface %d", is.Index)
	if l, err := n.conn.LinkByIndex(ctx, is.Index); err == nil {
		name = l.Name
	}
	if not := nowhere(is.Type); not != "" {
		return fmt.Sprintf("%s %s with protocol %d", not, is.Dst, is.Protocol)
	}
	s := fmt.Sprintf("%s through %s with protocol %d", is.Dst, name, is.Protocol)
	if is.Via.IsValid() {
		s += fmt.Sprintf(" via %s", is.Via)
	}
	return s
}

// deleteRoute returns the command that deletes an existing route, and no other.
func (n namespace) deleteRoute(ctx context.Context, is rtnl.Route) string {
	s := n.ip("route del") + " "
	if not := nowhere(is.Type); not != "" {
		s += not + " "
	}
	s += is.Dst.String()
	if is.TOS != 0 {
		s += fmt.Sprintf(" tos %#02x", is.TOS)
	}
	if is.Via.IsValid() && !is.Odd {
		s += fmt.Sprint(" via ", is.Via)
	}
	if l, err := n.conn.LinkByIndex(ctx, is.Index); err == nil && is.Type == unix.RTN_UNICAST && !is.Odd {
		s += shell.Command(" dev %s", l.Name)
	}
	return s + fmt.Sprintf(" table %d metric %d proto %d", is.Table, is.Metric, is.Protocol)
}

// nowhere returns what ip(8) calls a route, or the action of a rule, that leads nowhere, ""
// for any other. The numbers of both are the same.
func nowhere(typ uint8) string {
	return map[uint8]string{
		unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit", unix.RTN_THROW: "throw",
	}[typ]
}

// defaultMetric is the metric that IPv6 uses when a route gives none
// (IP6_RT_PRIO_USER).
const defaultMetric = 1024

func (r routing) want(index int32) rtnl.Route {
	w := rtnl.Route{
		Table: r.op.Table, Dst: r.op.Dst, Via: r.op.Via, Src: r.op.Src, Index: index, Metric: r.op.Metric,
		MTU: uint32(r.op.MTU), AdvMSS: uint32(r.op.AdvMSS), Protocol: plan.Protocol, Type: unix.RTN_UNICAST, OnLink: r.op.OnLink,
	}
	switch {
	case r.op.Dst.Addr().Is4():
		w.Scope = uint8(r.op.Scope)
	case w.Metric == 0:
		w.Metric = defaultMetric
	}
	return w
}
