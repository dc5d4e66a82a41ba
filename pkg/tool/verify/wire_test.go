// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

func keyOf(t *testing.T, token string) Key {
	t.Helper()
	key, err := KeyOf(token)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestAShortTokenIsRefused: a server shows everybody a key that follows from the token.
func TestAShortTokenIsRefused(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]cnierr.Code{0: cnierr.BadConfig, shortestToken - 1: cnierr.BadConfig, shortestToken: 0} {
		_, err := KeyOf(strings.Repeat("x", n))
		if (err == nil) != (want == 0) || err != nil && cnierr.CodeOf(err) != want {
			t.Errorf("a token of %d bytes: %v", n, err)
		}
	}
}

// recorder keeps what goes over a connection.
type recorder struct {
	net.Conn
	sent *bytes.Buffer
}

func (r recorder) Write(b []byte) (int, error) {
	r.sent.Write(b)
	return r.Conn.Write(b)
}

// fake serves one caller as a pod with a key, which says what it likes.
func fake(t *testing.T, key Key, says reply) (address string, sent *bytes.Buffer) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	sent = &bytes.Buffer{}
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		var q request
		w, err := greet(context.WithoutCancel(t.Context()), tls.Server(recorder{conn, sent}, key.config))
		if err == nil {
			err = w.Decode(&q)
		}
		if err == nil {
			_ = w.Encode(says)
		}
		_, _ = io.Copy(io.Discard, conn) // until the caller ends it
	}()
	return l.Addr().String(), sent
}

func outside() Pod { return Pod{Name: "gpu-00", Enter: func(fn func() error) error { return fn() }} }

func TestACallerBelievesOnlyAServerWithItsToken(t *testing.T) {
	t.Parallel()
	address, sent := fake(t, testKey, reply{Name: "gpu-07"})
	peer, err := outside().Dial(t.Context(), address, testKey, "")
	if err != nil || peer.Name != "gpu-07" {
		t.Fatalf("got %+v, %v", peer, err)
	}
	peer.Close()
	for _, secret := range []string{token, "gpu-07"} {
		if strings.Contains(sent.String(), secret) {
			t.Errorf("%q is sent without encryption", secret)
		}
	}
	address, _ = fake(t, keyOf(t, "another test's token"), reply{Name: "gpu-07"})
	if _, err := outside().Dial(t.Context(), address, testKey, ""); !errors.Is(err, errToken) {
		t.Errorf("a caller believes a server with another token: %v", err)
	}
}

// TestACallerDialsFromWhereServersAreReached, and ends the connection to a server that has no rails.
// A node without power ends it after silence.
func TestACallerDialsFromWhereServersAreReached(t *testing.T) {
	t.Parallel()
	p := outside()
	p.Control, p.Enter = p.Enter, func(func() error) error { return errors.New("not from the pod") }
	n := nonce{7}
	address, _ := fake(t, testKey, reply{Nonce: n, Rails: []Rail{{Number: 9, MTU: 1500}, {Number: 9, MTU: 9000}}})
	peer, err := p.Dial(t.Context(), address, testKey, "")
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	if len(peer.Rails) != 2 || peer.Rails[0].Number != 0 || peer.Rails[1].Number != 1 || peer.Rails[1].MTU != 9000 || peer.nonce != n {
		t.Errorf("got %+v, want rails 0 and 1 and the nonce", peer)
	}
	raw, err := peer.wire.Conn.(*tls.Conn).NetConn().(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"user timeout in ms": 30_000, "idle": 10, "interval": 10, "count": 3}
	got := map[string]int{}
	_ = raw.Control(func(fd uintptr) {
		for name, option := range map[string]int{"user timeout in ms": unix.TCP_USER_TIMEOUT, "idle": unix.TCP_KEEPIDLE, "interval": unix.TCP_KEEPINTVL, "count": unix.TCP_KEEPCNT} {
			got[name], _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option)
		}
		if on, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE); on != 1 {
			t.Error("nothing is sent to a node that is silent")
		}
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	address, _ = fake(t, testKey, reply{Error: "it has no rails"})
	if _, err := p.Dial(t.Context(), address, testKey, ""); err == nil || err.Error() != "it has no rails" {
		t.Errorf("got %v, want what the server says", err)
	}
	p.Control = nil
	if _, err := p.Dial(t.Context(), address, testKey, ""); err == nil || err.Error() != "not from the pod" {
		t.Errorf("got %v, want that it dials from the pod", err)
	}
}

// TestAServerTellsAStrangerNothing: the client of the stranger accepts every certificate.
func TestAServerTellsAStrangerNothing(t *testing.T) {
	t.Parallel()
	stranger := keyOf(t, "another test's token").config.Clone()
	stranger.VerifyConnection = nil
	without := stranger.Clone()
	without.Certificates = nil
	for name, config := range map[string]*tls.Config{"another token": stranger, "no certificate": without} {
		s := &Server{Pod: outside(), Key: testKey, seen: map[nonce]map[arrival]bool{}}
		near, far := net.Pipe()
		go s.talk(t.Context(), far)
		c := tls.Client(near, config)
		go func() { _, _ = io.WriteString(c, "{}\n") }()
		if b, err := io.ReadAll(c); len(b) != 0 || err == nil {
			t.Errorf("%s: got %q, %v", name, b, err)
		}
		_ = near.Close()
	}
}

