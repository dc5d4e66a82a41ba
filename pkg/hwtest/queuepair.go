// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// From include/uapi/rdma/rdma_netlink.h.
const (
	cmdQPGetRaw  = 19 // RDMA_NLDEV_CMD_RES_QP_GET_RAW
	attrQPNumber = 21 // RDMA_NLDEV_ATTR_RES_LQPN
	attrQPState  = 27 // RDMA_NLDEV_ATTR_RES_STATE
	attrPID      = 28 // RDMA_NLDEV_ATTR_RES_PID
	attrRaw      = 85 // RDMA_NLDEV_ATTR_RES_RAW
)

// readyToReceive is the first state in which a queue pair knows its peer (IB_QPS_RTR).
const readyToReceive = 2

// connected returns the numbers of the queue pairs on a device that a program has and that
// know their peer.
func connected(ctx context.Context, c *nldev.Conn, device, pid uint32) (numbers []uint32, err error) {
	err = c.Each(ctx, device, nldev.QueuePairs, func(entry []byte) {
		var number, of uint32
		var state uint8
		for typ, v := range nlsock.Attributes(entry) {
			switch {
			case typ == attrQPNumber:
				number = nlsock.Number(v)
			case typ == attrPID:
				of = nlsock.Number(v)
			case typ == attrQPState && len(v) > 0:
				state = v[0]
			}
		}
		if of == pid && state >= readyToReceive {
			numbers = append(numbers, number)
		}
	})
	return numbers, err
}

// errNotOffered says that the driver does not tell how its hardware keeps something.
var errNotOffered = errors.New("not offered by the driver")

// raw returns a queue pair as the hardware has it, in the driver's own format (rdma -r
// resource show qp). Errors: errNotOffered; ENOENT if there is no such queue pair.
func raw(ctx context.Context, c *nldev.Conn, device, number uint32) ([]byte, error) {
	reply, err := c.Get(ctx, cmdQPGetRaw, device, nlsock.AppendNumber(nil, attrQPNumber, number))
	if err != nil {
		return nil, err
	}
	if err := reply.Err; errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, fmt.Errorf("%w (%w)", errNotOffered, err)
	}
	for _, row := range reply.Rows {
		for typ, v := range nlsock.Attributes(row) {
			if typ == attrRaw {
				return v, nil
			}
		}
	}
	return nil, reply.Err
}
