// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"errors"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// leave closes packet sockets. The last close of a socket waits for an RCU
// grace period (packet_release, synchronize_net), 8 to 20 ms, and no process
// can end before that. So leave lets the kernel do the last close;
// docs/adr/0014 has the numbers. Where that is not possible, it closes the
// sockets together, so that they share the grace period.
func leave(conns []net.PacketConn) {
	forget, err := entrust(conns)
	if err != nil {
		forget = func() {}
	}
	var closing sync.WaitGroup
	for _, c := range conns {
		closing.Go(func() { _ = c.Close() }) // nothing is buffered, so nothing is lost
	}
	closing.Wait()
	forget()
}

// entrust puts the sockets into the queue of a unix socket, and that one into
// its own queue. After forget, only the queue refers to them. The kernel's
// collector of such cycles (net/unix/garbage.c) then closes them. The collector
// is a work item since Linux 6.10, and in stable kernels with that change. In
// older kernels, forget takes as long as closing.
func entrust(conns []net.PacketConn) (forget func(), err error) {
	if len(conns) == 0 {
		return nil, errors.ErrUnsupported
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	forget = func() {
		_ = unix.Close(pair[1]) // its own queue keeps it
		_ = unix.Close(pair[0]) // calls the collector (unix_release_sock)
	}
	fds := []int{pair[1]}
	for _, c := range conns { // the sockets stay open until forget
		err = errors.Join(err, withFD(c, func(fd int) error {
			fds = append(fds, fd)
			return nil
		}))
	}
	if err == nil {
		err = unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(fds...), nil, 0)
	}
	if err != nil {
		forget()
		return nil, err
	}
	return forget, nil
}
