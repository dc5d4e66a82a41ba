// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cnitest

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/dns/dnsmessage"
)

// SendFrames sends frames on a port of a namespace again and again until ctx is over, as a
// switch does: a frame may come before the socket of the receiver is open. enter runs a
// function in the namespace. done is closed when no more frames come; the test waits for it.
func SendFrames(ctx context.Context, t *testing.T, enter func(func() error) error, port string, etherType int, frames ...[]byte) (done <-chan struct{}) {
	t.Helper()
	var conn *packet.Conn
	if err := enter(func() error {
		ifi, err := net.InterfaceByName(port)
		if err == nil {
			conn, err = packet.Listen(ifi, packet.Raw, etherType, nil)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	t.Cleanup(func() { <-over })
	go func() {
		defer close(over)
		defer conn.Close()
		again := time.NewTicker(5 * time.Millisecond)
		defer again.Stop()
		for {
			for _, f := range frames {
				_, _ = conn.WriteTo(f, &packet.Addr{HardwareAddr: f[:6]}) // the next round sends it again
			}
			select {
			case <-again.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return over
}

// AnswerNames answers as a DNS server until the connection is closed. known returns the IPv4
// addresses of a name, nil if there is no such name.
func AnswerNames(conn net.PacketConn, known func(name string) []netip.Addr) {
	question := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(question)
		if err != nil {
			return // closed
		}
		if answer := answered(question[:n], known); answer != nil {
			_, _ = conn.WriteTo(answer, from) // the resolver asks again
		}
	}
}

// answered returns the answer to a message, nil if there is none.
func answered(question []byte, known func(name string) []netip.Addr) []byte {
	var m dnsmessage.Message
	if m.Unpack(question) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	out := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true}, Questions: m.Questions}
	found := known(q.Name.String())
	if found == nil {
		out.RCode = dnsmessage.RCodeNameError
	}
	for _, a := range found {
		if q.Type == dnsmessage.TypeA {
			out.Answers = append(out.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET},
				Body:   &dnsmessage.AResource{A: a.As4()},
			})
		}
	}
	packed, err := out.Pack()
	if err != nil {
		return nil
	}
	return packed
}
