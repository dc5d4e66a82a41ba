// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nldev

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// readyToReceive is the first state in which a queue pair knows its peer (IB_QPS_RTR).
const readyToReceive = 2

// Connected returns the numbers of the queue pairs on a device that a program has and that
// know their peer.
func (c *Conn) Connected(ctx context.Context, device, pid uint32) (numbers []uint32, err error) {
	err = c.each(ctx, device, QueuePairs, func(entry []byte) {
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

// ErrNotOffered says that the driver does not tell how its hardware keeps something.
var ErrNotOffered = errors.New("not offered by the driver")

// Raw returns a queue pair as the hardware has it, in the driver's own format (rdma -r
// resource show qp). Errors: ErrNotOffered; ENOENT if there is no such queue pair.
func (c *Conn) Raw(ctx context.Context, device, number uint32) ([]byte, error) {
	body := nlsock.AppendNumber(nlsock.AppendNumber(nil, attrDevIndex, device), attrQPNumber, number)
	replies, err := c.sock.Exchange(ctx, request(cmdQPGetRaw, body))
	if err != nil {
		return nil, err
	}
	if err := replies[0].Err; errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, fmt.Errorf("%w (%w)", ErrNotOffered, err)
	}
	for _, row := range replies[0].Rows {
		for typ, v := range nlsock.Attributes(row) {
			if typ == attrRaw {
				return v, nil
			}
		}
	}
	return nil, replies[0].Err
}
