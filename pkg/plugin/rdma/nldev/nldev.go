// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package nldev speaks nldev on a NETLINK_RDMA socket of one namespace: the RDMA
// devices with their ports and queue pairs, the namespace mode, moves and names.
//
// It returns the kernel's errno unchanged and decides nothing: package rdma, above it,
// decides which device belongs to a NIC. Read this file first; message.go has the
// numbers.
package nldev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// ErrNoDevice says that there is no such RDMA device in the namespace.
var ErrNoDevice = errors.New("no RDMA device")

// System is the RDMA subsystem as one namespace sees it.
type System struct {
	// Exclusive says that each device is in one namespace (rdma system show).
	Exclusive bool
	Devices   []Device
}

// Device is an RDMA device.
type Device struct {
	Index    uint32
	Name     string
	GUID     string // of the node, as rdma dev prints it: "5054:00ff:fe00:0a01"
	Protocol string // "roce", "ib", "iw", "opa"; "" if the kernel does not tell
	Ports    []Port
}

// Port is a port of an RDMA device.
type Port struct {
	Number uint32 // from 1
	State  State
	// NetdevIndex and Netdev are the port's network interface; 0 and "" when it
	// is in another namespace than the socket, or the driver does not tell.
	NetdevIndex int32
	Netdev      string
}

// Conn is a NETLINK_RDMA socket. It sees the devices of the namespace of the thread
// that opened it. The thread that uses it does not matter.
type Conn struct{ sock nlsock.Socket }

// Dial opens a socket in the namespace of the calling thread; EPROTONOSUPPORT
// if the kernel has no RDMA. The caller must Close it.
func Dial() (*Conn, error) {
	sock, err := nlsock.Dial(unix.NETLINK_RDMA)
	if err != nil {
		return nil, err
	}
	return &Conn{sock}, nil
}

// New returns a connection over a socket, which it closes.
func New(sock nlsock.Socket) *Conn { return &Conn{sock} }

// Close closes the socket.
func (c *Conn) Close() { c.sock.Close() }

// batch is a number of answers that always fits in the socket's receive buffer. rdma
// drops answers that do not fit (rdma_nl_unicast).
const batch = 64

// System returns the mode, the devices and their ports. It needs two round trips: a
// dump of the devices, and then all else at once. Every 64 ports need one more. A
// device that goes away in between is left out.
func (c *Conn) System(ctx context.Context) (System, error) {
	rows, err := c.sock.Dump(ctx, request(cmdGet, nil))
	if err != nil {
		return System{}, err
	}
	var s System
	reqs := []nlsock.Request{request(cmdSysGet, nil)}
	for _, row := range rows {
		d := parseDevice(row)
		for i := range d.Ports {
			body := nlsock.AppendNumber(nlsock.AppendNumber(nil, attrDevIndex, d.Index), attrPortIndex, d.Ports[i].Number)
			reqs = append(reqs, request(cmdPortGet, body))
		}
		s.Devices = append(s.Devices, d)
	}
	replies, err := c.exchange(ctx, reqs)
	if err != nil {
		return System{}, err
	}
	if s.Exclusive, err = exclusive(replies[0]); err != nil {
		return System{}, err
	}
	return s, s.addPorts(replies[1:])
}

// exchange is one round trip for each batch of requests.
func (c *Conn) exchange(ctx context.Context, reqs []nlsock.Request) ([]nlsock.Reply, error) {
	var out []nlsock.Reply
	for part := range slices.Chunk(reqs, batch) {
		replies, err := c.sock.Exchange(ctx, part...)
		if err != nil {
			return nil, err
		}
		out = append(out, replies...)
	}
	return out, nil
}

// addPorts reads the answers about the ports, in the order of the devices.
func (s *System) addPorts(replies []nlsock.Reply) error {
	devices := s.Devices[:0]
	for _, d := range s.Devices {
		var err error
		for i, r := range replies[:len(d.Ports)] {
			err = cmp.Or(err, r.Err)
			for _, row := range r.Rows {
				d.Ports[i].parse(row)
			}
		}
		replies = replies[len(d.Ports):]
		switch {
		case err == nil:
			devices = append(devices, d)
		case !gone(err):
			return fmt.Errorf("ports of %s: %w", d.Name, err)
		}
	}
	s.Devices = devices
	return nil
}

// gone says whether an error means that the device is not in the namespace: either no
// device has the index (EINVAL), or the device moves just now (ENODEV).
func gone(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV)
}

// exclusive reads the mode. Kernels without modes refuse the request. They share all
// devices.
func exclusive(r nlsock.Reply) (bool, error) {
	if errors.Is(r.Err, unix.EINVAL) || errors.Is(r.Err, unix.EOPNOTSUPP) {
		return false, nil
	}
	for _, row := range r.Rows {
		for typ, v := range nlsock.Attributes(row) {
			if typ == attrNetnsMode && len(v) > 0 {
				return v[0] == 0, r.Err
			}
		}
	}
	return false, r.Err
}

// SetNetns moves a device to the namespace of a file descriptor. The kernel takes the
// device from the namespace of the calling thread, not from that of the socket
// (ib_device_set_netns_put). So both must be the same namespace.
//
// Errors: ErrNoDevice when the namespace does not have the device; EOPNOTSUPP
// in shared mode, and from drivers that cannot take a device away from the
// programs that use it.
func (c *Conn) SetNetns(ctx context.Context, device uint32, fd int) error {
	return c.set(ctx, nlsock.AppendNumber(nlsock.AppendNumber(nil, attrDevIndex, device), attrNetnsFD, uint32(fd)))
}

// Rename gives a device a name. Errors: EEXIST if another device has the name,
// ErrNoDevice as SetNetns. Since Linux 7.3 only the names of the same namespace
// count; before, those of all namespaces.
func (c *Conn) Rename(ctx context.Context, device uint32, name string) error {
	return c.set(ctx, nlsock.AppendText(nlsock.AppendNumber(nil, attrDevIndex, device), attrDevName, name))
}

// Get sends a command about a device, with more attributes, and returns its reply.
func (c *Conn) Get(ctx context.Context, command uint16, device uint32, more []byte) (nlsock.Reply, error) {
	replies, err := c.sock.Exchange(ctx, request(command, append(nlsock.AppendNumber(nil, attrDevIndex, device), more...)))
	if err != nil {
		return nlsock.Reply{}, err
	}
	return replies[0], nil
}

func (c *Conn) set(ctx context.Context, body []byte) error {
	req := request(cmdSet, body)
	req.Flags |= unix.NLM_F_ACK
	replies, err := c.sock.Exchange(ctx, req)
	if err != nil {
		return err
	}
	if err = replies[0].Err; gone(err) {
		return fmt.Errorf("%w: %w", ErrNoDevice, err)
	}
	return err
}
