// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// linked is a world with two nodes on one network, for pods of which roce makes eth0.
//
//	node   172.16.10.1  fd00:10::1  and on lo 10.0.0.7 fd00:7::7 169.254.20.10
//	other  172.16.10.2  fd00:10::2
//	beyond the gateway 198.51.100.1 2001:db8::1
type linked struct {
	*world
	other *node
	wire  *tap // the port of the node
}

func newLinked(t testing.TB) *linked {
	t.Helper()
	w := newWorld(t, 0)
	w.bridge(t, 1)
	l := &linked{world: w, other: newNode(t, w.Name+"-b")}
	l.other.host = "node-b"
	w.wireTo(t, l.other, 0, "leafb")
	w.leaf.IP(t, `
		link set dev leafb master br0
		addr add 198.51.100.1/32 dev lo
		addr add 2001:db8::1/128 dev lo nodad
		link set dev lo up`)
	for i, n := range []*node{w.node, l.other} {
		n.IP(t, fmt.Sprintf(`
			addr add 172.16.10.%[1]d/24 dev rail0
			addr add fd00:10::%[1]d/64 dev rail0 nodad
			route add default via 172.16.10.254
			route add ::/0 via fd00:10::fe`, i+1))
		n.Set(t, "net/ipv4/ip_forward", "1")
		n.Set(t, "net/ipv6/conf/all/forwarding", "1")
	}
	w.IP(t, `
		addr add 10.0.0.7/32 dev lo
		addr add 169.254.20.10/32 dev lo
		addr add fd00:7::7/128 dev lo nodad`)
	l.wire = w.leaf.listen(t, "leaf0", nil)
	return l
}

// bare returns a pod without any interface: its first network is still to be made.
func (w *world) bare(t testing.TB) *pod {
	t.Helper()
	i := w.pods.Add(1)
	ns := newNamespace(t, fmt.Sprintf("%s-%d", strings.TrimSuffix(w.node.Name, "-node"), i))
	ns.IP(t, "link set dev lo up")
	return &pod{ns, "sandbox-" + ns.Name, fmt.Sprintf("job-%d", i)}
}

// linkedTo returns a network that links pods with their node. The nodes have addresses
// of their own.
func linkedTo(n *node, subnets ...map[string]any) network {
	var list []any
	for _, s := range subnets {
		list = append(list, s)
	}
	c := n.rail(0).With("ipam.subnets", list).With("hostLink", map[string]any{"routes": []any{"10.96.0.0/12", "fd00:96::/108"}})
	if n.host == "" {
		return c
	}
	for i, s := range subnets {
		r := "172.16.10.130-172.16.10.140"
		if strings.Contains(s["subnet"].(string), ":") {
			r = "fd00:10::130-fd00:10::140"
		}
		c = c.With(fmt.Sprintf("ipam.subnets.%d.ranges", i), []any{r})
	}
	return c
}

// serve answers on all ports that are asked: it tells each client the address that the
// client has for it.
func (ns *namespace) serve(t testing.TB, at netip.AddrPort) {
	t.Helper()
	var l net.Listener
	err := ns.Enter(func() (err error) {
		l, err = net.Listen("tcp", at.String())
		return err
	})
	if err != nil {
		t.Fatalf("%s: listen on %s: %v", ns.Name, at, err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			from, _ := netip.ParseAddrPort(c.RemoteAddr().String())
			_, _ = io.WriteString(c, from.Addr().Unmap().String()) // the client reads why
			c.Close()
		}
	}()
}

// ask returns the address that the server at an address sees.
func (ns *namespace) ask(at netip.AddrPort) (string, error) {
	var answer []byte
	err := ns.Enter(func() error {
		c, err := net.DialTimeout("tcp", at.String(), 3*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
			return err
		}
		answer, err = io.ReadAll(c)
		return err
	})
	return string(answer), err
}

// mustSee wants that a server at an address answers, and sees one of the addresses.
func (ns *namespace) mustSee(t *testing.T, what string, at netip.AddrPort, froms ...string) {
	t.Helper()
	got, err := ns.ask(at)
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	for _, from := range froms {
		if got == from {
			return
		}
	}
	t.Errorf("%s: the server sees %s, want one of %v", what, got, froms)
}

func port(addr string, n uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), n)
}

