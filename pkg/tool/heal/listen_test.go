// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package heal

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
)

func TestNextEndsWhenTheListenerIsClosed(t *testing.T) {
	t.Parallel()
	l, err := listenNetwork()
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan error)
	go func() {
		_, _, err := l.next()
		waits <- err
	}()
	l.close()
	_, _, after := l.next()
	for _, err := range []error{<-waits, after} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("next: %v, want os.ErrClosed", err)
		}
	}
}

// TestNextTellsThatMessagesWereLost has a socket with place for one message, and a program that
// sends it three.
func TestNextTellsThatMessagesWereLost(t *testing.T) {
	t.Parallel()
	const group = 7
	l, err := listen(unix.NETLINK_USERSOCK, group)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	var set error
	err = l.raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) })
	sender, err2 := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_USERSOCK)
	if err := errors.Join(err, set, err2); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(sender)
	for range 3 {
		_ = unix.Sendto(sender, make([]byte, 4<<10), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (group - 1)}) // ENOBUFS
	}
	end := time.AfterFunc(5*time.Second, l.close)
	defer end.Stop()
	for err = nil; err == nil || errors.Is(err, unix.EINVAL); { // no message of the kernel
		_, _, err = l.next()
	}
	if !errors.Is(err, unix.ENOBUFS) {
		t.Errorf("next: %v, want ENOBUFS", err)
	}
}

func TestANamespaceThatIsGoneHasNoNumber(t *testing.T) {
	t.Parallel()
	if n, err := new(Watcher).Number(t.Context(), "/run/netns/gone", netns.ID{Dev: 4, Ino: 1}); !errors.Is(err, netns.ErrGone) {
		t.Errorf("got %d, %v", n, err)
	}
}
