// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// peer is the test in another machine.
type peer struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
	self string // VM_NODE of this machine, "0" or "1", and of four also "2" or "3"
}

// slow is how long the other machine may take for anything: its boot, or all steps of
// roce-hwtest on a busy machine.
const slow = 20 * time.Minute

// meet waits for the other machine, of two.
func meet(t *testing.T) *peer {
	t.Helper()
	return meetOn(t, "r1", 1)[0]
}

// meetOn waits for other machines, over the wire of a link. Node 1 has a connection to each of
// them, and they have one to node 1.
func meetOn(t *testing.T, link string, others int) (out []*peer) {
	t.Helper()
	self := os.Getenv("VM_NODE")
	finally(t, "ip addr flush dev "+link+" scope global")
	run(t, "ip", "addr", "add", "10.0.9."+self+"/24", "dev", link)
	ctx, cancel := context.WithTimeout(t.Context(), slow)
	defer cancel()
	var conns []net.Conn
	var err error
	if self == "1" {
		conns, err = accept(ctx, others)
	} else {
		conns, err = dial(ctx)
	}
	for _, c := range conns {
		t.Cleanup(func() { _ = c.Close() })
		out = append(out, &peer{t: t, conn: c, in: bufio.NewReader(c), self: self})
	}
	if err != nil {
		t.Fatalf("the other machine: %v", err)
	}
	return out
}

const meeting = "10.0.9.1:4711"

func accept(ctx context.Context, n int) (out []net.Conn, err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", meeting)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for len(out) < n && err == nil {
		var c net.Conn
		if c, err = l.Accept(); err == nil {
			out = append(out, c)
		}
	}
	return out, err
}

