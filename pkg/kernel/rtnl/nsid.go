// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"context"
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/nlsock"
)

// NSID returns the number by which the socket's namespace knows the one of a
// file descriptor, NoNSID if it has none.
func (c *Conn) NSID(ctx context.Context, fd int) (int32, error) {
	return nsid(c.exchange(ctx, []*nl.NetlinkRequest{nsidRequest(unix.RTM_GETNSID, fd)})[0])
}

func nsid(r nlsock.Reply) (int32, error) {
	b, err := answer(r)
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

// GiveNSID returns what NSID does, and before that gives the namespace a number
// of the kernel's choice if it has none, all in one message to the socket.
func (c *Conn) GiveNSID(ctx context.Context, fd int) (int32, error) {
	give := nsidRequest(unix.RTM_NEWNSID, fd)
	give.AddData(nl.NewRtAttr(unix.NETNSA_NSID, u32(^uint32(0))))
	replies := c.exchange(ctx, []*nl.NetlinkRequest{give, nsidRequest(unix.RTM_GETNSID, fd)})
	// EEXIST: it has one, maybe since a moment ago.
	if err := replies[0].Err; err != nil && !errors.Is(err, unix.EEXIST) {
		return 0, err
	}
	return nsid(replies[1])
}

func nsidRequest(typ, fd int) *nl.NetlinkRequest {
	req := request(typ, 0, nl.NewRtGenMsg())
	req.AddData(nl.NewRtAttr(unix.NETNSA_FD, u32(uint32(fd))))
	return req
}
