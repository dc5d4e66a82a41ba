// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// request is what a caller asks a server. The first one is empty, and the answer has the
// rails.
type request struct {
	// Received asks which packets of this connection's nonce have arrived.
	Received bool `json:"received,omitempty"`
	// Throw asks for frames from a rail to an end: see Pod.throw.
	Throw *throwing `json:"throw,omitempty"`
	// Launch asks for the server of a test by RDMA, and Ended whether the program of
	// that number has ended.
	Launch *launching `json:"launch,omitempty"`
	Ended  int        `json:"ended,omitempty"`
	// Local and Test ask for the answers of the server's own pod, and of a test with
	// another pod. Test is the address of that pod's server. Self is what answers call
	// the server's own pod; "": by its own name.
	Local bool   `json:"local,omitempty"`
	Test  string `json:"test,omitempty"`
	Self  string `json:"self,omitempty"`
	Tests
}

// Tests says which tests two pods make.
type Tests struct {
	// Cross tests each rail also with the other rails to which it has a route.
	Cross bool `json:"cross,omitempty"`
	// RDMA tests each couple of rails also by RDMA.
	RDMA bool `json:"rdma,omitempty"`
	// Peer is what answers call the other pod; "": by its own name.
	Peer string `json:"peer,omitempty"`
}

type throwing struct {
	Rail int `json:"rail"`
	To   end `json:"to"`
}

type launching struct {
	Rail  int    `json:"rail"`
	Check string `json:"check"`
}

type reply struct {
	Error    string          `json:"error,omitempty"`
	Name     string          `json:"name,omitempty"`
	Nonce    nonce           `json:"nonce,omitzero"`
	Rails    []Rail          `json:"rails,omitempty"`
	Received []arrival       `json:"received,omitempty"`
	Answers  []report.Answer `json:"answers,omitempty"`
	// Missing is what a test by RDMA needs; otherwise Port is where the program of the
	// number Launched listens. Over says that one has ended, and Said is its last line.
	Missing  string `json:"missing,omitempty"`
	Port     int    `json:"port,omitempty"`
	Launched int    `json:"launched,omitempty"`
	Over     bool   `json:"over,omitempty"`
	Said     string `json:"said,omitempty"`
}

// arrival is a packet of a size at the port of a rail. Several rails of a caller may send to it.
type arrival struct {
	From netip.AddrPort `json:"from"`
	UDP  uint16         `json:"udp"`
	Size int            `json:"size"` // with headers
}

// Server lets other pods test the rails of a pod.
type Server struct {
	Pod
	// Key is what callers must have.
	Key Key

	mu     sync.Mutex
	seen   map[nonce]map[arrival]bool // a nonce lives as long as its connection
	echoes map[socket]*net.UDPConn
}

// socket is what an echo is bound to.
type socket struct {
	index int32
	addr  netip.Addr
}

// Limits of time. Each is longer than those that a peer of the same pod waits for: a pod that
// is slow makes no other one late.
const (
	greeting = 10 * time.Second // until a caller has shown that it has the key
	moment   = 30 * time.Second // for an answer for which a server sends no more than some packets
	testTime = 15 * time.Minute // for the tests of a pod with one other
	patience = 20 * time.Minute // for the answer of a server that tests
	idle     = 30 * time.Minute // between two requests of a connection
	silence  = 30 * time.Second // without a sign that the other node runs
)

// Serve answers callers until ctx ends. Errors: those of Pod.Rails and of the sockets.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.seen, s.echoes = map[nonce]map[arrival]bool{}, map[socket]*net.UDPConn{}
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range s.echoes {
			_ = c.Close()
		}
	})
	if _, err := s.rails(ctx); err != nil {
		return err
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
		go s.talk(ctx, conn)
	}
}

// rails looks at the rails of the pod, which may have changed since the last call, and starts the
// echo of those that have none.
func (s *Server) rails(ctx context.Context) ([]Rail, error) {
	rails, err := s.Rails(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range rails {
		at := socket{rails[i].index, rails[i].Addr}
		if s.echoes[at] == nil {
			if ctx.Err() != nil {
				return nil, ctx.Err() // the end of Serve does not wait for it
			}
			c, err := s.socket(ctx, rails[i])
			if err != nil {
				return nil, err
			}
			s.echoes[at] = c
			go s.echo(c)
		}
		rails[i].UDP = netip.MustParseAddrPort(s.echoes[at].LocalAddr().String()).Port()
	}
	return rails, nil
}

// echo sends back each packet with a known nonce.
func (s *Server) echo(c *net.UDPConn) {
	buf, own := make([]byte, largest), netip.MustParseAddrPort(c.LocalAddr().String())
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
		if s.arrives(n, arrival{From: from, UDP: own.Port(), Size: length + headers(own.Addr())}) {
			_, _ = c.WriteToUDPAddrPort(buf[:length], from) // what does not leave is lost, as on the wire
		}
	}
}

func (s *Server) arrives(n nonce, a arrival) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	arrived, known := s.seen[n]
	if known {
		arrived[a] = true
	}
	return known
}

func (s *Server) received(n nonce) []arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.seen[n]))
}

