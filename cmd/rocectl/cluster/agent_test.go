// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// from connects from an address of the machine.
func from(t *testing.T, source, to string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	c, err := d.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// answers fails the test unless a request on the connection is answered, and ends it.
func answers(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: node\r\n\r\n")
	if err == nil {
		err = c.SetReadDeadline(time.Now().Add(time.Minute))
	}
	b, err2 := io.ReadAll(c) // to the end: no connection is kept
	if err = errors.Join(err, err2); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200") {
		t.Errorf("from %v: %q, %v", c.LocalAddr(), b, err)
	}
}

// TestIdleConnectionsTakeNoPlaceOfOthers has clients that connect, and ask nothing or keep
// the connection.
func TestIdleConnectionsTakeNoPlaceOfOthers(t *testing.T) {
	t.Parallel()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	stop, err := serve([]string{address}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	_, port, _ := net.SplitHostPort(address)
	other := net.JoinHostPort("127.0.0.3", port)
	if _, err := serve([]string{other, address}, http.NotFoundHandler()); cnierr.CodeOf(err) != cnierr.IO || !strings.Contains(err.Error(), address) {
		t.Errorf("at an address that is taken: %v", err)
	}
	if _, err := net.Dial("tcp", other); err == nil {
		t.Error("it listens at the first address, although it cannot listen at the second")
	}
	friend := from(t, "127.0.0.2", address)
	var idle []net.Conn
	for i := range 3 * maxConnections {
		idle = append(idle, from(t, "127.0.0.1", address))
		if i%50 == 0 { // another client comes when there are too many
			answers(t, from(t, "127.0.0.2", address))
		}
	}
	answers(t, friend)
	answers(t, from(t, "127.0.0.1", address))
	open := 0 // each one takes memory
	for _, c := range idle {
		if err := c.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			open++
		}
	}
	if open > maxConnections {
		t.Errorf("%d connections of one client are open, at most %d may be", open, maxConnections)
	}
}

// guest is a connection that does nothing.
type guest struct {
	net.Conn
	from, name string
	ended      *[]string
}

func (g guest) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(g.from)) }

func (g guest) Close() error { *g.ended = append(*g.ended, g.name); return nil }

// TestTheOldestConnectionOfTheNetworkWithMostEnds has one client with a place too much, from one
// address or from several of a network, beside one that was there before it.
func TestTheOldestConnectionOfTheNetworkWithMostEnds(t *testing.T) {
	t.Parallel()
	for first, second := range map[string]string{
		"192.0.2.1:%d":          "192.0.2.1:%d",
		"[::ffff:192.0.2.1]:%d": "192.0.2.1:%d",
		"[2001:db8::1]:%d":      "[2001:db8::ffff:0:0:2]:%d",
		"[fe80::1%%eth0]:%d":    "[fe80::2%%eth1]:%d",
	} {
		var g guests
		var ended []string
		come := func(name, from string, port int) guest {
			c := guest{name: name, from: fmt.Sprintf(from, port), ended: &ended}
			g.note(c, http.StateNew)
			return c
		}
		come("friend", "[2001:db8:0:1::1]:%d", 1)
		come("neighbour", "192.0.2.2:%d", 1)
		gone := come("ended by itself", first, 1)
		for i := range maxConnections - 3 {
			come(fmt.Sprint("idle ", i), []string{first, second}[i%2], 2+i)
		}
		g.note(gone, http.StateIdle)
		g.note(gone, http.StateClosed)
		come("fits", first, 1000)
		if len(ended) > 0 {
			t.Errorf("%s: with %d connections, the server ends %q", second, maxConnections, ended)
		}
		come("too many", first, 1001)
		come("another", "[2001:db8:0:2::1]:%d", 1)
		if want := []string{"idle 0", "idle 1"}; !slices.Equal(ended, want) {
			t.Errorf("%s: the server ends %q, want %q", second, ended, want)
		}
	}
}

func TestTheAgentClaimsAsANodeWithAnIdentity(t *testing.T) {
	t.Parallel()
	const id = "0123456789abcdef0123456789abcdef"
	for text, want := range map[string]cnierr.Code{
		id + "\n": 0, id[1:]: cnierr.BadConfig, id + "0": cnierr.BadConfig, strings.ToUpper(id): cnierr.BadConfig, "": cnierr.BadConfig,
		"uninitialized\n": cnierr.BadConfig, strings.Repeat("0", 32): cnierr.BadConfig, "missing": cnierr.IO,
	} {
		root := t.TempDir()
		if text != "missing" {
			if err := errors.Join(os.Mkdir(filepath.Join(root, "etc"), 0o700), os.WriteFile(filepath.Join(root, "etc/machine-id"), []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		got, err := agentFlags{node: "gpu-1", hostRoot: root}.identity()
		if want == 0 && (err != nil || got.Name != "gpu-1" || got.MachineID != id) || want != 0 && cnierr.CodeOf(err) != want {
			t.Errorf("%q: %+v, %v, want code %d", text, got, err, want)
		}
	}
	if _, err := (agentFlags{}).identity(); cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(err.Error(), "no name") {
		t.Errorf("without a name: %v", err)
	}
}

// kubelet has made the folder of a hostPath for all to read.
func TestAnEmptyStateFolderIsClosedToOthers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before, want os.FileMode
		full         bool
	}{
		"for all": {0o755, 0o700, false}, "for a group": {0o710, 0o700, false}, "closed": {0o500, 0o500, false}, "in use, such as /run": {0o755, 0o755, true},
	} {
		dir := t.TempDir()
		if tt.full {
			if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(os.Chmod(dir, tt.before), closeToOthers(dir)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if is, err := os.Stat(dir); err != nil || is.Mode().Perm() != tt.want {
			t.Errorf("%s: %v, %v", name, is.Mode(), err)
		}
	}
	if err := closeToOthers(filepath.Join(t.TempDir(), "missing")); err != nil {
		t.Errorf("missing: %v", err)
	}
	if os.Geteuid() == 0 {
		dir := t.TempDir()
		if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, 65534, 65534), closeToOthers(dir)); err != nil {
			t.Error(err)
		}
		if is, err := os.Stat(dir); err != nil || is.Mode().Perm() != 0o755 {
			t.Errorf("of another user: %v, %v", is.Mode(), err)
		}
	}
}

func TestTheCIDRsOfServicesAreReadAsThoseOfTheAPIServer(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"10.96.0.0/12": "[10.96.0.0/12]", "10.96.0.0/12, fd00:96::/108": "[10.96.0.0/12 fd00:96::/108]",
		"": "", "10.96.0.0": "", "10.96.0.0/12,": "", "10.96.0.0/12,0.0.0.0/0": "",
	} {
		got, err := ServiceCIDRs(value)
		if want == "" && cnierr.CodeOf(err) != cnierr.BadConfig || want != "" && (err != nil || fmt.Sprint(got) != want) {
			t.Errorf("%q: %v, %v, want %s", value, got, err, want)
		}
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
