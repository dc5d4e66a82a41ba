// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// Route has everything that distinguishes a unicast route through one link from
// others. Two routes are equal when == says so.
type Route struct {
	Table    uint32
	Dst      netip.Prefix // masked
	Via, Src netip.Addr
	Index    int32  // of the link
	Metric   uint32 // IPv6: the kernel never reports 0
	MTU      uint32
	AdvMSS   uint32
	Protocol uint8
	Scope    uint8 // 0 for IPv6
	Type     uint8 // RTN_*
	TOS      uint8 // only packets with it take the route; 0: all
	OnLink   bool
	// Odd says that it has something that the fields above cannot express, such
	// as several paths. Via and Index are then those of the first path.
	Odd bool
}

// IsDefault says whether r is a unicast default route in the main table.
func (r Route) IsDefault() bool {
	return r.Table == unix.RT_TABLE_MAIN && r.Dst.Bits() == 0 && r.Type == unix.RTN_UNICAST
}

// AddRoute adds a route. EEXIST means that the table has a route with the same
// destination and metric. Without NLM_F_EXCL, IPv6 would add the new one as
// another path of that route (fib6_add_rt2node).
func AddRoute(r Route) Change { return r.change(unix.RTM_NEWROUTE, creation) }

// DeleteRoute removes a route. ESRCH means that there is none with the same
// destination, TOS, link, gateway, metric and protocol.
func DeleteRoute(r Route) Change { return r.change(unix.RTM_DELROUTE, 0) }

func (r Route) change(typ, flags int) Change {
	msg := nl.NewRtMsg()
	msg.Family, msg.Dst_len = Family(r.Dst.Addr()), uint8(r.Dst.Bits())
	msg.Table, msg.Protocol, msg.Scope, msg.Tos = unix.RT_TABLE_UNSPEC, r.Protocol, r.Scope, r.TOS
	if r.OnLink {
		msg.Flags = unix.RTNH_F_ONLINK
	}
	return Change{request(typ, flags, msg,
		number(unix.RTA_TABLE, r.Table), ip(unix.RTA_DST, r.Dst.Addr()), number(unix.RTA_OIF, r.Index),
		ip(unix.RTA_GATEWAY, r.Via), ip(unix.RTA_PREFSRC, r.Src), optional(unix.RTA_PRIORITY, r.Metric),
		nest(unix.RTA_METRICS, optional(unix.RTAX_MTU, r.MTU), optional(unix.RTAX_ADVMSS, r.AdvMSS)))}
}

// Routes returns the IPv4 and IPv6 routes of all tables.
func (c *Conn) Routes(ctx context.Context) ([]Route, error) {
	rows, err := c.dump(ctx, request(unix.RTM_GETROUTE, 0, &nl.RtMsg{}))
	if err != nil {
		return nil, err
	}
	return parseRoutes(rows, unix.AF_INET, unix.AF_INET6), nil
}

// RoutesOf returns the routes of one family in one table. For the kernel a
// table without routes does not exist.
func (c *Conn) RoutesOf(ctx context.Context, family uint8, table uint32) ([]Route, error) {
	msg := &nl.RtMsg{}
	msg.Family = family
	rows, err := c.dump(ctx, request(unix.RTM_GETROUTE, 0, msg, number(unix.RTA_TABLE, table)))
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	return slices.DeleteFunc(parseRoutes(rows, family), func(r Route) bool { return r.Table != table }), nil
}

// RouteTo returns the route that packets from src to dst take, as the rules say. ENETUNREACH
// and similar errors mean that there is none.
func (c *Conn) RouteTo(ctx context.Context, src, dst netip.Addr) (Route, error) {
	msg := &nl.RtMsg{}
	msg.Family, msg.Src_len, msg.Dst_len = Family(dst), uint8(src.BitLen()), uint8(dst.BitLen())
	if dst.Is4() { // IPv6 tells the table without being asked (inet6_rtm_valid_getroute_req)
		msg.Flags = unix.RTM_F_LOOKUP_TABLE
	}
	b, err := c.get(ctx, request(unix.RTM_GETROUTE, 0, msg, ip(unix.RTA_SRC, src), ip(unix.RTA_DST, dst)))
	if err != nil {
		return Route{}, err
	}
	return parseRoute(b), nil
}

// parseRoutes returns the routes of families. It leaves out multicast routing
// and MPLS, which have tables too.
func parseRoutes(rows [][]byte, families ...uint8) []Route {
	var out []Route
	for _, b := range rows {
		msg := nl.DeserializeRtMsg(b)
		if slices.Contains(families, msg.Family) && msg.Flags&unix.RTM_F_CLONED == 0 {
			out = append(out, parseRoute(b))
		}
	}
	return out
}

// nhID is RTA_NH_ID: the route uses a nexthop object.
const nhID = 30

