// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// leave closes a packet socket, and returns what may take time: the last to
// close one waits for an RCU grace period (packet_release, synchronize_net), 8
// to 20 ms, and a process cannot end before that. So we leave it to the kernel
// to be the last. Where that cannot be, it is closed as any other.
func leave(c net.PacketConn) (rest func()) {
	forget, err := entrust(c)
	if err != nil {
		return func() { _ = c.Close() } // nothing is buffered, so nothing can be lost
	}
	_ = c.Close()
	return forget
}

// entrust puts a socket into the queue of a unix socket, and that one into its
// own queue. After forget nobody but the two can reach the two, and the
// kernel's collector of such cycles (net/unix/garbage.c) closes them. It has a
// thread of its own since Linux 6.9; before, and in stable kernels without that
// change, forget itself takes as long as closing.
func entrust(c net.PacketConn) (forget func(), err error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	forget = func() {
		_ = unix.Close(pair[1]) // its queue keeps it
		_ = unix.Close(pair[0]) // calls the collector (unix_release_sock)
	}
	sent := errors.New("not run")
	err = rc.Control(func(fd uintptr) {
		sent = unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(int(fd), pair[1]), nil, 0)
	})
	if err := errors.Join(err, sent); err != nil {
		forget()
		return nil, err
	}
	return forget, nil
}
