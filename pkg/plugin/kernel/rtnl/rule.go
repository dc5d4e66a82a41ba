// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"context"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// Rule is a policy rule that looks only at the source address. Two rules are
// equal when == says so.
type Rule struct {
	From     netip.Prefix
	Table    uint32
	Priority uint32
	Action   uint8 // FR_ACT_*
	Protocol uint8
	Inverted bool // it matches all sources but From
	// Narrow says that it looks at more than the source. Odd says that it does
	// something that the fields above cannot express.
	Narrow, Odd bool
}

// AddRule adds a rule. EEXIST means that an equal rule exists, protocol
// included (rule_exists).
func AddRule(r Rule) Change { return Change{r.message(unix.RTM_NEWRULE, creation)} }

// DeleteRule removes the first rule that agrees with r (rule_find). ENOENT
// means that there is none.
func DeleteRule(r Rule) Change { return Change{r.message(unix.RTM_DELRULE, 0)} }

// message returns a request about the rule. A struct fib_rule_hdr is a struct
// rtmsg but for the names of its fields.
func (r Rule) message(typ, flags int) *nl.NetlinkRequest {
	msg := &nl.RtMsg{}
	msg.Family, msg.Src_len, msg.Type = Family(r.From.Addr()), uint8(r.From.Bits()), r.Action
	req := request(typ, flags, msg)
	req.AddData(nl.NewRtAttr(unix.FRA_SRC, r.From.Addr().AsSlice()))
	req.AddData(nl.NewRtAttr(unix.FRA_PRIORITY, u32(r.Priority)))
	req.AddData(nl.NewRtAttr(unix.FRA_PROTOCOL, nl.Uint8Attr(r.Protocol)))
	if r.Table != 0 {
		req.AddData(nl.NewRtAttr(unix.FRA_TABLE, u32(r.Table)))
	}
	return req
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
		case unix.FRA_FLOW, unix.FRA_GOTO:
			r.Odd = true
		case unix.FRA_PAD:
		default: // mark, interface, ports, user, and what kernels to come look at
			r.Narrow = true
		}
	}
	return r
}
