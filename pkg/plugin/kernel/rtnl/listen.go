// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// Listener receives changes of links, addresses, routes and rules, as nlsock.Listener does.
type Listener struct{ *nlsock.Listener }

// Listen joins the groups, in the namespace of the calling thread. The caller must Close the
// Listener.
func Listen() (Listener, error) {
	l, err := nlsock.Listen(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE)
	return Listener{l}, err
}

// Changed is what changed.
type Changed struct {
	NSID int32  // the number of the namespace, nlsock.OwnNSID for that of the Listener
	Link string // the name of a link, "" for everything else
	Gone bool   // it was removed
}

// Next waits for changes. Its errors are those of nlsock.Listener.
func (l Listener) Next() ([]Changed, error) {
	nsid, msgs, err := l.Listener.Next()
	var out []Changed
	for _, m := range msgs {
		c := Changed{NSID: nsid}
		switch m.Header.Type {
		case unix.RTM_DELLINK, unix.RTM_DELADDR, unix.RTM_DELROUTE, unix.RTM_DELRULE:
			c.Gone = true
		}
		if m.Header.Type == unix.RTM_NEWLINK || m.Header.Type == unix.RTM_DELLINK {
			for typ, v := range nlsock.Attributes(m.Data[min(unix.SizeofIfInfomsg, len(m.Data)):]) {
				if typ == unix.IFLA_IFNAME {
					c.Link = nlsock.Text(v)
				}
			}
		}
		out = append(out, c)
	}
	return out, err
}
