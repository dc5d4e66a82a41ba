// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nldev

import (
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// From include/uapi/rdma/rdma_netlink.h.
const (
	client = 5 << 10 // RDMA_NL_NLDEV in a message type

	cmdGet     = 1 // RDMA_NLDEV_CMD_*
	cmdSet     = 2
	cmdPortGet = 5
	cmdSysGet  = 6

	attrDevIndex     = 1 // RDMA_NLDEV_ATTR_*
	attrDevName      = 2
	attrPortIndex    = 3
	attrNodeGUID     = 6
	attrState        = 12
	attrQueuePairs   = 19 // RDMA_NLDEV_ATTR_RES_QP
	attrQPType       = 26
	attrPID          = 28
	attrModule       = 29 // RDMA_NLDEV_ATTR_RES_KERN_NAME
	attrConnections  = 30 // RDMA_NLDEV_ATTR_RES_CM_ID
	attrRegions      = 40 // RDMA_NLDEV_ATTR_RES_MR
	attrRegionLength = 45 // RDMA_NLDEV_ATTR_RES_MRLEN
	attrNdevIndex    = 50
	attrNdevName     = 51
	attrNetnsMode    = 66 // RDMA_NLDEV_SYS_ATTR_NETNS_MODE
	attrProtocol     = 67
	attrNetnsFD      = 68
	attrStatRes      = 75 // RDMA_NLDEV_ATTR_STAT_RES
	attrCounters     = 77 // RDMA_NLDEV_ATTR_STAT_COUNTER
	attrContexts     = 86 // RDMA_NLDEV_ATTR_RES_CTX
)

// State is the state of a port.
type State uint8

// The states of a port (enum ib_port_state).
const (
	Down State = iota + 1
	Init
	Armed
	Active
	ActiveDefer
)

// String returns the state as rdma link prints it.
func (s State) String() string {
	names := map[State]string{Down: "DOWN", Init: "INIT", Armed: "ARMED", Active: "ACTIVE", ActiveDefer: "ACTIVE_DEFER"}
	return cmp.Or(names[s], fmt.Sprintf("state %d", uint8(s)))
}

func request(command uint16, body []byte) nlsock.Request {
	return nlsock.Request{Type: client | command, Body: body}
}

// parseDevice reads an answer to cmdGet. The port index in the answer is the number
// of ports, which are numbered from 1 (rdma_start_port; those of switches have no netdev).
func parseDevice(b []byte) Device {
	var d Device
	for typ, v := range nlsock.Attributes(b) {
		switch typ {
		case attrDevIndex:
			d.Index = nlsock.Number(v)
		case attrDevName:
			d.Name = nlsock.Text(v)
		case attrNodeGUID:
			d.GUID = guid(v)
		case attrProtocol:
			d.Protocol = nlsock.Text(v)
		case attrPortIndex:
			d.Ports = make([]Port, min(nlsock.Number(v), maxPorts))
			for i := range d.Ports {
				d.Ports[i].Number = uint32(i) + 1
			}
		}
	}
	return d
}

// maxPorts limits the number of ports to ask for. A device that switches between
// functions has a port for each function.
const maxPorts = 4096

// guid returns a GUID in the form that rdma(8) and sysfs print. nldev sends it in
// host byte order.
func guid(b []byte) string {
	if len(b) < 8 {
		return ""
	}
	n := binary.NativeEndian.Uint64(b)
	return fmt.Sprintf("%04x:%04x:%04x:%04x", n>>48, n>>32&0xffff, n>>16&0xffff, n&0xffff)
}

// parse reads an answer to cmdPortGet.
func (p *Port) parse(b []byte) {
	for typ, v := range nlsock.Attributes(b) {
		switch {
		case typ == attrState && len(v) > 0:
			p.State = State(v[0])
		case typ == attrNdevIndex:
			p.NetdevIndex = int32(nlsock.Number(v))
		case typ == attrNdevName:
			p.Netdev = nlsock.Text(v)
		}
	}
}
