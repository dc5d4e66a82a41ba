// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nldev

import (
	"context"
	"fmt"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// QP is a queue pair of a device.
type QP struct {
	Type uint8 // enum ib_qp_type
	// PID is the program that made it, as the PID namespace of the reader knows it; 0 if
	// that does not know it, and for a queue pair of the kernel.
	PID uint32
	// Module is the module of the kernel that made it, "" for one of a program.
	Module string
}

// QueuePairs returns the queue pairs of a device, in one round trip (rdma resource show qp).
// Errors: ErrNoDevice.
func (c *Conn) QueuePairs(ctx context.Context, device uint32) (out []QP, err error) {
	err = c.eachQP(ctx, device, func(entry []byte) { out = append(out, parseQP(entry)) })
	return out, err
}

func (c *Conn) eachQP(ctx context.Context, device uint32, fn func(entry []byte)) error {
	rows, err := c.sock.Dump(ctx, request(cmdQPGet, nlsock.AppendNumber(nil, attrDevIndex, device)))
	if gone(err) {
		return fmt.Errorf("%w: %w", ErrNoDevice, err)
	}
	for _, row := range rows {
		for typ, table := range nlsock.Attributes(row) {
			if typ != attrQueuePairs {
				continue
			}
			for _, entry := range nlsock.Attributes(table) {
				fn(entry)
			}
		}
	}
	return err
}

func parseQP(b []byte) QP {
	var q QP
	for typ, v := range nlsock.Attributes(b) {
		switch {
		case typ == attrQPType && len(v) > 0:
			q.Type = v[0]
		case typ == attrPID:
			q.PID = nlsock.Number(v)
		case typ == attrModule:
			q.Module = nlsock.Text(v)
		}
	}
	return q
}
