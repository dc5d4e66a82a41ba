// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"context"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// TokenVariable is the environment variable with the token of a test. The words of a command
// are visible to all users of a node, the environment of a process is not.
const TokenVariable = "ROCE_VERIFY_TOKEN" //nolint:gosec // the name of a variable, not a secret

// shortestToken is in bytes. A server shows its public key to all who connect, so they can
// try tokens at home: there must be too many.
const shortestToken = 16

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
	seed, err := hkdf.Key(sha256.New, []byte(token), nil, "roce-cni verify", ed25519.SeedSize)
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
	in *json.Decoder
}

func newWire(conn net.Conn) *wire { return &wire{conn, json.NewDecoder(conn)} }

// call shows a server that we have the key, and wants to see that it has it. Errors: errToken.
func call(ctx context.Context, conn net.Conn, key Key) (*wire, error) {
	c := tls.Client(conn, key.config)
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", errToken, err)
	}
	return newWire(c), nil
}

// answerCall is the server's side of call.
func answerCall(ctx context.Context, conn net.Conn, key Key) (*wire, error) {
	c := tls.Server(conn, key.config)
	return newWire(c), c.HandshakeContext(ctx)
}

func (w *wire) write(document any) error { return json.NewEncoder(w).Encode(document) }

func (w *wire) read(document any) error { return w.in.Decode(document) }
