// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package nldevtest answers in tests as a kernel with RDMA devices does.
//
// It stands beside nldev, for tests of what reads devices. The tests of rdma have a fake of
// their own, which can also change them. Everything is in this file.
package nldevtest

import (
	"context"
	"encoding/binary"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// Kernel has these devices, numbered from 1 on. In shared mode, all namespaces have them.
type Kernel struct {
	Devices   []Device
	Exclusive bool
}

// Device is a RoCE device with one active port.
type Device struct {
	Name        string
	Netdev      string
	NetdevIndex uint32
	Program     int // the process that has a queue pair; 0: none has
}

// Numbers of the kernel (include/uapi/rdma/rdma_netlink.h).
const (
	cmdGet, cmdPortGet, cmdQueuePairs = 1, 5, 10
	attrDevIndex, attrDevName         = 1, 2
	attrPortIndex, attrState          = 3, 12
	attrQueuePairs, attrQueuePair     = 19, 20
	attrQPType, attrPID               = 26, 28
	attrNdevIndex, attrNdevName       = 50, 51
	attrNetnsMode, attrProtocol       = 66, 67

	typeRC = 2 // of a queue pair
)

// Dial connects to the kernel.
func (k Kernel) Dial() (*nldev.Conn, error) { return nldev.New(k), nil }

// Close does nothing.
func (Kernel) Close() {}

// Dump answers with all devices, or with the queue pairs of one.
func (k Kernel) Dump(_ context.Context, req nlsock.Request) (rows [][]byte, err error) {
	of := deviceOf(req)
	for i, d := range k.Devices {
		number := uint32(i + 1)
		switch command(req) {
		case cmdGet:
			row := nlsock.AppendText(nlsock.AppendNumber(nil, attrDevIndex, number), attrDevName, d.Name)
			rows = append(rows, nlsock.AppendText(nlsock.AppendNumber(row, attrPortIndex, 1), attrProtocol, "roce"))
		case cmdQueuePairs:
			if of == number && d.Program != 0 {
				pair := nlsock.AppendNumber(nlsock.AppendNumber(nil, attrQPType, typeRC), attrPID, uint32(d.Program))
				rows = append(rows, nested(attrQueuePairs, nested(attrQueuePair, pair)))
			}
		}
	}
	return rows, nil
}

// Exchange answers with the port of a device, or with the mode.
func (k Kernel) Exchange(_ context.Context, reqs ...nlsock.Request) (out []nlsock.Reply, err error) {
	for _, r := range reqs {
		shared := uint32(1)
		if k.Exclusive {
			shared = 0
		}
		row := nlsock.AppendNumber(nil, attrNetnsMode, shared)
		if command(r) == cmdPortGet {
			d := k.Devices[deviceOf(r)-1]
			row = nlsock.AppendNumber(nlsock.AppendNumber(nil, attrState, uint32(nldev.Active)), attrNdevIndex, d.NetdevIndex)
			row = nlsock.AppendText(row, attrNdevName, d.Netdev)
		}
		out = append(out, nlsock.Reply{Rows: [][]byte{row}})
	}
	return out, nil
}

// command returns the command of a message, without the number of the client.
func command(req nlsock.Request) uint16 { return req.Type & 0x3ff }

// deviceOf returns the number of the device that a request is about, 0 if it is about all.
func deviceOf(req nlsock.Request) uint32 {
	for typ, v := range nlsock.Attributes(req.Body) {
		if typ == attrDevIndex {
			return nlsock.Number(v)
		}
	}
	return 0
}

func nested(typ uint16, body []byte) []byte {
	out := binary.NativeEndian.AppendUint16(nil, uint16(4+len(body)))
	return append(binary.NativeEndian.AppendUint16(out, typ), body...)
}
