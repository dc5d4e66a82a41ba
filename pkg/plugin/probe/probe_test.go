// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

func TestSilentGatewaysAreAllNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answers := newMemConn(onNth(2, func(c *memConn) { c.hear(gatewayReply4()) }))
		none := plan.Target{Link: "net3", MAC: ourMAC, Addr: ours4}
		p, _ := memProber(map[port]*memConn{
			{link: "net1"}: newMemConn(nil), {link: "net1", v6: true}: newMemConn(nil), {link: "net2"}: answers,
		})
		err := p.Do(t.Context(), plan.Op{Kind: gatewayOp(target("net2"), target("net1"), target6("net1"), none)})
		const text = `ask gateway "172.16.11.254, fd00:11::fe": ` +
			`172.16.11.254 answered none of 3 ARP requests from 172.16.11.5 on net1; ` +
			`fd00:11::fe answered none of 3 neighbour solicitations from fd00:11::a:5 on net1`
		if err == nil || err.Error() != text {
			t.Errorf("got  %v\nwant %s", err, text)
		}
		var e *cnierr.Error
		const commands = `run "arping -I net1 -s 172.16.11.5 172.16.11.254; ndisc6 -s fd00:11::a:5 fd00:11::fe net1" in the pod's namespace`
		if !errors.As(err, &e) || e.Code != cnierr.GatewaySilent || !strings.Contains(e.Hint, commands) {
			t.Errorf("got %+v, want GatewaySilent with the command in its hint", e)
		}
	})
}

func TestSeverityTurnsFailuresIntoWarnings(t *testing.T) {
	t.Parallel()
	taken := func() *memConn { return newMemConn(onNth(1, func(c *memConn) { c.hear(reply4()) })) }
	broken := func() *memConn { return newMemConn(failNth(1, unix.ENETDOWN)) }
	for name, c := range map[string]struct {
		op    plan.Op
		conn  func() *memConn
		fails bool
		logs  string
		sends bool
	}{
		"conflict, require": {plan.Op{Kind: conflictOp(target("net1"))}, taken, true, "", true},
		"conflict, warn":    {plan.Op{Kind: withMode(conflictOp(target("net1")), conf.Warn)}, taken, false, "used on net1 by 02:00:00:00:00:02", true},
		"conflict, off":     {plan.Op{Kind: withMode(conflictOp(target("net1")), conf.Off)}, taken, false, "", false},
		"link down, warn":   {plan.Op{Kind: withMode(conflictOp(target("net1")), conf.Warn)}, broken, false, "the interface is down", true},
		"gateway, warn":     {plan.Op{Kind: plan.Gateway{Mode: conf.Warn, Attempts: 1, Targets: []plan.Target{target("net1")}}}, taken, false, "answered none of 1 ARP requests", true},
		"gateway, off":      {plan.Op{Kind: plan.Gateway{Mode: conf.Off, Attempts: 1, Targets: []plan.Target{target("net1")}}}, taken, false, "", false},
		"no probes, warn":   {plan.Op{Kind: plan.Conflict{Mode: conf.Warn, Targets: []plan.Target{target("net1")}}}, taken, true, "", false},
		"no targets":        {plan.Op{Kind: conflictOp()}, taken, false, "", false},
		"no gateways":       {plan.Op{Kind: gatewayOp(plan.Target{Link: "net1", MAC: ourMAC, Addr: ours4})}, taken, false, "", false},
		"no announcements":  {plan.Op{Kind: plan.Announce{}}, taken, false, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				conn := c.conn()
				p, log := memProber(map[port]*memConn{{link: "net1"}: conn})
				if err := p.Do(t.Context(), c.op); (err != nil) != c.fails {
					t.Errorf("got %v, want an error: %v", err, c.fails)
				}
				if (c.logs == "") != (log.Len() == 0) || !strings.Contains(log.String(), c.logs) {
					t.Errorf("log %q, want %q in it", log, c.logs)
				}
				if c.logs != "" && !strings.Contains(log.String(), "level=WARN") {
					t.Errorf("log %q, want a warning", log)
				}
				if (len(conn.sent) > 0) != c.sends {
					t.Errorf("sent %d frames, want some: %v", len(conn.sent), c.sends)
				}
			})
		})
	}
}

func withMode(c plan.Conflict, m conf.Severity) plan.Conflict {
	c.Mode = m
	return c
}

func TestOperationsThatAreNotOursAreABug(t *testing.T) {
	t.Parallel()
	p, _ := memProber(nil)
	calls := map[string]func(context.Context, plan.Op) error{"do": p.Do, "undo": p.Undo, "check": p.Check}
	for name, call := range calls {
		if err := call(t.Context(), plan.Op{Kind: plan.Up{Link: "net1"}}); cnierr.CodeOf(err) != cnierr.Bug || !strings.Contains(err.Error(), "plan.Up") {
			t.Errorf("%s: got %v, want a bug that names the operation", name, err)
		}
		if name == "do" {
			continue
		}
		for _, op := range plan.InPod(conflictOp(target("net1")), gatewayOp(target("net1")), plan.Announce{Targets: []plan.Target{target("net1")}}) {
			if err := call(t.Context(), op); err != nil {
				t.Errorf("%s %T: %v", name, op, err)
			}
		}
	}
}

