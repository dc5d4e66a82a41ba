// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package grant_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent/grant"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

func echo(_ context.Context, pool string, k nodefile.Key) nodefile.Answer {
	return nodefile.Answer{None: pool + ":" + k.Pod}
}

// state is a state folder with a path that no socket's address has room for.
func state(t *testing.T) nodefile.Store {
	t.Helper()
	s := nodefile.Store{Dir: filepath.Join(t.TempDir(), strings.Repeat("d", 108))}
	if err := os.MkdirAll(filepath.Dir(s.Socket()), 0o700); err != nil {
		t.Fatal(err)
	}
	return s
}

// dial connects to the socket. Its path is too long for an address.
func dial(t *testing.T, s nodefile.Store) net.Conn {
	t.Helper()
	dir, err := os.Open(filepath.Dir(s.Socket()))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	conn, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(s.Socket())))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// serve listens until the returned function is called.
func serve(t *testing.T, s nodefile.Store) (stop func()) {
	t.Helper()
	socket, err := grant.Listen(s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- socket.Serve(ctx, echo) }()
	return func() {
		cancel()
		if err := errors.Join(<-ended, socket.Close()); !errors.Is(err, context.Canceled) {
			t.Errorf("it ends with %v", err)
		}
	}
}

func TestOneAgentAfterTheOtherAnswersADDs(t *testing.T) {
	t.Parallel()
	s := state(t)
	for range 2 {
		stop := serve(t, s)
		if a, err := s.Ask("gpu", nodefile.Key{Pod: "db-0"}); err != nil || a.None != "gpu:db-0" {
			t.Errorf("got %+v, error %v", a, err)
		}
		if _, err := grant.Listen(s); cnierr.CodeOf(err) != cnierr.IO || !strings.Contains(err.Error(), "another process listens") {
			t.Errorf("a second agent: %v", err)
		}
		if info, err := os.Stat(s.Socket()); err != nil || info.Mode() != os.ModeSocket|0o600 {
			t.Errorf("%v, error %v", info, err)
		}
		stop()
		if a, err := s.Ask("gpu", nodefile.Key{Pod: "db-0"}); err == nil {
			t.Errorf("without an agent: %+v", a)
		}
	}
}

// An agent that was killed leaves its socket, and anything may stand there.
func TestTheSocketReplacesWhatIsThere(t *testing.T) {
	t.Parallel()
	s := state(t)
	if err := os.Symlink("/dev/null", s.Socket()); err != nil {
		t.Fatal(err)
	}
	defer serve(t, s)()
	if a, err := s.Ask("gpu", nodefile.Key{Pod: "db-0"}); err != nil || a.None != "gpu:db-0" {
		t.Errorf("got %+v, error %v", a, err)
	}
}

func TestClientsThatSayNothingOrNonsenseStopNoOther(t *testing.T) {
	t.Parallel()
	s := state(t)
	defer serve(t, s)()
	for _, say := range []string{"", "\x00", `{"version": 1`, strings.Repeat("[", 1<<16)} {
		conn := dial(t, s)
		defer conn.Close()
		_, _ = conn.Write([]byte(say)) // the agent may have closed it
	}
	if a, err := s.Ask("gpu", nodefile.Key{Pod: "db-0"}); err != nil || a.None != "gpu:db-0" {
		t.Errorf("got %+v, error %v", a, err)
	}
}

// pipes is a listener of one connection.
type pipes struct {
	conns chan net.Conn
	ended chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error { close(p.ended); return nil }

func (pipes) Addr() net.Addr { return &net.UnixAddr{} }

// TestTheLastAnswerIsWaitedFor has the listener fail, or the agent end, while a client waits.
func TestTheLastAnswerIsWaitedFor(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]error{"the agent ends": context.Canceled, "the listener fails": net.ErrClosed} {
		synctest.Test(t, func(t *testing.T) {
			l := pipes{make(chan net.Conn), make(chan struct{})}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			answered := false
			go func() {
				ended <- grant.Socket{Listener: l}.Serve(ctx, func(ctx context.Context, pool string, k nodefile.Key) nodefile.Answer {
					time.Sleep(2 * time.Second)
					answered = true
					return echo(ctx, pool, k)
				})
			}()
			near, far := net.Pipe()
			l.conns <- far
			if _, err := near.Write([]byte(`{"version": 1, "pool": "gpu", "namespace": "ml", "pod": "db-0", "interface": "net1"}` + "\n")); err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = io.Copy(io.Discard, near) }()
			time.Sleep(time.Second)
			if errors.Is(want, context.Canceled) {
				cancel()
			} else {
				_ = l.Close()
			}
			if err := <-ended; !errors.Is(err, want) || !answered {
				t.Errorf("%s: it ends with %v, answered: %t", name, err, answered)
			}
			cancel() // which closes nothing again
			synctest.Wait()
		})
	}
}

func TestAClientThatSaysNothingIsLeftAfterTheTimeOfAnADD(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := pipes{make(chan net.Conn), make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- grant.Socket{Listener: l}.Serve(ctx, echo) }()
		near, far := net.Pipe()
		l.conns <- far
		began := time.Now()
		_ = near.SetDeadline(began.Add(time.Hour))
		if _, err := io.Copy(io.Discard, near); err != nil || time.Since(began) != nodefile.AskTime {
			t.Errorf("it is left after %s, error %v, want %s", time.Since(began), err, nodefile.AskTime)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ends with %v", err)
		}
	})
}