// places is what there is of each address in one family.
type places struct {
	node, lo, other, gateway, beyond, service string
	tables                                    string // the program for NAT rules
}

func placesOf(a netip.Addr) places {
	if a.Is4() {
		return places{"172.16.10.1", "10.0.0.7", "172.16.10.2", "172.16.10.254", "198.51.100.1", "10.96.0.10", "iptables"}
	}
	return places{"fd00:10::1", "fd00:7::7", "fd00:10::2", "fd00:10::fe", "2001:db8::1", "fd00:96::a", "ip6tables"}
}

func TestAPodReachesItsNodeThroughTheLink(t *testing.T) {
	t.Parallel()
	subnets := []map[string]any{cnitest.Subnet4(0), cnitest.Subnet6(0)}
	for _, routing := range []string{"policy", "main"} {
		t.Run(routing, func(t *testing.T) {
			t.Parallel()
			l := newLinked(t)
			p, q, far := l.bare(t), l.bare(t), l.bare(t)
			here, there := linkedTo(l.node, subnets...).With("routing", routing), linkedTo(l.other, subnets...).With("routing", routing)
			a := l.attach(here, p, "eth0")
			own := addrs(a.mustAdd(t))
			neighbours := addrs(l.attach(here, q, "eth0").mustAdd(t))
			remote := addrs(l.other.attach(there, far, "eth0").mustAdd(t))
			a.mustCheck(t)
			for i, addr := range own {
				l.reaches(t, p, addr, q, neighbours[i], far, remote[i])
			}
		})
	}
}

// reaches tests all that a pod reaches, and all that reaches it, in one family.
func (l *linked) reaches(t *testing.T, p *pod, own netip.Addr, q *pod, neighbour netip.Addr, far *pod, remote netip.Addr) {
	t.Helper()
	f, me := placesOf(own), own.String()
	nodes := []string{f.node, f.lo}
	for _, s := range []struct {
		in *namespace
		at netip.Addr
	}{{p.namespace, own}, {q.namespace, neighbour}, {far.namespace, remote}} {
		s.in.serve(t, netip.AddrPortFrom(s.at, 8080))
	}
	l.serve(t, port(f.node, 10250))
	l.serve(t, port(f.lo, 10250))
	l.other.serve(t, port(f.other, 10250))
	l.leaf.serve(t, port(f.beyond, 443))

	l.mustSee(t, "a probe of the kubelet", netip.AddrPortFrom(own, 8080), nodes...)
	l.MustRun(t, "ping", "-n", "-q", "-c", "1", "-W", "3", "-I", f.node, me)
	l.MustRun(t, "ping", "-n", "-q", "-c", "1", "-W", "3", "-I", f.lo, me)
	p.mustSee(t, "its own node", port(f.node, 10250), me)
	p.mustSee(t, "another address of its node", port(f.lo, 10250), me)
	p.mustSee(t, "the other node", port(f.other, 10250), me)
	p.mustSee(t, "a pod of the same node", netip.AddrPortFrom(neighbour, 8080), me)
	p.mustSee(t, "a pod of the other node", netip.AddrPortFrom(remote, 8080), me)
	p.mustSee(t, "beyond the gateway", port(f.beyond, 443), me)
	l.leaf.mustSee(t, "from beyond the gateway", netip.AddrPortFrom(own, 8080), f.gateway)
	l.other.mustSee(t, "from the other node", netip.AddrPortFrom(own, 8080), f.other)
	if own.Is4() {
		l.serve(t, port("169.254.20.10", 53))
		p.mustSee(t, "node-local DNS", port("169.254.20.10", 53), me)
		if way := p.MustRun(t, "ip", "route", "get", "169.254.169.254", "from", me); strings.Contains(way, "host0") {
			t.Errorf("the metadata service of a cloud is reached through the node: %s", way)
		}
	}
	for _, x := range l.wire.heard(func(x frame) bool {
		return x.from == own && (x.to.String() == f.node || x.to.String() == f.lo) || x.to == own && (x.from.String() == f.node || x.from.String() == f.lo)
	}) {
		t.Errorf("between the pod and its node, beside the link: %v", x)
	}
}

