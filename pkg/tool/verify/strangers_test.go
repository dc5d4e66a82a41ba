// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
)

// TestIdleConnectionsStopNoPeer: a pod without the token opens a thousand connections, and
// sends nothing. The server ends them but for a few, and a peer connects.
func TestIdleConnectionsStopNoPeer(t *testing.T) {
	w := newWorld(t, "a", "b", "attacker")
	w.serve()
	attacker, server := w.pods[2], w.pods[1]
	var idle []net.Conn
	err := attacker.Enter(func() error {
		for range 1000 {
			c, err := net.Dial("tcp", server.address)
			if err != nil {
				return err
			}
			idle = append(idle, c)
		}
		return nil
	})
	for _, c := range idle {
		defer c.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	peer, err := w.pods[0].Dial(t.Context(), server.address, token, "")
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	s := &server.server.strangers
	s.mu.Lock()
	if n := len(s.conns); n > mostStrangers {
		t.Errorf("the server has %d connections of strangers, want at most %d", n, mostStrangers)
	}
	s.mu.Unlock()
	ended := make(chan struct{}, len(idle))
	for _, c := range idle {
		go func() {
			_, _ = io.Copy(io.Discard, c) // the server ends it, or the test
			ended <- struct{}{}
		}()
	}
	for range len(idle) - mostStrangers {
		<-ended
	}
	if answers, err := peer.Local(); err != nil || problems(answers) != "" {
		t.Errorf("the peer that connected before: %v, %s", err, problems(answers))
	}
}

// conn is a connection of which only the address and the end count.
type conn struct {
	net.Conn
	from   string
	closed *[]string
}

func (c conn) RemoteAddr() net.Addr {
	host, _, _ := net.SplitHostPort(c.from)
	return &net.TCPAddr{IP: net.ParseIP(host), Port: len(c.from)}
}

func (c conn) Close() error {
	*c.closed = append(*c.closed, c.from)
	return nil
}

func TestTheOldestConnectionOfTheBusiestHostEnds(t *testing.T) {
	t.Parallel()
	var s strangers
	var closed []string
	admit := func(from string) conn {
		c := conn{from: from, closed: &closed}
		s.admit(c)
		return c
	}
	peer := admit("10.0.0.1:1")
	gone := admit("10.0.0.9:1")
	s.leave(gone)
	for i := range mostStrangers {
		admit(fmt.Sprintf("10.0.0.2:%d", i+1))
	}
	other := admit("[fd00::1]:1")
	if want := []string{"10.0.0.2:1", "10.0.0.2:2"}; !slices.Equal(closed, want) {
		t.Errorf("closed %q, want %q", closed, want)
	}
	if !slices.Contains(s.conns, net.Conn(peer)) || !slices.Contains(s.conns, net.Conn(other)) || len(s.conns) != mostStrangers {
		t.Errorf("%d connections, and those of other hosts are not among them", len(s.conns))
	}
	s.leave(peer)
	if slices.Contains(s.conns, net.Conn(peer)) {
		t.Error("a caller that has shown the token is still a stranger")
	}
}
