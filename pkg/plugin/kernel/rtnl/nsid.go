// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"context"
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// NSID returns the number that the socket's namespace has for the namespace of
// a file descriptor, NoNSID if it has none.
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

// GiveNSID returns what NSID returns. If there is no number, the kernel first
// chooses one. Both take one message to the socket.
func (c *Conn) GiveNSID(ctx context.Context, fd int) (int32, error) {
	give := nsidRequest(unix.RTM_NEWNSID, fd)
	give.AddData(nl.NewRtAttr(unix.NETNSA_NSID, u32(^uint32(0))))
	replies := c.exchange(ctx, []*nl.NetlinkRequest{give, nsidRequest(unix.RTM_GETNSID, fd)})
	// EEXIST: it has a number, maybe another process just gave it.
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