func dial(ctx context.Context) ([]net.Conn, error) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", meeting)
		if err == nil {
			return []net.Conn{conn}, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// swap tells the other test something and returns what that says, for which it
// waits. If one of them ends, so does the other.
func (p *peer) swap(says string) string {
	p.t.Helper()
	if err := p.conn.SetDeadline(time.Now().Add(slow)); err != nil {
		p.t.Fatal(err)
	}
	if _, err := fmt.Fprintln(p.conn, says); err != nil {
		p.t.Fatalf("the other machine: %v", err)
	}
	heard, err := p.in.ReadString('\n')
	if err != nil {
		p.t.Fatalf("the other machine: %v", err)
	}
	return strings.TrimSpace(heard)
}

// ownRail is rail 0 with addresses that the other node does not give away.
func (n *node) ownRail(self string) network {
	return n.rail(0).With("ipam", map[string]any{"type": "roce-ipam", "subnets": []any{
		map[string]any{"subnet": "172.16.10.0/24", "ranges": []any{"172.16.10.1" + self + "1-172.16.10.1" + self + "9"}},
	}})
}

// emulate makes Soft-RoCE do for children of a link what a NIC does by itself: take
// their packets. Stock rxe listens only in the host's namespace, and wants
// packets for the link, with a GID of the link.
func emulate(t *testing.T, link string) {
	t.Helper()
	finally(t, "tc qdisc del dev "+link+" clsact")
	shell(t, strings.ReplaceAll(`tc qdisc add dev LINK clsact
		tc filter add dev LINK ingress pref 1 protocol ip flower ip_proto udp dst_port 4791 \
			action pedit ex munge eth dst set "$(cat /sys/class/net/LINK/address)" pipe action skbedit ptype host
		cd /proc/sys/net/ipv4/conf
		echo 0 >all/rp_filter; echo 0 >LINK/rp_filter
		echo 3 >LINK/arp_ignore; echo 2 >LINK/arp_announce; echo 1 >LINK/accept_local`, "LINK", link))
}

// rail is a pod with an interface, and what rocectl env says to use.
type rail struct {
	attachment
	addr  string
	tests []string // ib_write_bw -d DEVICE -i PORT -x INDEX
}

// joined attaches a pod and joins it.
func (n *node) joined(c network) rail {
	n.t.Helper()
	a := n.attach(c, n.pod())
	addr := a.mustAdd()[0]
	a.mustCheck()
	return n.join(a, addr)
}

// join reads what rocectl env says of an attached pod, and lets rxe know the address,
// which a NIC would not need.
func (n *node) join(a attachment, addr string) rail {
	n.t.Helper()
	return n.joinOn("r0", a, addr)
}

// joinOn joins a pod on a link.
func (n *node) joinOn(link string, a attachment, addr string) rail {
	n.t.Helper()
	r := rail{attachment: a, addr: addr, tests: n.tests(a)}
	finally(n.t, "ip addr del "+r.addr+"/32 dev "+link)
	run(n.t, "ip", "addr", "add", r.addr+"/32", "dev", link, "scope", "host")
	return r
}

// tests returns the command that rocectl env names.
func (n *node) tests(a attachment) (out []string) {
	n.t.Helper()
	for line := range strings.Lines(n.rocectl("env", "--netns", a.pod.Name)) {
		if command, ok := strings.CutPrefix(line, "# "+a.ifName+": ib_write_bw "); ok {
			out = append([]string{"ib_write_bw"}, strings.Fields(command)...)
		}
	}
	if out == nil {
		n.t.Fatalf("rocectl env names no ib_write_bw for %s:\n%s", a.ifName, n.rocectl("env", "--netns", a.pod.Name))
	}
	return out
}

// command returns a program that runs in the pod, and not for ever.
func (r rail) command(args ...string) []string {
	return append([]string{"netns", "exec", r.pod.Name, "timeout", "100"}, args...)
}

// serve starts a server in the pod, waits until shows prints what says that it
// listens, and returns what waits for its end.
func (r rail) serve(listens string, shows []string, args ...string) (end func()) {
	t := r.node.t
	t.Helper()
	cmd := exec.Command("ip", r.command(args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, if all went well
	cnitest.Await(t, args[0]+" listens", func() bool {
		got, _ := try("ip", r.command(shows...)...)
		return strings.Contains(got, listens)
	})
	return func() {
		t.Helper()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s, as server in %s: %v\n%s", strings.Join(args, " "), r.pod.Name, err, &out)
		}
	}
}

// amount is how much is sent. --CPU-freq lets ib_write_bw go on when it cannot
// measure the frequency of the processor, which a busy guest makes uneven.
var amount = []string{"--size=65536", "--iters=20", "--CPU-freq"}

func (r rail) writeServer() (end func()) {
	return r.serve(":18515", []string{"ss", "-ltnH"}, append(r.tests, amount...)...)
}

func (r rail) writeTo(addr string) {
	t := r.node.t
	t.Helper()
	// It does not try again to connect; a guest that is short of processors may
	// answer too late for the first time.
	var out string
	cnitest.Await(t, addr+" is reached", func() bool {
		var err error
		out, err = try("ip", r.command(append(append(r.tests, amount...), addr)...)...)
		if err != nil && !strings.Contains(out, "Couldn't connect") {
			t.Fatalf("%s to %s: %v\n%s", strings.Join(r.tests, " "), addr, err, out)
		}
		return err == nil
	})
	contains(t, out, "\n 65536      20 ")
	result, _, _ := strings.Cut(out[strings.LastIndex(out, " 65536"):], "\n")
	t.Logf("%s from %s to %s: %s", strings.Join(r.tests, " "), r.addr, addr, result)
}

func (r rail) pingServer() (end func()) {
	return r.serve("LISTEN", []string{"rdma", "resource", "show", "cm_id"}, "rping", "-s", "-a", r.addr, "-C", "5")
}

func (r rail) pingTo(addr string) {
	t := r.node.t
	t.Helper()
	run(t, "ip", r.command("rping", "-c", "-I", r.addr, "-a", addr, "-C", "5")...)
}

// across transfers from a pod of node 0 to one of node 1.
func across(p *peer, r rail, serve func() (end func()), call func(addr string)) {
	p.t.Helper()
	if p.self == "1" {
		end := serve()
		p.swap(r.addr)
		end()
	} else {
		call(p.swap("calling"))
	}
	p.swap("done")
}

func TestNodesSharedPodsTransferWithWhatRocectlSays(t *testing.T) {
	n := newNode(t, "shared")
	p := meet(t)
	emulate(t, "r0")
	r := n.joined(n.ownRail(p.self))
	across(p, r, r.writeServer, r.writeTo)
	across(p, r, r.pingServer, r.pingTo)

	// Two pods of one node.
	if p.self == "0" {
		q := n.joined(n.ownRail(p.self))
		end := r.writeServer()
		q.writeTo(r.addr)
		end()
		end = r.pingServer()
		q.pingTo(r.addr)
		end()
		q.mustDel()
	}
	r.mustDel()
	p.swap("over")
}

func TestNodesExclusivePodsTransferWithWhatRocectlSays(t *testing.T) {
	n := newNode(t, "exclusive")
	p := meet(t)
	emulate(t, "r0")
	r := n.joined(n.ownRail(p.self))
	// Soft-RoCE of 6.1 looks for the way in the host's namespace, through the
	// interface there that has the index of the pod's. It must not answer ARP for
	// the pod's address, which the host has, too: the first answer wins, and the
	// host has no server.
	finally(t, "ip link del via")
	shell(t, fmt.Sprintf(`index=$(ip netns exec %s cat /sys/class/net/net1/ifindex)
		ip link add link r0 name via index $index type macvlan mode bridge
		echo 2 >/proc/sys/net/ipv4/conf/via/arp_announce
		echo 1 >/proc/sys/net/ipv4/conf/via/arp_ignore
		ip link set via up
		ip addr add 172.16.10.20%s/24 dev via`, r.pod.Name, p.self))
	isIn(t, r.pod, "rxe0")
	across(p, r, r.writeServer, r.writeTo)
	r.mustDel()
	home(t)
	p.swap("over")
}

// TestNodesSharedPromiseOfANumberIsTheSameOnBoth has nodes with different histories: node
// 1 has other addresses, and pods with entries came and went, or stay.
func TestNodesSharedPromiseOfANumberIsTheSameOnBoth(t *testing.T) {
	n := newNode(t, "shared")
	p := meet(t)
	network := n.allRails().With("ipam", map[string]any{"type": "roce-ipam", "quarantine": "0s", "subnets": []any{map[string]any{
		"subnet": "172.16.{rail+10}.0/24", "ranges": []any{"172.16.{rail+10}.1" + p.self + "1-172.16.{rail+10}.1" + p.self + "9"},
	}}})
	if p.self == "0" {
		histories(t, byRail)
	} else {
		histories(t, func(rail int) int { return 3 - byRail(rail) })
		gone, stays := n.attach(n.ownRail(p.self), n.pod()), n.attach(network, n.pod())
		gone.mustAdd()
		stays.addRails()
		gone.mustDel()
		defer stays.mustDel()
	}
	a := n.attach(promising(network, 12), n.pod())
	addrs := a.addRails()
	at := fmt.Sprint(a.aligned(allGIDs(t, a.pod.Name), addrs))
	if other := p.swap(at); at != "[12]" || other != at {
		t.Errorf("got the indexes %s here and %s on the other node, want [12] on both", at, other)
	}
	a.mustCheck()
	a.mustDel()
	p.swap("over")
}
