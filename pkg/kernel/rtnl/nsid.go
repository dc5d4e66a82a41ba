// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"context"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/nlsock"
)

// NSID returns the number by which the socket's namespace knows the one of a
// file descriptor, NoNSID if it has none.
func (c *Conn) NSID(ctx context.Context, fd int) (int32, error) {
	b, err := c.get(ctx, nsidRequest(unix.RTM_GETNSID, fd))
	if err != nil {
		return 0, err
	}
	for typ, v := range nlsock.Attributes(b[nl.NewRtGenMsg().Len():]) {
		if typ == unix.NETNSA_NSID {
			return int32(nlsock.Number(v)), nil
		}
	}
	return NoNSID, nil
}

// AddNSID gives the namespace of a file descriptor a number of the kernel's
// choice; EEXIST if it has one.
func AddNSID(fd int) Change {
	req := nsidRequest(unix.RTM_NEWNSID, fd)
	req.AddData(nl.NewRtAttr(unix.NETNSA_NSID, u32(^uint32(0))))
	return Change{req}
}

func nsidRequest(typ, fd int) *nl.NetlinkRequest {
	req := request(typ, 0, nl.NewRtGenMsg())
	req.AddData(nl.NewRtAttr(unix.NETNSA_FD, u32(uint32(fd))))
	return req
}