// caller is a connection of a caller. Its requests come one after another.
type caller struct {
	pod      Pod
	nonce    nonce
	programs []*running
}

// talk answers the requests of one caller. What it has started ends with the connection.
func (s *Server) talk(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(greeting)) // it fails only after the end of the connection
	w, err := greet(ctx, tls.Server(conn, s.Key.config))
	if err != nil {
		return
	}
	c := &caller{pod: s.Pod}
	_, _ = rand.Read(c.nonce[:]) // it never fails
	defer s.know(c.nonce)()
	for err == nil {
		var q request
		if err = w.Decode(&q); err == nil {
			err = conn.SetDeadline(time.Time{})
		}
		if err == nil {
			err = w.Encode(s.answer(ctx, q, c))
		}
		if err == nil {
			err = conn.SetReadDeadline(time.Now().Add(idle))
		}
	}
}

func (s *Server) know(n nonce) (forget func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[n] = map[arrival]bool{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.seen, n)
	}
}

func (s *Server) answer(ctx context.Context, q request, c *caller) reply {
	pod := s.Pod
	pod.Name = cmp.Or(q.Self, s.Name)
	var out reply
	var err error
	switch {
	case q.Received:
		out.Received = s.received(c.nonce)
	case q.Ended != 0:
		return c.endedOf(q.Ended)
	case q.Local:
		out.Answers, err = pod.Local(ctx)
	case q.Test != "":
		out.Answers, err = pod.Test(ctx, q.Test, s.Key, q.Tests)
	default:
		out, err = s.ofRails(ctx, q, c)
	}
	if err != nil {
		return reply{Error: err.Error()}
	}
	return out
}

// ofRails answers what needs the rails of the pod.
func (s *Server) ofRails(ctx context.Context, q request, c *caller) (reply, error) {
	rails, err := s.rails(ctx)
	switch {
	case err != nil:
		return reply{}, err
	case q.Throw != nil:
		r, err := numbered(rails, q.Throw.Rail)
		if err != nil {
			return reply{}, err
		}
		return reply{}, s.throw(r, r.UDP, q.Throw.To, c.nonce)
	case q.Launch != nil:
		return c.launch(ctx, *q.Launch, rails)
	}
	return reply{Name: s.Name, Nonce: c.nonce, Rails: rails}, nil
}

func numbered(rails []Rail, n int) (Rail, error) {
	if n < 0 || n >= len(rails) {
		return Rail{}, errors.New("there is no such rail")
	}
	return rails[n], nil
}

// Peer is a connection to the server of another pod. It is safe for concurrent use.
type Peer struct {
	Name  string
	Rails []Rail

	nonce nonce
	mu    sync.Mutex
	wire  *wire
}

// Dial connects to the server at an address, from Control. The peer has the given name,
// or, if that is "", the one that it says. Errors: those of the connection, and that the
// token is wrong.
func (p Pod) Dial(ctx context.Context, address string, key Key, name string) (*Peer, error) {
	var conn net.Conn
	control := p.Control
	if control == nil {
		control = p.Enter
	}
	err := control(func() (err error) {
		d := net.Dialer{
			Timeout: greeting, Control: alive,
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence / 3, Interval: silence / 3, Count: 3},
		}
		conn, err = d.DialContext(ctx, "tcp", address)
		return err
	})
	if err != nil {
		return nil, err
	}
	out := &Peer{}
	var hello reply
	if err = conn.SetDeadline(time.Now().Add(greeting)); err == nil {
		if out.wire, err = greet(ctx, tls.Client(conn, key.config)); err != nil {
			err = fmt.Errorf("%w: %w", errToken, err)
		}
	}
	if err == nil {
		hello, err = out.exchange(request{}, greeting)
	}
	if err == nil && hello.Error != "" {
		err = errors.New(hello.Error)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	out.Name, out.Rails, out.nonce = cmp.Or(name, hello.Name, address), hello.Rails, hello.Nonce
	for i := range out.Rails {
		out.Rails[i].Number = i
	}
	return out, nil
}

// Close ends the connection.
func (c *Peer) Close() { _ = c.wire.Close() }

// alive lets a connection end if the other node is gone. Without it, what is sent to a node
// without power is sent again for a quarter of an hour.
func alive(_, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
	})
	return errors.Join(err, failed)
}

// ask returns ErrGone if the connection has failed, or nothing comes in time: nothing more
// comes from it then.
func (c *Peer) ask(q request, wait time.Duration) (reply, error) {
	r, err := c.exchange(q, wait)
	if err != nil {
		return reply{}, fmt.Errorf("%w: %w", ErrGone, err)
	}
	if r.Error != "" {
		return reply{}, errors.New(r.Error)
	}
	return r, nil
}

// exchange ends the connection if it fails: the answer to this request could come later, and
// look like that to the next one.
func (c *Peer) exchange(q request, wait time.Duration) (r reply, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err = c.wire.SetDeadline(time.Now().Add(wait))
	if err == nil {
		err = c.wire.Encode(q)
	}
	if err == nil {
		err = c.wire.Decode(&r)
	}
	if err != nil {
		_ = c.wire.Close()
	}
	return r, err
}

