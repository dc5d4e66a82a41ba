// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

// relay is between a caller and a server, and changes what it passes on.
type relay struct {
	net.Conn
	change func([]byte) []byte
	seen   *bytes.Buffer
}

func (r relay) Write(b []byte) (int, error) {
	r.seen.Write(b)
	_, err := r.Conn.Write(r.change(b))
	return len(b), err
}

// exchange sends a request, and a reply to it, through a relay on the server's side.
func exchange(t *testing.T, callers, servers string, change func([]byte) []byte) (got reply, seen string, callerErr, serverErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var said bytes.Buffer
	done := make(chan error, 1)
	go func() { done <- serveOne(l, servers, change, &said) }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	w, err := newWire(conn, callers, false)
	if err == nil {
		err = w.write(request{})
	}
	if err == nil {
		err = w.read(&got)
	}
	serverErr = <-done
	return got, said.String(), err, serverErr
}

// serveOne answers one request.
func serveOne(l net.Listener, token string, change func([]byte) []byte, seen *bytes.Buffer) error {
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	w, err := newWire(relay{conn, change, seen}, token, true)
	if err != nil {
		return err
	}
	var q request
	if err := w.read(&q); err != nil {
		return err
	}
	return w.write(reply{Name: "gpu-07"})
}

func TestNeitherSideBelievesWhoDoesNotKnowTheToken(t *testing.T) {
	t.Parallel()
	as := func(b []byte) []byte { return b }
	got, seen, callerErr, serverErr := exchange(t, "the secret", "the secret", as)
	if got.Name != "gpu-07" || callerErr != nil || serverErr != nil {
		t.Errorf("got %+v, %v, %v", got, callerErr, serverErr)
	}
	if strings.Contains(seen, "secret") {
		t.Errorf("the token is sent: %s", seen)
	}
	if _, _, _, err := exchange(t, "the secret", "another", as); !errors.Is(err, errCode) {
		t.Errorf("a server believes a caller with another token: %v", err)
	}
	changed := func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("gpu-07"), []byte("gpu-08")) }
	if got, _, err, _ := exchange(t, "the secret", "the secret", changed); !errors.Is(err, errCode) || got.Name != "" {
		t.Errorf("a caller believes what was changed on the way: %+v, %v", got, err)
	}
}

// TestACallerDoesNotBelieveAProgramInPlaceOfAServer: a pod that has got the address of
// another one after that was deleted.
func TestACallerDoesNotBelieveAProgramInPlaceOfAServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "x\n")
		in := bufio.NewScanner(conn)
		for range 2 { // its random number, and its request
			_ = in.Scan()
		}
		_, _ = io.WriteString(conn, strings.Repeat("0", 64)+` {"name": "gpu-07", "rails": []}`+"\n")
		_ = in.Scan() // the end
	}()
	p := Pod{Name: "a", Enter: func(fn func() error) error { return fn() }}
	if _, err := p.Dial(t.Context(), l.Addr().String(), "x", "gpu-07"); !errors.Is(err, errCode) {
		t.Errorf("got %v, want that it is no server of the test", err)
	}
	_ = l.Close()
	<-done
}
