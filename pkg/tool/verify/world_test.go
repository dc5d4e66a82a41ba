// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

const token = "the token of a test"

var testKey, _ = KeyOf(token) // TestACallerBelievesOnlyAServerWithItsToken would notice an error

// world is pods with two rails each. Each rail is a switch (a bridge) with a gateway,
// and a third one is the pods' ordinary network.
type world struct {
	t    *testing.T
	node *kerneltest.Node
	wire *kerneltest.Netns
	pods []*testPod
}

type testPod struct {
	Pod
	ns      *kerneltest.Netns
	address string // of its server
}

func newWorld(t *testing.T, names ...string) *world {
	t.Helper()
	w := &world{t: t, node: kerneltest.NewNode(t)}
	w.wire = w.node.Pod()
	for i := range 2 {
		w.wire.IP(fmt.Sprintf("link add br%d type bridge", i))
		w.wire.IP(fmt.Sprintf("link set br%d up mtu 9000", i))
		w.wire.IP(fmt.Sprintf("address add 172.16.1%d.254/24 dev br%d", i, i))
	}
	w.wire.IP("link add control type bridge")
	w.wire.IP("link set control up")
	w.wire.Exec("sysctl", "-qw", "net.ipv4.ip_forward=1")
	for _, name := range names {
		w.pod(name)
	}
	w.awaitCarriers()
	return w
}

// awaitCarriers waits until the kernel has noticed that all links are up, which may take a
// second: it drops what is sent before that.
func (w *world) awaitCarriers() {
	w.t.Helper()
	nets := []*kerneltest.Netns{w.wire}
	for _, p := range w.pods {
		nets = append(nets, p.ns)
	}
	for _, ns := range nets {
		for strings.Contains(ns.IP("-oneline link show up"), "NO-CARRIER") {
			time.Sleep(10 * time.Millisecond) // the test ends by its timeout
		}
	}
}

// pod adds a pod that listens, with the rails net1 and net2.
func (w *world) pod(name string) {
	w.t.Helper()
	host := len(w.pods) + 1
	p := &testPod{ns: w.node.Pod(), address: fmt.Sprintf("10.0.0.%d:9483", host)}
	p.Pod = Pod{Name: name, Enter: p.ns.Do}
	w.pods = append(w.pods, p)
	w.plug(p, name+"eth", "eth0", "control", fmt.Sprintf("10.0.0.%d/24", host))
	for i := range 2 {
		link, addr := fmt.Sprintf("net%d", i+1), fmt.Sprintf("172.16.1%d.%d", i, host)
		w.plug(p, fmt.Sprintf("%s%d", name, i), link, fmt.Sprintf("br%d", i), addr+"/24")
		p.ns.IP(fmt.Sprintf("route add 172.16.1%d.0/24 dev %s table %d proto 82 src %s", i, link, 100+i, addr))
		p.ns.IP(fmt.Sprintf("route add default via 172.16.1%d.254 dev %s table %d proto 82", i, link, 100+i))
		p.ns.IP(fmt.Sprintf("rule add from %s lookup %d priority 32000 protocol 82", addr, 100+i))
		p.ns.IP(fmt.Sprintf("rule add from %s unreachable priority 32001 protocol 82", addr))
		p.ns.Exec("sysctl", "-qw", "net.ipv4.conf."+link+".arp_ignore=1", "net.ipv4.conf."+link+".arp_announce=2")
	}
}

// plug connects an interface of a pod to a switch. plug is the port's name.
func (w *world) plug(p *testPod, port, link, bridge, addr string) {
	w.t.Helper()
	w.wire.IP(fmt.Sprintf("link add %s type veth peer name %s netns %s", port, link, p.ns.Path))
	w.wire.IP(fmt.Sprintf("link set %s master %s up mtu 9000", port, bridge))
	p.ns.IP(fmt.Sprintf("link set %s up mtu 9000", link))
	p.ns.IP(fmt.Sprintf("address add %s dev %s", addr, link))
}

// serve starts the server of each pod.
func (w *world) serve() {
	w.t.Helper()
	for _, p := range w.pods {
		var l net.Listener
		if err := p.Enter(func() (err error) { l, err = net.Listen("tcp", p.address); return err }); err != nil {
			w.t.Fatal(err)
		}
		s := &Server{Pod: p.Pod, Key: testKey}
		done := make(chan error)
		go func() { done <- s.Serve(w.t.Context(), l) }()
		w.t.Cleanup(func() {
			if err := <-done; err != nil {
				w.t.Error(err)
			}
		})
	}
}

// test tests the first pod with the second one.
func (w *world) test(cross bool) []report.Answer {
	w.t.Helper()
	answers, err := w.pods[0].Test(w.t.Context(), w.pods[1].address, testKey, Tests{Cross: cross})
	if err != nil {
		w.t.Fatal(err)
	}
	return answers
}

// local tests the first pod alone.
func (w *world) local() []report.Answer {
	w.t.Helper()
	answers, err := w.pods[0].Local(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return answers
}

// problems returns what is not ok, one line each: a problem with its command, if that is not restore.
func problems(answers []report.Answer) string {
	var out []string
	for _, a := range answers {
		line := fmt.Sprintf("%s %s: %s: %s", a.Verdict, a.Check, a.Of, a.Found)
		if a.Verdict == report.Problem && a.Fix != restore {
			line += " (" + strings.ReplaceAll(a.Fix, "\n", "; ") + ")"
		}
		if a.Verdict != report.OK {
			out = append(out, line)
		}
		if a.Verdict == report.Problem && (a.Fix == "" || a.Why == "") {
			out = append(out, "without command or reason: "+a.Check)
		}
	}
	return strings.Join(out, "\n")
}