// TestAPodReachesClusterIPs translates addresses as kube-proxy does: of what does not come
// from the pod CIDR of the cluster, also the source.
func TestAPodReachesClusterIPs(t *testing.T) {
	t.Parallel()
	l := newLinked(t)
	p, q, far := l.bare(t), l.bare(t), l.bare(t)
	v4, v6 := cnitest.Subnet4(0), cnitest.Subnet6(0)
	here, there := linkedTo(l.node, v4, v6), linkedTo(l.other, v4, v6)
	own := addrs(l.attach(here, p, "eth0").mustAdd(t))
	neighbours := addrs(l.attach(here, q, "eth0").mustAdd(t))
	remote := addrs(l.other.attach(there, far, "eth0").mustAdd(t))
	for i, a := range own {
		f := placesOf(a)
		if _, err := exec.LookPath(f.tables); err != nil {
			t.Skipf("no %s: %v", f.tables, err)
		}
		q.serve(t, netip.AddrPortFrom(neighbours[i], 53))
		far.serve(t, netip.AddrPortFrom(remote[i], 53))
		l.serve(t, port(f.lo, 53))
		p.serve(t, netip.AddrPortFrom(a, 8080))
		for n, to := range []netip.AddrPort{netip.AddrPortFrom(neighbours[i], 53), netip.AddrPortFrom(remote[i], 53), port(f.lo, 53), netip.AddrPortFrom(a, 8080)} {
			l.service(t, f, "tcp", uint16(1000+n), to)
		}
		nodes := []string{f.node, f.lo, "169.254.20.10"}
		p.mustSee(t, "a Service with a pod of the same node", port(f.service, 1000), nodes...)
		p.mustSee(t, "a Service with a pod of the other node", port(f.service, 1001), nodes...)
		p.mustSee(t, "a Service with a program of the node", port(f.service, 1002), a.String())
		p.mustSee(t, "a Service with the pod itself", port(f.service, 1003), nodes...)
		l.mustSee(t, "the node, to a Service with the pod", port(f.service, 1003), nodes...)
		l.leaf.mustSee(t, "a NodePort of the pod's node", port(f.node, 1003), nodes...)
	}
}

// service makes a ClusterIP and a NodePort with one endpoint.
func (l *linked) service(t *testing.T, f places, protocol string, n uint16, to netip.AddrPort) {
	t.Helper()
	for _, chain := range []string{"PREROUTING", "OUTPUT"} {
		for _, at := range []string{f.service, f.node} {
			l.MustRun(t, f.tables, "-w", "-t", "nat", "-A", chain, "-d", at, "-p", protocol, "--dport", fmt.Sprint(n), "-j", "DNAT", "--to-destination", to.String())
		}
	}
	host := map[bool]string{true: "/32", false: "/128"}[to.Addr().Is4()]
	if !strings.HasPrefix(to.Addr().String(), f.lo) {
		l.MustRun(t, f.tables, "-w", "-t", "nat", "-A", "POSTROUTING", "-d", to.Addr().String()+host, "-p", protocol, "--dport", fmt.Sprint(to.Port()), "-m", "conntrack", "--ctstate", "DNAT", "-j", "MASQUERADE")
	}
}

// TestForeignSourcesGetAnAnswerThroughTheLinkOrNone: a source behind the node that the
// pod would answer through its gateway gets no answer, unless routes has it.
func TestForeignSourcesGetAnAnswerThroughTheLinkOrNone(t *testing.T) {
	t.Parallel()
	l := newLinked(t)
	client, p, q := l.pod(t), l.bare(t), l.bare(t) // the client has an eth0 of the node: 10.244.1.2
	c := linkedTo(l.node, cnitest.Subnet4(0))
	without := addrs(l.attach(c, p, "eth0").mustAdd(t))[0]
	with := addrs(l.attach(c.With("hostLink.routes", []any{"10.244.0.0/16"}), q, "eth0").mustAdd(t))[0]
	p.serve(t, netip.AddrPortFrom(without, 8080))
	q.serve(t, netip.AddrPortFrom(with, 8080))
	client.mustSee(t, "with its CIDR in routes", netip.AddrPortFrom(with, 8080), "10.244.1.2")
	if got, err := client.ask(netip.AddrPortFrom(without, 8080)); err == nil {
		t.Errorf("without its CIDR in routes the client gets %q", got)
	}
	for _, x := range l.wire.heard(func(x frame) bool { return x.to == netip.MustParseAddr("10.244.1.2") }) {
		t.Errorf("an answer took another way: %v", x)
	}
}
