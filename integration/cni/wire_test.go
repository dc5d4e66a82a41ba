// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// tap listens at a link. It hears what the link receives and what it sends.
type tap struct {
	conn   *os.File
	mu     sync.Mutex
	frames []frame
	more   chan struct{} // has an element when frames grew
}

// listen starts to listen at a link of the namespace. answer may be nil; else
// it is called for each frame that the link receives, and what it returns is
// sent.
func (ns *namespace) listen(t testing.TB, link string, answer func(frame) [][]byte) *tap {
	t.Helper()
	tp := &tap{more: make(chan struct{}, 1)}
	err := ns.Enter(func() (err error) {
		tp.conn, err = packetSocket(link)
		return err
	})
	if err != nil {
		t.Fatalf("listen at %s in %s: %v", link, ns.Name, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		tp.read(answer)
	}()
	t.Cleanup(func() {
		tp.conn.Close()
		<-done
	})
	return tp
}

func packetSocket(link string) (*os.File, error) {
	nic, err := net.InterfaceByName(link)
	if err != nil {
		return nil, err
	}
	all := htons(unix.ETH_P_ALL)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: nic.Index}); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), link), nil
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

func (tp *tap) read(answer func(frame) [][]byte) {
	raw, err := tp.conn.SyscallConn()
	if err != nil {
		return
	}
	b := make([]byte, 1<<16)
	for {
		var n int
		var from unix.Sockaddr
		readErr := raw.Read(func(fd uintptr) bool {
			n, from, err = unix.Recvfrom(int(fd), b, 0)
			return !errors.Is(err, unix.EAGAIN)
		})
		switch {
		case readErr != nil:
			return
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENETDOWN):
			continue
		case err != nil:
			return
		}
		f := parseFrame(b[:n])
		ll, ok := from.(*unix.SockaddrLinklayer)
		f.out = ok && ll.Pkttype == unix.PACKET_OUTGOING
		tp.note(f)
		if answer != nil && !f.out {
			tp.send(answer(f)...)
		}
	}
}

func (tp *tap) note(f frame) {
	tp.mu.Lock()
	tp.frames = append(tp.frames, f)
	tp.mu.Unlock()
	select {
	case tp.more <- struct{}{}:
	default:
	}
}

// send sends frames from the link.
func (tp *tap) send(frames ...[]byte) {
	for _, b := range frames {
		_, _ = tp.conn.Write(b) // a lost frame is what networks do
	}
}

// heard returns the frames that match, in order.
func (tp *tap) heard(match func(frame) bool) []frame {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	var out []frame
	for _, f := range tp.frames {
		if match(f) {
			out = append(out, f)
		}
	}
	return out
}

// await waits until a number of frames that match were heard, and returns
// them.
func (tp *tap) await(t testing.TB, n int, what string, match func(frame) bool) []frame {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cnitest.Patience)
	defer cancel()
	for {
		if got := tp.heard(match); len(got) >= n {
			return got
		}
		select {
		case <-tp.more:
		case <-ctx.Done():
			t.Fatalf("waited in vain for %d times %s; heard:\n%s", n, what, tp)
		}
	}
}

// String lists all frames.
func (tp *tap) String() string {
	var out strings.Builder
	for _, f := range tp.heard(func(frame) bool { return true }) {
		out.WriteString(f.String() + "\n")
	}
	return out.String()
}

// mac returns the MAC of a link of the namespace.
func (ns *namespace) mac(t testing.TB, link string) string {
	t.Helper()
	fields := strings.Fields(ns.MustRun(t, "ip", "-oneline", "link", "show", "dev", link))
	i := slices.Index(fields, "link/ether")
	if i < 0 {
		t.Fatalf("%s has no MAC: %s", link, strings.Join(fields, " "))
	}
	return fields[i+1]
}
