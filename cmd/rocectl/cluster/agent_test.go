// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"net"
	"net/http"
	"slices"
	"testing"
)

func TestAConnectionThatIsClosedMakesRoomForAnother(t *testing.T) {
	t.Parallel()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{}, maxConnections)
	stop, err := serve([]string{address}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	var idle []net.Conn
	for range maxConnections {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		idle = append(idle, c)
	}
	answered := make(chan error, 1)
	go func() {
		res, err := http.Get("http://" + address) //nolint:noctx // the test ends with it
		if err == nil {
			err = res.Body.Close()
		}
		answered <- err
	}()
	if err := idle[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

func TestTheAgentListensAtTheAddressOfTheNode(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		listen, nodeIP string
		want           []string
	}{
		{":9482", "", []string{":9482"}},
		{":9482", "192.0.2.7", []string{"127.0.0.1:9482", "192.0.2.7:9482"}},
		{":9482", "fd00::7", []string{"127.0.0.1:9482", "[fd00::7]:9482"}},
		{"0.0.0.0:9482", "192.0.2.7", []string{"0.0.0.0:9482"}},
		{"banana", "192.0.2.7", []string{"banana"}},
	} {
		if got := (agentFlags{listen: tt.listen, nodeIP: tt.nodeIP}).addresses(); !slices.Equal(got, tt.want) {
			t.Errorf("--listen %s, NODE_IP %q: %q, want %q", tt.listen, tt.nodeIP, got, tt.want)
		}
	}
}
