// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nlsock

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// OwnNSID is the number that a Listener has for its own namespace.
const OwnNSID = -1

// Listener receives what the kernel tells a group of listeners, in its namespace and in all
// namespaces for which that one has a number. It keeps none of them: they end as without it.
type Listener struct {
	file *os.File
	raw  syscall.RawConn
	buf  []byte
}

// Listen joins groups of a protocol, in the namespace of the calling thread. EINVAL means
// that the kernel does not have a group. Other namespaces need CAP_NET_BROADCAST. The caller
// must Close the Listener.
func Listen(protocol int, groups ...int) (*Listener, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, err
	}
	l := &Listener{file: os.NewFile(uintptr(fd), "netlink"), buf: make([]byte, maxDump)}
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
		l.Close()
		return nil, err
	}
	return l, nil
}

// Close closes the socket, and ends a Next that waits.
func (l *Listener) Close() { _ = l.file.Close() }

// Next waits for messages, and returns them with the number of the namespace that they are
// about. ENOBUFS means that some were lost, os.ErrClosed that the Listener was closed.
func (l *Listener) Next() (nsid int32, msgs []syscall.NetlinkMessage, err error) {
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
		return OwnNSID
	}
	for _, c := range controls {
		if c.Header.Level == unix.SOL_NETLINK && c.Header.Type == unix.NETLINK_LISTEN_ALL_NSID && len(c.Data) >= 4 {
			return int32(binary.NativeEndian.Uint32(c.Data))
		}
	}
	return OwnNSID
}