func parseRoute(b []byte) Route {
	msg := nl.DeserializeRtMsg(b)
	r := Route{
		Table: uint32(msg.Table), Dst: prefix(msg.Family, nil, msg.Dst_len), Protocol: msg.Protocol,
		Scope: msg.Scope, Type: msg.Type, TOS: msg.Tos, OnLink: msg.Flags&unix.RTNH_F_ONLINK != 0,
		Odd: msg.Src_len != 0,
	}
	for typ, v := range nlsock.Attributes(b[msg.Len():]) {
		switch typ {
		case unix.RTA_TABLE:
			r.Table = nlsock.Number(v)
		case unix.RTA_DST:
			r.Dst = prefix(msg.Family, v, msg.Dst_len)
		case unix.RTA_PREFSRC:
			r.Src = addr(v)
		case unix.RTA_PRIORITY:
			r.Metric = nlsock.Number(v)
		case unix.RTA_METRICS:
			r.parseMetrics(v)
		case unix.RTA_MULTIPATH:
			r.Odd = true
			r.parseFirstPath(v)
		case unix.RTA_ENCAP, unix.RTA_VIA, unix.RTA_FLOW, nhID:
			r.Odd = true
		default:
			r.parsePath(typ, v)
		}
	}
	return r
}

func (r *Route) parsePath(typ uint16, v []byte) {
	switch typ {
	case unix.RTA_OIF:
		r.Index = int32(nlsock.Number(v))
	case unix.RTA_GATEWAY:
		r.Via = addr(v)
	}
}

// parseFirstPath reads the first struct rtnexthop.
func (r *Route) parseFirstPath(b []byte) {
	if len(b) < unix.SizeofRtNexthop {
		return
	}
	hop := nl.DeserializeRtNexthop(b)
	r.Index = hop.Ifindex
	end := min(int(hop.RtNexthop.Len), len(b))
	for typ, v := range nlsock.Attributes(b[unix.SizeofRtNexthop:max(end, unix.SizeofRtNexthop)]) {
		r.parsePath(typ, v)
	}
}

func (r *Route) parseMetrics(b []byte) {
	for typ, v := range nlsock.Attributes(b) {
		switch typ {
		case unix.RTAX_MTU:
			r.MTU = nlsock.Number(v)
		case unix.RTAX_ADVMSS:
			r.AdvMSS = nlsock.Number(v)
		}
	}
}

// Rule is a policy rule that looks only at the source address. Two rules are
// equal when == says so.
type Rule struct {
	From     netip.Prefix
	Table    uint32
	Priority uint32
	Action   uint8  // FR_ACT_*
	Goto     uint32 // the priority of the rule that FR_ACT_GOTO goes on with
	Protocol uint8
	Inverted bool // it matches all sources but From
	// Narrow says that it looks at more than the source. Odd says that it does
	// something that the fields above cannot express.
	Narrow, Odd bool
}

// AddRule adds a rule. EEXIST means that an equal rule exists, protocol
// included (rule_exists).
func AddRule(r Rule) Change { return r.change(unix.RTM_NEWRULE, creation) }

// DeleteRule removes the first rule that agrees with r (rule_find). ENOENT
// means that there is none.
func DeleteRule(r Rule) Change { return r.change(unix.RTM_DELRULE, 0) }

// A struct fib_rule_hdr is a struct rtmsg but for the names of its fields.
func (r Rule) change(typ, flags int) Change {
	msg := &nl.RtMsg{}
	msg.Family, msg.Src_len, msg.Type = Family(r.From.Addr()), uint8(r.From.Bits()), r.Action
	return Change{request(typ, flags, msg, ip(unix.FRA_SRC, r.From.Addr()), number(unix.FRA_PRIORITY, r.Priority),
		nl.NewRtAttr(unix.FRA_PROTOCOL, nl.Uint8Attr(r.Protocol)), optional(unix.FRA_TABLE, r.Table))}
}

// Rules returns the rules of a family, of IPv4 and IPv6 for AF_UNSPEC.
func (c *Conn) Rules(ctx context.Context, family uint8) ([]Rule, error) {
	msg := &nl.RtMsg{}
	msg.Family = family
	rows, err := c.dump(ctx, request(unix.RTM_GETRULE, 0, msg))
	if err != nil {
		return nil, err
	}
	var out []Rule
	for _, b := range rows {
		// Multicast routing has rules too.
		if f := nl.DeserializeRtMsg(b).Family; f == unix.AF_INET || f == unix.AF_INET6 {
			out = append(out, parseRule(b))
		}
	}
	return out, nil
}

// unset is what the kernel reports for a suppressor that is not set.
const unset = ^uint32(0)

func parseRule(b []byte) Rule {
	msg := nl.DeserializeRtMsg(b)
	r := Rule{
		From: prefix(msg.Family, nil, msg.Src_len), Table: uint32(msg.Table), Action: msg.Type,
		Inverted: msg.Flags&unix.FIB_RULE_INVERT != 0, Narrow: msg.Dst_len != 0 || msg.Tos != 0,
	}
	for typ, v := range nlsock.Attributes(b[msg.Len():]) {
		switch typ {
		case unix.FRA_SRC:
			r.From = prefix(msg.Family, v, msg.Src_len)
		case unix.FRA_TABLE:
			r.Table = nlsock.Number(v)
		case unix.FRA_PRIORITY:
			r.Priority = nlsock.Number(v)
		case unix.FRA_PROTOCOL:
			if len(v) > 0 {
				r.Protocol = v[0]
			}
		case unix.FRA_SUPPRESS_PREFIXLEN, unix.FRA_SUPPRESS_IFGROUP:
			r.Odd = r.Odd || nlsock.Number(v) != unset
		case unix.FRA_GOTO:
			r.Goto, r.Odd = nlsock.Number(v), true
		case unix.FRA_FLOW:
			r.Odd = true
		case unix.FRA_PAD:
		default: // mark, interface, ports, user, and what kernels to come look at
			r.Narrow = true
		}
	}
	return r
}
