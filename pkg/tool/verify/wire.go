// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
)

// wire carries JSON documents between a caller and a server, one a line. Each has a
// code (HMAC-SHA-256) of the token, of both sides' random numbers, of the direction and
// of its position. So neither side believes a program that does not know the token, and
// the token itself is never sent. The documents are not encrypted.
type wire struct {
	conn     net.Conn
	in       *bufio.Scanner
	key      []byte
	server   bool
	sent     uint64
	received uint64
}

// The longest documents: what a caller asks is short, and what a server answers has
// what it found on all rails.
const (
	longestRequest = 1 << 16
	longestReply   = 1 << 24
)

// errCode is what a caller with another token, or a program that is none of ours, gets.
var errCode = errors.New("the token is wrong, or it is no server of this test: start all with the same --token")

// newWire exchanges random numbers.
func newWire(conn net.Conn, token string, server bool) (*wire, error) {
	longest := longestReply
	if server {
		longest = longestRequest
	}
	w := &wire{conn: conn, in: newScanner(conn, longest), server: server}
	own := rand.Text()
	if _, err := io.WriteString(conn, own+"\n"); err != nil {
		return nil, err
	}
	other, err := w.line()
	if err != nil {
		return nil, err
	}
	caller, answers := own, string(other)
	if server {
		caller, answers = answers, caller
	}
	h := hmac.New(sha256.New, []byte(token))
	_ = json.NewEncoder(h).Encode([]string{"roce verify", caller, answers}) // a hash takes all
	w.key = h.Sum(nil)
	return w, nil
}

func newScanner(conn net.Conn, longest int) *bufio.Scanner {
	in := bufio.NewScanner(conn)
	in.Buffer(nil, longest)
	return in
}

func (w *wire) line() ([]byte, error) {
	if !w.in.Scan() {
		if err := w.in.Err(); err != nil {
			return nil, err
		}
		return nil, io.ErrUnexpectedEOF
	}
	return w.in.Bytes(), nil
}

// code is that of a document of one side, at a position.
func (w *wire) code(server bool, position uint64, document []byte) []byte {
	h := hmac.New(sha256.New, w.key)
	head := binary.BigEndian.AppendUint64([]byte{0}, position)
	if server {
		head[0] = 1
	}
	h.Write(append(head, document...))
	return h.Sum(nil)
}

func (w *wire) write(document any) error {
	b, err := json.Marshal(document)
	if err != nil {
		return err
	}
	line := hex.AppendEncode(nil, w.code(w.server, w.sent, b))
	w.sent++
	_, err = w.conn.Write(append(append(append(line, ' '), b...), '\n'))
	return err
}

// read reads a document of the other side. Errors: errCode, and those of the connection.
func (w *wire) read(document any) error {
	line, err := w.line()
	if err != nil {
		return err
	}
	sum, b, _ := bytes.Cut(line, []byte(" "))
	got, err := hex.AppendDecode(nil, sum)
	if err != nil || !hmac.Equal(got, w.code(!w.server, w.received, b)) {
		return errCode
	}
	w.received++
	return json.Unmarshal(b, document)
}
