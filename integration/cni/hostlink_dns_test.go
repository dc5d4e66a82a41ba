// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"context"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// TestAPodResolvesNames asks a DNS server by UDP: one in a pod of the other node through a
// ClusterIP, translated as kube-proxy does, and the node-local one.
func TestAPodResolvesNames(t *testing.T) {
	t.Parallel()
	l := newLinked(t)
	p, far := l.bare(t), l.bare(t)
	v4, v6 := cnitest.Subnet4(0), cnitest.Subnet6(0)
	l.attach(linkedTo(l.node, v4, v6), p, "eth0").mustAdd(t)
	servers := addrs(l.other.attach(linkedTo(l.other, v4, v6), far, "eth0").mustAdd(t))
	const local = "169.254.20.10"
	l.resolve(t, port(local, 53), "192.0.2.1")
	p.mustResolve(t, port(local, 53), "192.0.2.1")
	for _, a := range servers {
		f := placesOf(a)
		if _, err := exec.LookPath(f.tables); err != nil {
			t.Skipf("no %s: %v", f.tables, err)
		}
		far.resolve(t, netip.AddrPortFrom(a, 53), "192.0.2.2")
		l.service(t, f, "udp", 53, netip.AddrPortFrom(a, 53))
		p.mustResolve(t, port(f.service, 53), "192.0.2.2")
	}
}

// resolve answers each question for an address with the same one.
func (ns *namespace) resolve(t testing.TB, at netip.AddrPort, answer string) {
	t.Helper()
	var c net.PacketConn
	err := ns.Enter(func() (err error) {
		c, err = net.ListenPacket("udp", at.String())
		return err
	})
	if err != nil {
		t.Fatalf("%s: listen on %s: %v", ns.Name, at, err)
	}
	t.Cleanup(func() { c.Close() })
	go cnitest.AnswerNames(c, func(string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(answer)} })
}

// mustResolve wants that a program of the namespace resolves a name.
func (ns *namespace) mustResolve(t *testing.T, server netip.AddrPort, want string) {
	t.Helper()
	r := net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (c net.Conn, err error) {
		err = ns.Enter(func() error {
			c, err = net.Dial("udp", server.String())
			return err
		})
		return c, err
	}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got, err := r.LookupHost(ctx, "kubernetes.default.svc.cluster.local.")
	if err != nil || !slices.Equal(got, []string{want}) {
		t.Errorf("%s asks %s: got %v, %v, want %s", ns.Name, server, got, err, want)
	}
}