// TestEachPlaceHasItsOwnSockets also says which namespace they are opened in.
func TestEachPlaceHasItsOwnSockets(t *testing.T) {
	t.Parallel()
	refuse := func(err error) func(func() error) error { return func(func() error) error { return err } }
	p := &Prober{Enter: refuse(unix.EPERM), EnterHost: refuse(unix.EIO)}
	op := plan.Announce{Targets: []plan.Target{target("net1")}}
	for at, want := range map[plan.Place]error{plan.Pod: unix.EPERM, plan.Host: unix.EIO} {
		if err := p.Do(t.Context(), plan.Op{Place: at, Kind: op}); cnierr.CodeOf(err) != cnierr.IO || !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", at, err, want)
		}
	}
	p, _ = memProber(nil)
	var conns []*memConn
	p.listen = func(w *wire, asks []*ask) error {
		if len(w.conns) == 0 {
			conns = append(conns, newMemConn(nil))
			w.conns[asks[0].port()] = conns[len(conns)-1]
		}
		return nil
	}
	for _, at := range []plan.Place{plan.Pod, plan.Host, plan.Pod} {
		if err := p.Do(t.Context(), plan.Op{Place: at, Kind: op}); err != nil {
			t.Fatal(err)
		}
	}
	if len(conns) != 2 || len(conns[0].sent) != 2 || len(conns[1].sent) != 1 {
		t.Fatalf("got %d sockets, want one that sends twice, and one that sends once", len(conns))
	}
	if p.Close(); !conns[0].closed || !conns[1].closed || p.wires != [2]*wire{} {
		t.Error("a socket is open")
	}
}

// TestSocketsServeOtherQuestionsButThoseThatNeedAGroup: each address has a group of its own.
func TestSocketsServeOtherQuestionsButThoseThatNeedAGroup(t *testing.T) {
	t.Parallel()
	w := newWire(nil)
	for _, v6 := range []bool{false, true} {
		w.conns[port{link: "net1", v6: v6}] = newMemConn(nil)
	}
	conflict := func(t plan.Target) (*ask, error) { return conflictAsk(t, []byte("markup")) }
	four, six, other := target("net1"), target6("net1"), target("net2")
	for name, c := range map[string]struct {
		with    func(plan.Target) (*ask, error)
		targets []plan.Target
		want    bool
	}{
		"both families":            {gatewayAsk, []plan.Target{four, six}, true},
		"a conflict of IPv4":       {conflict, []plan.Target{four}, true},
		"a conflict of IPv6":       {conflict, []plan.Target{four, six}, false},
		"another link":             {gatewayAsk, []plan.Target{four, other}, false},
		"another link's neighbour": {announcement, []plan.Target{other, four}, false},
	} {
		asks, err := asksFor(c.targets, c.with)
		if got := w.serves(asks); got != c.want || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestErrnosOfASocketAreSaid(t *testing.T) {
	t.Parallel()
	const show = "run ip -d link show dev net1 in the pod's namespace"
	for err, want := range map[unix.Errno][2]string{
		unix.ENODEV:       {"the interface is gone: no such device", show},
		unix.ENXIO:        {"the interface is gone: no such device or address", show},
		unix.ENETDOWN:     {"the interface is down: network is down", show},
		unix.ENOBUFS:      {"no frame was sent: no buffer space available", show},
		unix.EPERM:        {"operation not permitted", "run the plugin as root, or give it CAP_NET_RAW"},
		unix.EAFNOSUPPORT: {"address family not supported by protocol", `load the kernel module af_packet, or set probe.conflict and probe.gateway to "off"`},
		unix.EIO:          {"input/output error", show},
	} {
		var got *cnierr.Error
		if is := linkError("net1", err); !errors.As(is, &got) || !errors.Is(is, err) || got.Code != cnierr.IO || is.Error() != `send probes on "net1": `+want[0] || got.Hint != want[1] {
			t.Errorf("%d: got %+v, want %q", err, got, want)
		}
	}
}

func TestFailureToEnterIsReported(t *testing.T) {
	t.Parallel()
	p := &Prober{Enter: func(func() error) error { return unix.EPERM }, Rand: bytes.NewReader(make([]byte, 6))}
	err := p.Do(t.Context(), plan.Op{Kind: conflictOp(target("net1"))})
	if cnierr.CodeOf(err) != cnierr.IO || !errors.Is(err, unix.EPERM) {
		t.Errorf("got %v, want the cause with code IO", err)
	}
	p.Rand = iotest.ErrReader(unix.EIO)
	if err := p.Do(t.Context(), plan.Op{Kind: conflictOp(target("net1"))}); cnierr.CodeOf(err) != cnierr.IO || !errors.Is(err, unix.EIO) {
		t.Errorf("without a mark: got %v, want the cause with code IO", err)
	}
}
