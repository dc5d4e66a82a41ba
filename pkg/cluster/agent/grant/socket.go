// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package grant

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/flock"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// maxConnections is more ADDs than a node runs at the same time. Further ones wait.
const maxConnections = 128

// Socket is where ADDs ask. While it is open, no other agent of the node grants or
// releases addresses: a second agent would not know what the first has granted.
type Socket struct {
	net.Listener
	lock *os.File
}

// Listen opens the socket of the state folder, which only root may enter. Errors: IO,
// also while another agent runs.
func Listen(files nodefile.Store) (Socket, error) {
	path := files.Socket()
	fail := func(err error) (Socket, error) {
		return Socket{}, cnierr.New(cnierr.IO, "listen at", path, "stop the other rocectl agent of this node, or give this one write access to the folder", "%w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fail(err)
	}
	lock, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return fail(err)
	}
	free, err := flock.Try(lock, unix.LOCK_EX)
	if err == nil && !free {
		err = errors.New("another process listens there")
	}
	var l *net.UnixListener
	if err == nil {
		l, err = bind(path)
	}
	if err != nil {
		return fail(errors.Join(err, lock.Close()))
	}
	return Socket{netutil.LimitListener(l, maxConnections), lock}, nil
}

// bind makes the socket in place of a former agent's. An address has no room for a long path.
func bind(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close() //nolint:errcheck // nothing was written to it
	name := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: name})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // its name ends with dir
	return l, os.Chmod(path, 0o600)
}

// Close closes the socket. After that, another agent may run.
func (s Socket) Close() error {
	_ = s.Listener.Close() // perhaps again
	return s.lock.Close()
}

// Serve has ask answer requests until ctx ends, or until no more requests can come in.
func (s Socket) Serve(ctx context.Context, ask func(ctx context.Context, pool string, k nodefile.Key) nodefile.Answer) error {
	var all sync.WaitGroup
	defer all.Wait()
	stop := context.AfterFunc(ctx, func() { _ = s.Listener.Close() }) // ends Accept
	defer stop()
	for {
		conn, err := s.Accept()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		all.Go(func() { answer(ctx, conn, ask) })
	}
}

// answer answers the request of a connection, for which a client has the time of an ADD.
func answer(ctx context.Context, conn net.Conn, ask func(context.Context, string, nodefile.Key) nodefile.Answer) {
	defer conn.Close() //nolint:errcheck // an ADD that does not get its answer tries again
	if conn.SetDeadline(time.Now().Add(nodefile.AskTime)) != nil {
		return
	}
	pool, key, err := nodefile.ReadRequest(conn)
	a := nodefile.Answer{Wait: fmt.Sprintf("rocectl agent cannot read the request: %v", err)}
	if err == nil {
		a = ask(ctx, pool, key)
	}
	_ = nodefile.WriteAnswer(conn, a) // an ADD that has ended has released what it leased
}
