// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/roce-cni/roce-cni/pkg/doctor"
)

// request is what a caller asks a server, one JSON document each. The first one is
// empty but for the token, and the answer has the rails.
type request struct {
	Token string `json:"token"`
	// Received asks which packets of this connection's nonce have arrived.
	Received bool `json:"received,omitempty"`
	// Throw asks for frames from a rail to an end: see Pod.throw.
	Throw *throwing `json:"throw,omitempty"`
	// Local and Test ask for the answers of the server's own pod, and of a test with
	// another pod. Test is the address of that pod's server.
	Local bool   `json:"local,omitempty"`
	Test  string `json:"test,omitempty"`
	Cross bool   `json:"cross,omitempty"`
}

type throwing struct {
	Rail int `json:"rail"`
	To   end `json:"to"`
}

// reply is what a server answers.
type reply struct {
	Error    string          `json:"error,omitempty"`
	Name     string          `json:"name,omitempty"`
	Nonce    nonce           `json:"nonce,omitzero"`
	Rails    []Rail          `json:"rails,omitempty"`
	Received []arrival       `json:"received,omitempty"`
	Answers  []doctor.Answer `json:"answers,omitempty"`
}

// arrival counts packets of one size at a rail.
type arrival struct {
	Rail  int `json:"rail"`
	Size  int `json:"size"` // with headers
	Count int `json:"count"`
}

// Server lets other pods test the rails of a pod.
type Server struct {
	Pod
	// Token is what callers must know.
	Token string

	mu   sync.Mutex
	seen map[nonce]map[arrival]int // by arrival without count; a nonce lives as long as its connection
}

// patience bounds the time between two requests of a connection.
const patience = 10 * time.Minute

// Serve answers callers until ctx ends. Errors: those of Pod.Rails and of the sockets.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	rails, err := s.Rails(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.seen = map[nonce]map[arrival]int{}
	for i := range rails {
		c, err := s.socket(ctx, rails[i])
		if err != nil {
			return err
		}
		rails[i].UDP = netip.MustParseAddrPort(c.LocalAddr().String()).Port()
		context.AfterFunc(ctx, func() { _ = c.Close() })
		go s.echo(c, rails[i])
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		go s.talk(ctx, conn, rails)
	}
}

// echo sends back each packet with a known nonce.
func (s *Server) echo(c *net.UDPConn, r Rail) {
	buf := make([]byte, largest)
	for {
		length, from, err := c.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		var n nonce
		if err != nil || length < len(n) {
			continue
		}
		copy(n[:], buf)
		if s.count(n, arrival{Rail: r.Number, Size: length + headers(r.Addr)}) {
			_, _ = c.WriteToUDPAddrPort(buf[:length], from) // what does not leave is lost, as on the wire
		}
	}
}

func (s *Server) count(n nonce, a arrival) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts, known := s.seen[n]
	if known {
		counts[a]++
	}
	return known
}

func (s *Server) received(n nonce) []arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []arrival
	for a, count := range s.seen[n] {
		a.Count = count
		out = append(out, a)
	}
	return out
}

// talk answers the requests of one caller.
func (s *Server) talk(ctx context.Context, conn net.Conn, rails []Rail) {
	defer conn.Close() //nolint:errcheck // the caller is gone
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var n nonce
	if _, err := rand.Read(n[:]); err != nil {
		return
	}
	s.mu.Lock()
	s.seen[n] = map[arrival]int{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.seen, n)
	}()
	in, out := json.NewDecoder(io.LimitReader(conn, 1<<20)), json.NewEncoder(conn)
	for conn.SetReadDeadline(time.Now().Add(patience)) == nil {
		var q request
		if in.Decode(&q) != nil {
			return
		}
		if subtle.ConstantTimeCompare([]byte(q.Token), []byte(s.Token)) != 1 {
			_ = out.Encode(reply{Error: "the token is wrong: start all with the same --token"})
			return
		}
		if out.Encode(s.answer(ctx, q, n, rails)) != nil {
			return
		}
	}
}

func (s *Server) answer(ctx context.Context, q request, n nonce, rails []Rail) reply {
	switch {
	case q.Received:
		return reply{Received: s.received(n)}
	case q.Throw != nil:
		if q.Throw.Rail < 0 || q.Throw.Rail >= len(rails) {
			return reply{Error: "there is no such rail"}
		}
		r := rails[q.Throw.Rail]
		if !r.reach(q.Throw.To.Addr.Addr()) || !r.Addr.Is4() || !q.Throw.To.Addr.Addr().Is4() || len(q.Throw.To.MAC) != len(r.MAC) {
			return reply{Error: "that is no neighbour of the rail"}
		}
		if err := s.throw(r, r.UDP, q.Throw.To, n); err != nil {
			return reply{Error: err.Error()}
		}
		return reply{}
	case q.Local:
		return reply{Name: s.Name, Answers: s.Local(ctx, rails)}
	case q.Test != "":
		answers, err := s.Test(ctx, rails, q.Test, s.Token, q.Cross)
		if err != nil {
			return reply{Error: err.Error()}
		}
		return reply{Name: s.Name, Answers: answers}
	}
	return reply{Name: s.Name, Nonce: n, Rails: rails}
}

// Peer is a connection to the server of another pod. It is safe for concurrent use.
type Peer struct {
	Name  string
	Rails []Rail

	nonce nonce
	token string
	mu    sync.Mutex
	conn  net.Conn
	in    *json.Decoder
	out   *json.Encoder
}

// Dial connects to the server at an address, from Control.
func (p Pod) Dial(ctx context.Context, address, token string) (*Peer, error) {
	var conn net.Conn
	control := p.Control
	if control == nil {
		control = p.Enter
	}
	err := control(func() (err error) {
		d := net.Dialer{Timeout: 10 * time.Second}
		conn, err = d.DialContext(ctx, "tcp", address)
		return err
	})
	if err != nil {
		return nil, err
	}
	out := &Peer{token: token, conn: conn, in: json.NewDecoder(conn), out: json.NewEncoder(conn)}
	hello, err := out.ask(request{})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	out.Name, out.Rails, out.nonce = hello.Name, hello.Rails, hello.Nonce
	return out, nil
}

// Close ends the connection.
func (c *Peer) Close() { _ = c.conn.Close() }

func (c *Peer) ask(q request) (reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q.Token = c.token
	if err := errors.Join(c.conn.SetDeadline(time.Now().Add(patience)), c.out.Encode(q)); err != nil {
		return reply{}, err
	}
	var r reply
	if err := c.in.Decode(&r); err != nil {
		return reply{}, err
	}
	if r.Error != "" {
		return reply{}, errors.New(r.Error)
	}
	return r, nil
}

// Local returns the answers of the tests that the peer's pod makes alone.
func (c *Peer) Local() ([]doctor.Answer, error) {
	r, err := c.ask(request{Local: true})
	return r.Answers, err
}

// Test lets the peer test its rails with a third pod.
func (c *Peer) Test(address string, cross bool) ([]doctor.Answer, error) {
	r, err := c.ask(request{Test: address, Cross: cross})
	return r.Answers, err
}