// TestAStrangerThatSaysNothingIsLeft: its connection ends, and so does the goroutine.
func TestAStrangerThatSaysNothingIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Server{Pod: outside(), Key: testKey, seen: map[nonce]map[arrival]bool{}}
		near, far := net.Pipe()
		start := time.Now()
		s.talk(t.Context(), far)
		if waited := time.Since(start); waited != greeting {
			t.Errorf("it waits %s, want %s", waited, greeting)
		}
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("got %v, want the end", err)
		}
	})
}

// talker is a caller of a server over a pipe. The server ends with the test.
func talker(t *testing.T, s *Server) (*Peer, <-chan struct{}) {
	t.Helper()
	s.Key, s.seen = testKey, map[nonce]map[arrival]bool{}
	near, far := net.Pipe()
	done := make(chan struct{})
	go func() { defer close(done); s.talk(t.Context(), far) }()
	w, err := greet(t.Context(), tls.Client(near, testKey.config))
	if err != nil {
		t.Fatal(err)
	}
	return &Peer{Name: "the second", wire: w}, done
}

// TestACallerHasTimeUntilItIsAnswered, and loses its connection when it then says nothing for long.
func TestACallerHasTimeUntilItIsAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Server{Pod: Pod{Enter: func(func() error) error { time.Sleep(testTime); return errors.New("denied") }}}
		peer, done := talker(t, s)
		for _, ask := range []func() ([]report.Answer, error){peer.Local, func() ([]report.Answer, error) { return peer.Test("10.0.0.3:9483", Tests{}) }} {
			if answers, err := ask(); err == nil || errors.Is(err, ErrGone) || !strings.Contains(err.Error(), "denied") || len(answers) != 0 {
				t.Errorf("got %v, %v, want what the server says", answers, err)
			}
		}
		if r, err := peer.ask(request{Ended: 1}, moment); err == nil || err.Error() != "there is no such program" {
			t.Errorf("got %+v, %v", r, err)
		}
		start := time.Now()
		<-done
		if waited := time.Since(start); waited != idle {
			t.Errorf("it waits %s, want %s", waited, idle)
		}
	})
}

