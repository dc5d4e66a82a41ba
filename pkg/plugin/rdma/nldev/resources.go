// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nldev

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// Kind is a kind of objects that programs and the kernel make on a device. Its number is
// that of the command that lists them.
type Kind uint16

// The kinds that Resources can list. Kernels before 5.15 do not list Contexts.
const (
	QueuePairs  Kind = 10 // RDMA_NLDEV_CMD_RES_*_GET
	Connections Kind = 11 // of rdma_cm
	Regions     Kind = 13 // of memory
	Contexts    Kind = 22 // a program has one for each time that it opened the device
)

// Counters are those that the driver has bound to programs, for Each (RDMA_NLDEV_CMD_STAT_GET,
// rdma statistic qp show).
const Counters Kind = 17

// Resource is an object on a device.
type Resource struct {
	Type uint8 // of a queue pair: enum ib_qp_type
	// PID is the program that made it, as the PID namespace of the reader knows it; 0 if
	// that does not know it, and for an object of the kernel.
	PID uint32
	// Module is the module of the kernel that made it, "" for one of a program.
	Module string
	Bytes  uint64 // of a memory region
}

// The types of queue pairs (enum ib_qp_type) that the kernel has for itself. It has one of
// each of the first two on a port.
const (
	qpGSI = 1
	qpUD  = 4
)

// Own says whether a queue pair is one that the driver or ib_core has for itself: it is not
// connected.
func (r Resource) Own() bool { return r.Type <= qpGSI || r.Module != "" && r.Type == qpUD }

// TypeName returns the type of a queue pair as rdma resource prints it.
func (r Resource) TypeName() string {
	names := map[uint8]string{2: "RC", 3: "UC", 4: "UD", 8: "RAW_PACKET", 9: "XRC_INI", 10: "XRC_TGT", 255: "DRIVER"}
	return cmp.Or(names[r.Type], fmt.Sprintf("type %d", r.Type))
}

// Resources returns the objects of a kind that are on a device, in one round trip (rdma
// resource show). Errors: ErrNoDevice, also from a kernel that does not know the kind.
func (c *Conn) Resources(ctx context.Context, device uint32, kind Kind) (out []Resource, err error) {
	err = c.Each(ctx, device, kind, func(entry []byte) { out = append(out, parseResource(entry)) })
	return out, err
}

// Each calls fn with the attributes of each object of a kind on a device, in one round trip.
// Errors: as Resources.
func (c *Conn) Each(ctx context.Context, device uint32, kind Kind, fn func(entry []byte)) error {
	body := nlsock.AppendNumber(nil, attrDevIndex, device)
	if kind == Counters {
		body = nlsock.AppendNumber(body, attrStatRes, attrQueuePairs)
	}
	rows, err := c.sock.Dump(ctx, request(uint16(kind), body))
	if gone(err) {
		return fmt.Errorf("%w: %w", ErrNoDevice, err)
	}
	for _, row := range rows {
		for typ, table := range nlsock.Attributes(row) {
			switch typ {
			case attrQueuePairs, attrConnections, attrRegions, attrContexts, attrCounters:
				for _, entry := range nlsock.Attributes(table) {
					fn(entry)
				}
			}
		}
	}
	return err
}

func parseResource(b []byte) Resource {
	var r Resource
	for typ, v := range nlsock.Attributes(b) {
		switch {
		case typ == attrQPType && len(v) > 0:
			r.Type = v[0]
		case typ == attrPID:
			r.PID = nlsock.Number(v)
		case typ == attrModule:
			r.Module = nlsock.Text(v)
		case typ == attrRegionLength && len(v) >= 8:
			r.Bytes = binary.NativeEndian.Uint64(v)
		}
	}
	return r
}
