// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package nodefiletest listens in tests where rocectl agent does.
//
// It grants nothing by itself: a test says what is answered. It stands beside nodefile,
// for its tests and for those of the plugins. Everything is in this file.
package nodefiletest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// Answer has each request answered by a function until the test ends. One request
// waits for the other.
func Answer(t *testing.T, s nodefile.Store, do func(pool string, k nodefile.Key) nodefile.Answer) (stop func()) {
	t.Helper()
	return Listen(t, s, func(conn net.Conn) {
		pool, k, err := nodefile.ReadRequest(conn)
		if err != nil {
			t.Errorf("a request that cannot be read: %v", err)
			return
		}
		_ = nodefile.WriteAnswer(conn, do(pool, k)) // the ADD may be killed
	})
}

// Listen calls do with one connection after the other, and closes it then, until the
// test ends.
func Listen(t *testing.T, s nodefile.Store, do func(net.Conn)) (stop func()) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(s.Socket()), 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(filepath.Dir(s.Socket()))
	if err != nil {
		t.Fatal(err)
	}
	// An address has no room for the path.
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(s.Socket())))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			do(conn)
			_ = conn.Close()
		}
	}()
	stop = sync.OnceFunc(func() { _ = l.Close(); _ = dir.Close(); <-ended })
	t.Cleanup(stop)
	return stop
}

// Now returns CLOCK_BOOTTIME, which grants end by.
func Now(t *testing.T) time.Duration {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}