// TestAPeerIsAskedForWhatItsCallerWants: whole requests, as the server reads them.
func TestAPeerIsAskedForWhatItsCallerWants(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	defer near.Close()
	peer, answers := &Peer{Name: "b", wire: newWire(near)}, []report.Answer{good(Reach, "rail 0 of b", "")}
	asked := make(chan request, 2)
	go func() {
		for w, q := newWire(far), (request{}); w.Decode(&q) == nil; q = (request{}) {
			asked <- q
			_ = w.Encode(reply{Answers: answers})
		}
	}()
	tests := Tests{Cross: true, RDMA: true, Peer: "c"}
	for i, want := range []request{{Local: true, Self: "b"}, {Test: "10.0.0.3:9483", Self: "b", Tests: tests}} {
		got, err := []func() ([]report.Answer, error){peer.Local, func() ([]report.Answer, error) { return peer.Test("10.0.0.3:9483", tests) }}[i]()
		if diff := cmp.Diff(answers, got); err != nil || diff != "" {
			t.Errorf("%v (-want +got)\n%s", err, diff)
		}
		if diff := cmp.Diff(want, <-asked); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}

// TestOnlyAWholeNonceIsAnswered sends the beginning of a nonce behind a whole one.
func TestOnlyAWholeNonceIsAnswered(t *testing.T) {
	t.Parallel()
	n := nonce{0: 1, 15: 9}
	s := &Server{seen: map[nonce]map[arrival]bool{n: {}}}
	echo, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go s.echo(echo)
	c, err := net.DialUDP("udp4", nil, echo.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, b := range [][]byte{n[:], {}, n[:4], make([]byte, 16), n[:]} {
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	for i := range 2 {
		if length, err := c.Read(make([]byte, 100)); err != nil || length != len(n) {
			t.Errorf("answer %d has %d bytes, error %v, want %d", i, length, err, len(n))
		}
	}
	port := func(a net.Addr) netip.AddrPort { return netip.MustParseAddrPort(a.String()) }
	want := []arrival{{port(c.LocalAddr()), port(echo.LocalAddr()).Port(), len(n) + 28}}
	if got := s.received(n); !slices.Equal(got, want) {
		t.Errorf("arrivals %+v, want %+v", got, want)
	}
}

// TestOnlyTheEchoThatIsAwaitedCounts: echoes of earlier packets, and of other tests, come before it.
func TestOnlyTheEchoThatIsAwaitedCounts(t *testing.T) {
	t.Parallel()
	n, other := nonce{1}, nonce{2}
	for _, comes := range []bool{true, false} {
		peer, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		own, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer own.Close()
		to := peer.LocalAddr().(*net.UDPAddr).AddrPort()
		early := payload(n, 0, smallest, to.Addr())
		go func() {
			b := make([]byte, largest)
			for {
				length, from, err := peer.ReadFromUDPAddrPort(b)
				if err != nil {
					return
				}
				for range attempts {
					_, _ = peer.WriteToUDPAddrPort(early, from)
					_, _ = peer.WriteToUDPAddrPort(append(other[:], b[len(other):length]...), from)
				}
				if comes {
					_, _ = peer.WriteToUDPAddrPort(b[:length], from)
				}
			}
		}()
		if got := echoed(own, n, to, 2*smallest, attempts); got != comes {
			t.Errorf("echoed %t, want %t", got, comes)
		}
	}
}

// TestANonceEndsWithItsConnection: after that, the echo answers it no more.
func TestANonceEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	s := &Server{Pod: outside()}
	peer, done := talker(t, s)
	if _, err := peer.ask(request{Received: true}, moment); err != nil {
		t.Fatal(err)
	}
	for n := range s.seen {
		peer.nonce = n
	}
	if !s.arrives(peer.nonce, arrival{}) {
		t.Error("the nonce of a caller is not known")
	}
	peer.Close()
	<-done
	if s.arrives(peer.nonce, arrival{}) || len(s.seen) != 0 {
		t.Errorf("known after the end: %v", s.seen)
	}
}

// TestPodsWithOneNameAreToldApart: two pods of a node.
func TestPodsWithOneNameAreToldApart(t *testing.T) {
	t.Parallel()
	guest := func(given, says string) Guest {
		address, _ := fake(t, testKey, reply{Name: says})
		return Guest{Name: given, Address: address}
	}
	guests := []Guest{guest("", "gpu-07"), guest("", "gpu-07"), guest("", "gpu-00"), guest("", "gpu-08"), guest("gpu-09", ""), guest("", "gpu-09"), guest("", "")}
	own := func(i int, name string) string { return fmt.Sprintf("%s (%s)", name, guests[i].Address) }
	seats := outside().Invite(t.Context(), guests, testKey)
	defer Leave(seats)
	for i, want := range []string{own(0, "gpu-07"), own(1, "gpu-07"), own(2, "gpu-00"), "gpu-08", "gpu-09", own(5, "gpu-09"), guests[6].Address} {
		if peer, _ := seats[i].Member.(*Peer); seats[i].Name != want || peer == nil || peer.Name != want {
			t.Errorf("guest %d: %q (%v), want %q", i, seats[i].Name, seats[i].Absent, want)
		}
	}
}

// TestAPodThatIsSlowMakesNoOtherOneLate: a peer ends the connection to a pod that does not
// answer long before the leader ends that to the peer. After that, no request waits.
func TestAPodThatIsSlowMakesNoOtherOneLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		peer := &Peer{wire: newWire(near)}
		start := time.Now()
		for range 100 {
			if (couple{peer: peer}).arrived(smallest) {
				t.Error("a packet has arrived at a pod that does not answer")
			}
		}
		if waited := time.Since(start); waited != moment {
			t.Errorf("it waits %s, want %s", waited, moment)
		}
		if _, err := peer.Local(); !errors.Is(err, ErrGone) {
			t.Errorf("got %v, want that it is gone", err)
		}
	})
	if testTime+moment >= patience || patience >= idle {
		t.Error("a pod that is slow makes another one late")
	}
}

// said is a connection on which the other side has said something.
type said struct {
	net.Conn
	in io.Reader
}

func (s said) Read(b []byte) (int, error) { return s.in.Read(b) }

// FuzzWire has a pod that knows the token send anything, as a request and as an answer.
func FuzzWire(f *testing.F) {
	f.Add([]byte(`{"throw": {"rail": -1, "to": {}}, "self": "a", "ended": 1}`))
	f.Add([]byte(`{"name": "b", "nonce": "AAAA", "rails": [{"name": "net1", "addrs": ["172.16.10.1/24"]}], "answers": [{"check": "reach", "verdict": "problem", "found": "x\u001b[2J"}], "received": [{"rail": 0}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := Server{seen: map[nonce]map[arrival]bool{}}
		var q request
		if newWire(said{in: bytes.NewReader(b)}).Decode(&q) == nil && (q.Received || q.Ended != 0) {
			s.answer(t.Context(), q, &caller{})
		}
		var r reply
		if newWire(said{in: bytes.NewReader(b)}).Decode(&r) != nil {
			return
		}
		for _, a := range r.Answers {
			var out strings.Builder
			if err := report.WriteText(&out, a); err != nil {
				t.Fatal(err)
			}
			if strings.ContainsFunc(out.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
				t.Errorf("it controls the terminal: %q", out.String())
			}
		}
	})
}

func TestACallerNamesOnlyRailsThatThereAre(t *testing.T) {
	t.Parallel()
	rails := []Rail{{}, {Number: 1}}
	for n, is := range map[int]bool{-1: false, 0: true, 1: true, 2: false} {
		if r, err := numbered(rails, n); (err == nil) != is || is && r.Number != n {
			t.Errorf("rail %d of 2: %v, %v", n, r, err)
		}
	}
}
