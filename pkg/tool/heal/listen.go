// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package heal

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// own is the number of the node's own namespace.
const own = -1

// longest is more than a message of the kernel about one object has. What is not used of a
// buffer costs no memory.
const longest = 256 << 10

// listener receives what the kernel tells a group of listeners, in its namespace and in all
// namespaces for which that one has a number. It keeps none of them: they end as without it.
type listener struct {
	file *os.File
	raw  syscall.RawConn
	buf  []byte
}

// listen joins groups of a netlink protocol, in the namespace of the calling thread. EINVAL
// means that the kernel does not have a group. Other namespaces need CAP_NET_BROADCAST. The
// caller must close the listener.
func listen(protocol int, groups ...int) (*listener, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, err
	}
	l := &listener{file: os.NewFile(uintptr(fd), "netlink"), buf: make([]byte, longest)}
	// Without a port of its own, a socket counts as that of the kernel, which hears nothing
	// (do_one_broadcast).
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1)
	}
	for _, g := range groups {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g)
		}
	}
	if err == nil {
		l.raw, err = l.file.SyscallConn()
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// listenNetwork listens for changes of links, addresses, routes and rules.
func listenNetwork() (*listener, error) {
	return listen(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE)
}

// groupNotify is RDMA_NL_GROUP_NOTIFY, which kernels have from 6.12 on: devices that are made,
// renamed or removed, as "rdma monitor" shows them.
const groupNotify = 4

// close closes the socket, and ends a next that waits. It does nothing without one.
func (l *listener) close() {
	if l != nil {
		_ = l.file.Close()
	}
}

// next waits for messages, and returns them with the number of the namespace that they are
// about. ENOBUFS means that some were lost, os.ErrClosed that the listener was closed.
func (l *listener) next() (nsid int32, msgs []syscall.NetlinkMessage, err error) {
	oob := make([]byte, unix.CmsgSpace(4))
	var n, oobn int
	var failed error
	err = l.raw.Read(func(fd uintptr) bool {
		n, oobn, _, _, failed = unix.Recvmsg(int(fd), l.buf, oob, unix.MSG_DONTWAIT)
		return failed != unix.EAGAIN && failed != unix.EINTR
	})
	if err != nil { // nothing else ends it, and package os does not say that by its own error
		return 0, nil, fmt.Errorf("%w (%w)", os.ErrClosed, err)
	}
	if failed != nil {
		return 0, nil, failed
	}
	msgs, err = syscall.ParseNetlinkMessage(l.buf[:n])
	return nsidOf(oob[:oobn]), msgs, err
}

// nsidOf reads the control message with the number, which the kernel sends for other
// namespaces (netlink_cmsg_listen_all_nsid).
func nsidOf(oob []byte) int32 {
	controls, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return own
	}
	for _, c := range controls {
		if c.Header.Level == unix.SOL_NETLINK && c.Header.Type == unix.NETLINK_LISTEN_ALL_NSID && len(c.Data) >= 4 {
			return int32(binary.NativeEndian.Uint32(c.Data))
		}
	}
	return own
}

// changeOf reads a message of rtnetlink about the namespace with a number.
func changeOf(nsid int32, m syscall.NetlinkMessage) Event {
	e := Event{NSID: nsid}
	switch m.Header.Type {
	case unix.RTM_DELLINK, unix.RTM_DELADDR, unix.RTM_DELROUTE, unix.RTM_DELRULE:
		e.Gone = true
	}
	if m.Header.Type == unix.RTM_NEWLINK || m.Header.Type == unix.RTM_DELLINK {
		for typ, v := range nlsock.Attributes(m.Data[min(unix.SizeofIfInfomsg, len(m.Data)):]) {
			if typ == unix.IFLA_IFNAME {
				e.Link = nlsock.Text(v)
			}
		}
	}
	return e
}