// Local returns the answers of the tests that the peer's pod makes alone.
func (c *Peer) Local() ([]report.Answer, error) {
	r, err := c.ask(request{Local: true, Self: c.Name}, patience)
	return r.Answers, err
}

// Test lets the peer test its rails with a third pod.
func (c *Peer) Test(address string, tests Tests) ([]report.Answer, error) {
	r, err := c.ask(request{Test: address, Self: c.Name, Tests: tests}, patience)
	return r.Answers, err
}

// TokenVariable is the environment variable with the token of a test. The words of a command
// are visible to all users of a node, the environment of a process is not.
const TokenVariable = "ROCE_VERIFY_TOKEN" //nolint:gosec // the name of a variable, not a secret

// A server shows its public key to all who connect, so they can try tokens at home. So a token
// has shortestToken bytes or more, and each try costs as many hashes as stretching says.
const shortestToken, stretching = 16, 200_000

// Key is by what the two sides of a connection know each other. All pods of a test have the
// same one.
type Key struct{ config *tls.Config }

// KeyOf derives the key of a test from its token: an Ed25519 key, and a certificate that it
// signs itself. Errors: cnierr.BadConfig if the token is short.
func KeyOf(token string) (Key, error) {
	if len(token) < shortestToken {
		return Key{}, cnierr.New(cnierr.BadConfig, "use token", "$"+TokenVariable,
			"export "+TokenVariable+"=$(openssl rand -hex 16)  # once, and the same value in all pods of the test", "it has %d bytes, and needs %d or more", len(token), shortestToken)
	}
	seed, err := pbkdf2.Key(sha256.New, token, []byte("roce-cni verify"), stretching, ed25519.SeedSize)
	if err != nil {
		return Key{}, cnierr.New(cnierr.Bug, "derive key", TokenVariable, "", "%w", err)
	}
	private := ed25519.NewKeyFromSeed(seed)
	public, _ := private.Public().(ed25519.PublicKey) // it always is
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0)}
	certificate, err := x509.CreateCertificate(nil, template, template, public, private)
	if err != nil {
		return Key{}, cnierr.New(cnierr.Bug, "make certificate", TokenVariable, "", "%w", err)
	}
	return Key{&tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: private}},
		ClientAuth:             tls.RequireAnyClientCert,
		SessionTicketsDisabled: true,
		InsecureSkipVerify:     true, //nolint:gosec // there is no authority: VerifyConnection wants our own key
		VerifyConnection: func(s tls.ConnectionState) error {
			if !public.Equal(s.PeerCertificates[0].PublicKey) {
				return errors.New("the other side has another token")
			}
			return nil
		},
	}}, nil
}

// errToken is what a caller with another token, or of a program that is none of ours, gets.
var errToken = errors.New("the token is wrong, or it is no server of this test: start all with the same $" + TokenVariable)

// wire carries JSON documents between a caller and a server.
type wire struct {
	net.Conn
	*json.Encoder
	*json.Decoder
}

func newWire(conn net.Conn) *wire { return &wire{conn, json.NewEncoder(conn), json.NewDecoder(conn)} }

// greet shows the other side that we have the key, and wants to see that it has it.
func greet(ctx context.Context, conn *tls.Conn) (*wire, error) {
	return newWire(conn), conn.HandshakeContext(ctx)
}

// dials is how many servers are dialled at the same time.
const dials = 64

// Guest is a pod to invite: the address of its server, and what answers call it; "": by its
// own name.
type Guest struct{ Name, Address string }

// Invite dials the servers of pods. The seats are in the order of the guests; a pod that
// does not answer has a seat with Absent. No two pods that answer have the same name. The
// caller closes the others with Leave.
func (p Pod) Invite(ctx context.Context, guests []Guest, key Key) []Seat {
	out := make([]Seat, len(guests))
	limit := make(chan struct{}, dials)
	var wg sync.WaitGroup
	for i, g := range guests {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			peer, err := p.Dial(ctx, g.Address, key, g.Name)
			if err != nil {
				out[i] = Seat{Name: cmp.Or(g.Name, g.Address), Address: g.Address, Absent: err}
				return
			}
			out[i] = Seat{Member: peer, Name: peer.Name, Address: g.Address}
		})
	}
	wg.Wait()
	p.distinguish(out, guests)
	return out
}

// distinguish adds the address to each name that a pod has given itself and another one has,
// too: two pods of one node have its name.
func (p Pod) distinguish(seats []Seat, guests []Guest) {
	count := map[string]int{p.Name: 1}
	for _, s := range seats {
		count[s.Name]++
	}
	for i := range seats {
		s := &seats[i]
		if peer, is := s.Member.(*Peer); is && guests[i].Name == "" && count[s.Name] > 1 {
			peer.Name = fmt.Sprintf("%s (%s)", s.Name, s.Address)
			s.Name = peer.Name
		}
	}
}

// Leave ends the connections to the servers of seats.
func Leave(seats []Seat) {
	for _, s := range seats {
		if peer, is := s.Member.(*Peer); is {
			peer.Close()
		}
	}
}
