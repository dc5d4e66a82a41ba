// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/ndp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// TestWindowIsExact runs operations over one socket in fake time.
func TestWindowIsExact(t *testing.T) {
	t.Parallel()
	net1 := port{link: "net1"}
	probe := func(mac conf.MAC) []byte {
		return arp{op: arpRequest, senderMAC: mac, sender: unset4, target: ours4}.frame([]byte("no-one"))
	}
	for name, c := range map[string]struct {
		op     plan.Op
		script func(*memConn, int, []byte) error
		code   cnierr.Code // 0: no error
		took   time.Duration
		sent   []time.Duration
	}{
		"conflict, silence": {
			op: plan.Op{Kind: conflictOp(target("net1"))}, took: 16 * ms, sent: []time.Duration{0, 4 * ms, 8 * ms},
		},
		"conflict, answered at once": {
			op: plan.Op{Kind: conflictOp(target("net1"))}, script: onNth(1, func(c *memConn) { c.hear(reply4()) }),
			code: cnierr.AddressTaken, took: 0, sent: []time.Duration{0},
		},
		"conflict, only the last probe arrives": {
			op: plan.Op{Kind: conflictOp(target("net1"))}, script: onNth(3, func(c *memConn) { c.after(7*ms, reply4()) }),
			code: cnierr.AddressTaken, took: 15 * ms, sent: []time.Duration{0, 4 * ms, 8 * ms},
		},
		"conflict, answered too late": {
			op: plan.Op{Kind: conflictOp(target("net1"))}, script: onNth(3, func(c *memConn) { c.after(9*ms, reply4()) }),
			took: 16 * ms, sent: []time.Duration{0, 4 * ms, 8 * ms},
		},
		"conflict, answered in time and read too late": {
			op: plan.Op{Kind: conflictOp(target("net1"))}, script: onNth(3, func(c *memConn) { c.queued <- result{frame: reply4()} }),
			code: cnierr.AddressTaken, took: 16 * ms, sent: []time.Duration{0, 4 * ms, 8 * ms},
		},
		"conflict, a rival": {
			op: plan.Op{Kind: conflictOp(target("net1"))}, script: onNth(1, func(c *memConn) { c.after(5*ms, probe(otherMAC)) }),
			code: cnierr.AddressTaken, took: 5 * ms, sent: []time.Duration{0, 4 * ms},
		},
		"conflict, a rival with our MAC": {
			op: plan.Op{Kind: conflictOp(target("net1"))}, script: onNth(1, func(c *memConn) { c.hear(probe(ourMAC)) }),
			code: cnierr.AddressTaken, took: 0, sent: []time.Duration{0},
		},
		"conflict, our own frames come back": {
			op:     plan.Op{Kind: conflictOp(target("net1"))},
			script: func(c *memConn, _ int, b []byte) error { c.hear(append(bytes.Clone(b), 0, 0)); return nil },
			took:   16 * ms, sent: []time.Duration{0, 4 * ms, 8 * ms},
		},
		"conflict, other addresses talk": {
			op: plan.Op{Kind: conflictOp(target("net1"))}, script: func(c *memConn, _ int, _ []byte) error { c.hear(gatewayReply4()); return nil },
			took: 16 * ms, sent: []time.Duration{0, 4 * ms, 8 * ms},
		},
		"conflict, interrupted": {
			op: plan.Op{Kind: conflictOp(target("net1"))},
			script: func(c *memConn, n int, _ []byte) error {
				c.in <- result{err: &net.OpError{Op: "read", Err: os.NewSyscallError("recvfrom", unix.EINTR)}}
				c.in <- result{err: unix.EAGAIN}
				if n == 1 || n == 3 {
					return os.NewSyscallError("sendto", unix.EINTR)
				}
				if n == 5 {
					c.after(7*ms, reply4())
				}
				return nil
			},
			code: cnierr.AddressTaken, took: 15 * ms, sent: []time.Duration{0, 0, 4 * ms, 4 * ms, 8 * ms},
		},
		"conflict, one frame does not fit into the queue": {
			op: plan.Op{Kind: conflictOp(target("net1"))}, script: failNth(1, unix.ENOBUFS),
			took: 16 * ms, sent: []time.Duration{0, 4 * ms, 8 * ms},
		},
		"conflict, no frame fits into the queue": {
			op: plan.Op{Kind: conflictOp(target("net1"))}, script: func(*memConn, int, []byte) error { return unix.ENOBUFS },
			code: cnierr.IO, took: 16 * ms, sent: []time.Duration{0, 4 * ms, 8 * ms},
		},
		"conflict, a rival, and no frame fits into the queue": {
			op:     plan.Op{Kind: conflictOp(target("net1"))},
			script: func(c *memConn, _ int, _ []byte) error { c.hear(probe(otherMAC)); return unix.ENOBUFS },
			code:   cnierr.AddressTaken, took: 0, sent: []time.Duration{0},
		},
		"conflict, it takes time to send": {
			op: plan.Op{Kind: conflictOp(target("net1"))}, script: func(*memConn, int, []byte) error { time.Sleep(ms); return nil },
			took: 17 * ms, sent: []time.Duration{0, 4 * ms, 8 * ms},
		},
		"conflict, the link goes down": {
			op: plan.Op{Kind: conflictOp(target("net1"))}, script: onNth(2, func(c *memConn) { c.in <- result{err: unix.ENETDOWN} }),
			code: cnierr.IO, took: 4 * ms, sent: []time.Duration{0, 4 * ms},
		},
		"conflict, the link goes": {
			op: plan.Op{Kind: conflictOp(target("net1"))}, script: failNth(2, unix.ENXIO),
			code: cnierr.IO, took: 4 * ms, sent: []time.Duration{0, 4 * ms},
		},
		"gateway, silence": {
			op: plan.Op{Kind: gatewayOp(target("net1"))}, code: cnierr.GatewaySilent, took: 300 * ms, sent: []time.Duration{0, 100 * ms, 200 * ms},
		},
		"gateway, answers at once": {
			op: plan.Op{Kind: gatewayOp(target("net1"))}, script: onNth(1, func(c *memConn) { c.hear(gatewayReply4()) }), sent: []time.Duration{0},
		},
		"gateway, answers only the third request": {
			op: plan.Op{Kind: gatewayOp(target("net1"))}, script: onNth(3, func(c *memConn) { c.after(99*ms, gatewayReply4()) }),
			took: 299 * ms, sent: []time.Duration{0, 100 * ms, 200 * ms},
		},
		"gateway, answers late": {
			op: plan.Op{Kind: gatewayOp(target("net1"))}, script: onNth(1, func(c *memConn) { c.after(150*ms, gatewayReply4()) }),
			took: 150 * ms, sent: []time.Duration{0, 100 * ms},
		},
		"gateway, another host wants its address": {
			op: plan.Op{Kind: gatewayOp(target("net1"))},
			script: onNth(1, func(c *memConn) {
				c.hear(arp{op: arpRequest, senderMAC: otherMAC, sender: unset4, target: gateway4}.frame(nil))
			}),
			code: cnierr.GatewaySilent, took: 300 * ms, sent: []time.Duration{0, 100 * ms, 200 * ms},
		},
		"gateway, interrupted": {
			op: plan.Op{Kind: gatewayOp(target("net1"))},
			script: func(c *memConn, n int, _ []byte) error {
				c.in <- result{err: unix.EINTR}
				if n == 4 {
					c.hear(gatewayReply4())
				}
				if n == 1 {
					return unix.EINTR
				}
				return nil
			},
			took: 200 * ms, sent: []time.Duration{0, 0, 100 * ms, 200 * ms},
		},
		"announcement": {
			op: plan.Op{Kind: plan.Announce{Targets: []plan.Target{target("net1")}}}, sent: []time.Duration{0},
		},
		"announcement that does not fit into the queue": {
			op: plan.Op{Kind: plan.Announce{Targets: []plan.Target{target("net1")}}}, script: failNth(1, unix.ENOBUFS),
			code: cnierr.IO, sent: []time.Duration{0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				conn := newMemConn(c.script)
				p, _ := memProber(map[port]*memConn{net1: conn})
				err := p.Do(t.Context(), c.op)
				took := time.Since(conn.start)
				p.Close()
				if (err == nil) != (c.code == 0) || err != nil && cnierr.CodeOf(err) != c.code {
					t.Errorf("error %v, want code %d", err, c.code)
				}
				var e *cnierr.Error
				if ourMACs := strings.HasSuffix(name, "with our MAC"); errors.As(err, &e) && ourMACs != strings.Contains(e.Hint, "equal MACs") {
					t.Errorf("hint %q, want it to say that the MACs are equal: %v", e.Hint, ourMACs)
				}
				if took != c.took {
					t.Errorf("took %s, want %s", took, c.took)
				}
				if diff := cmp.Diff(c.sent, conn.sent); diff != "" {
					t.Errorf("sent at (-want +got):\n%s", diff)
				}
				if !conn.closed {
					t.Error("socket left open")
				}
			})
		})
	}
}

// TestOnlyAnAnswerToUsProvesAGateway: what a gateway sends of itself shows that its
// frames arrive here, and not that ours arrive there. Each of these frames is a conflict,
// if it is about an address that we probe.
func TestOnlyAnAnswerToUsProvesAGateway(t *testing.T) {
	t.Parallel()
	far4, far6 := netip.MustParseAddr("172.16.11.7"), netip.MustParseAddr("fd00:11::7")
	toUs := func(a arp) []byte {
		return ether{dst: ourMAC, src: otherMAC, proto: unix.ETH_P_ARP, payload: a.marshal()}.marshal()
	}
	from := func(op uint16, target netip.Addr) arp {
		return arp{op: op, senderMAC: otherMAC, sender: gateway4, targetMAC: ourMAC, target: target}
	}
	na := &ndp.NeighborAdvertisement{TargetAddress: gateway6}
	solicited := &ndp.NeighborAdvertisement{Solicited: true, TargetAddress: gateway6}
	for name, c := range map[string]struct {
		frame  []byte
		answer bool
	}{
		"reply":                                 {toUs(from(arpReply, ours4)), true},
		"reply to all hosts":                    {from(arpReply, ours4).frame(nil), true},
		"reply to us that names another":        {toUs(from(arpReply, far4)), true},
		"reply to another host, sent to all":    {from(arpReply, far4).frame(nil), false},
		"announcement as a reply":               {from(arpReply, gateway4).frame(nil), false},
		"announcement as a request":             {from(arpRequest, gateway4).frame(nil), false},
		"request for us":                        {from(arpRequest, ours4).frame(nil), false},
		"request for us alone":                  {toUs(from(arpRequest, ours4)), false},
		"request for another host":              {from(arpRequest, far4).frame(nil), false},
		"advertisement to us":                   {frameOf(t, neighbour{gateway6, ours6, solicited}), true},
		"advertisement to us, not as solicited": {frameOf(t, neighbour{gateway6, ours6, na}), true},
		"advertisement to another host":         {frameOf(t, neighbour{gateway6, far6, solicited}), false},
		"advertisement to all nodes":            {frameOf(t, neighbour{gateway6, netip.IPv6LinkLocalAllNodes(), na}), false},
		"solicitation of us":                    {frameOf(t, neighbour{gateway6, solicitedNode(ours6), &ndp.NeighborSolicitation{TargetAddress: ours6}}), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e, _ := parseEther(c.frame)
				asked, six := target("net1"), e.proto == unix.ETH_P_IPV6
				if six {
					asked = target6("net1")
				}
				do := func(op plan.Kind) error {
					p, _ := memProber(map[port]*memConn{{link: "net1", v6: six}: newMemConn(onNth(1, func(m *memConn) { m.hear(c.frame) }))})
					defer p.Close()
					return p.Do(t.Context(), plan.Op{Kind: op})
				}
				if err := do(gatewayOp(asked)); (err == nil) != c.answer || err != nil && cnierr.CodeOf(err) != cnierr.GatewaySilent {
					t.Errorf("gateway probe: got %v, want an answer: %v", err, c.answer)
				}
				if said := "but " + otherMAC.String() + " sent another frame for it ("; !c.answer && !strings.Contains(fmt.Sprint(do(gatewayOp(asked))), said) {
					t.Errorf("the error does not say %q", said)
				}
				asked.Addr = asked.Gateway
				if err := do(conflictOp(asked)); cnierr.CodeOf(err) != cnierr.AddressTaken {
					t.Errorf("conflict probe: got %v, want a conflict", err)
				}
			})
		})
	}
}

func TestFamiliesAndLinksShareOneWindowAndDecideAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		four1 := newMemConn(onNth(1, func(c *memConn) { c.after(ms, reply4()) }))
		four2, six1 := newMemConn(nil), newMemConn(failNth(1, unix.ENOBUFS)) // the others are asked at the same time
		six2 := newMemConn(onNth(3, func(c *memConn) {
			c.after(ms, frameOf(t, neighbour{ours6, solicitedNode(ours6), &ndp.NeighborAdvertisement{TargetAddress: ours6}}))
		}))
		p, _ := memProber(map[port]*memConn{
			{link: "net1"}: four1, {link: "net2"}: four2, {link: "net1", v6: true}: six1, {link: "net2", v6: true}: six2,
		})
		start := time.Now()
		err := p.Do(t.Context(), plan.Op{Kind: conflictOp(target("net1"), target6("net1"), target("net2"), target6("net2"))})
		if took := time.Since(start); took != 16*ms {
			t.Errorf("took %s, want 16ms", took)
		}
		p.Close()
		for i, want := range []int{1, 3, 3, 3} {
			c := []*memConn{four1, six1, four2, six2}[i]
			if len(c.sent) != want || !c.closed {
				t.Errorf("socket %d: %d frames, closed %v, want %d and true", i, len(c.sent), c.closed, want)
			}
		}
		var taken *TakenError
		if !errors.As(err, &taken) {
			t.Fatalf("got %v, want a TakenError", err)
		}
		want := []Taken{
			{Target: target("net1"), By: otherMAC, What: "ARP reply"},
			{Target: target6("net2"), By: otherMAC, What: "neighbour advertisement"},
		}
		if diff := cmp.Diff(want, taken.Taken, cmp.Comparer(func(a, b plan.Target) bool { return a == b })); diff != "" {
			t.Errorf("taken (-want +got):\n%s", diff)
		}
		const text = `claim address "172.16.11.5, fd00:11::a:5": ` +
			`172.16.11.5 is used on net1 by 02:00:00:00:00:02 (ARP reply); ` +
			`fd00:11::a:5 is used on net2 by 02:00:00:00:00:02 (neighbour advertisement)`
		if err.Error() != text {
			t.Errorf("got  %s\nwant %s", err, text)
		}
	})
}

// TestAFrameOfOursOnAnotherLinkIsAConflict has a second link with another MAC, and a rival there that has this MAC.
func TestAFrameOfOursOnAnotherLinkIsAConflict(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := target("net1"), target("net2")
		second.MAC = thirdMAC
		one := newMemConn(nil)
		two := newMemConn(func(c *memConn, _ int, frame []byte) error {
			one.hear(frame)
			c.hear(arp{op: arpRequest, senderMAC: thirdMAC, sender: unset4, target: ours4}.frame([]byte("no-one")))
			return nil
		})
		p, _ := memProber(map[port]*memConn{{link: "net1"}: one, {link: "net2"}: two})
		err := p.Do(t.Context(), plan.Op{Kind: conflictOp(first, second)})
		wantTaken(t, err, Taken{first, thirdMAC, "ARP probe"}, Taken{second, thirdMAC, "ARP probe"})
		if e, is := errors.AsType[*cnierr.Error](err); !is || !strings.Contains(e.Hint, "with our MAC "+thirdMAC.String()) {
			t.Errorf("got %+v, want a hint that names the MAC of the second link", e)
		}
	})
}

func TestWindowEndsWhenAllTargetsAreDecided(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		one := newMemConn(onNth(1, func(c *memConn) { c.after(ms, reply4()) }))
		two := newMemConn(onNth(2, func(c *memConn) { c.after(2*ms, reply4()) }))
		p, _ := memProber(map[port]*memConn{{link: "net1"}: one, {link: "net2"}: two})
		start := time.Now()
		if err := p.Do(t.Context(), plan.Op{Kind: conflictOp(target("net1"), target("net2"))}); cnierr.CodeOf(err) != cnierr.AddressTaken {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took != 6*ms {
			t.Errorf("took %s, want 6ms", took)
		}
	})
}

func TestCancelEndsTheWindowAtOnce(t *testing.T) {
	t.Parallel()
	for name, op := range map[string]plan.Op{
		"conflict": {Kind: conflictOp(target("net1"))},
		"gateway":  {Kind: gatewayOp(target("net1"))},
		"warn":     {Kind: plan.Gateway{Mode: conf.Warn, Attempts: 3, Timeout: 100 * ms, Targets: []plan.Target{target("net1")}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*ms)
				defer cancel()
				conn := newMemConn(nil)
				p, _ := memProber(map[port]*memConn{{link: "net1"}: conn})
				err := p.Do(ctx, op)
				if !errors.Is(err, context.DeadlineExceeded) || cnierr.CodeOf(err) != cnierr.TryAgain {
					t.Errorf("got %v, want TryAgain with the context's error", err)
				}
				took := time.Since(conn.start)
				p.Close()
				if took != 5*ms || !conn.closed {
					t.Errorf("took %s, closed %v, want 5ms and true", took, conn.closed)
				}
			})
		})
	}
}

func TestCancelEndsASendThatIsInterruptedAgainAndAgain(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	p, _ := memProber(map[port]*memConn{{link: "net1"}: newMemConn(func(*memConn, int, []byte) error { cancel(); return unix.EINTR })})
	if err := p.Do(ctx, plan.Op{Kind: conflictOp(target("net1"))}); !errors.Is(err, context.Canceled) || cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("got %v, want TryAgain with the context's error", err)
	}
}

func TestCancelBeforeTheFirstFrameSendsNone(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	conn := newMemConn(nil)
	p, _ := memProber(map[port]*memConn{{link: "net1"}: conn})
	for _, op := range plan.InPod(conflictOp(target("net1")), gatewayOp(target("net1")), plan.Announce{Targets: []plan.Target{target("net1")}}) {
		if err := p.Do(ctx, op); !errors.Is(err, context.Canceled) || len(conn.sent) > 0 {
			t.Errorf("%T: got %v and %d frames, want the context's error and none", op, err, len(conn.sent))
		}
	}
}

func TestAnswersCountOnlyOnTheirOwnLink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		other := newMemConn(func(c *memConn, _ int, _ []byte) error { c.hear(gatewayReply4()); return nil })
		p, _ := memProber(map[port]*memConn{{link: "net1"}: newMemConn(nil), {link: "net2"}: other})
		err := p.Do(t.Context(), plan.Op{Kind: gatewayOp(target("net1"), target("net2"))})
		if err == nil || !strings.Contains(err.Error(), "net1") || strings.Contains(err.Error(), "net2") {
			t.Errorf("got %v, want the gateway silent on net1 alone", err)
		}
	})
}

func TestEachFrameThatIsQueuedAtTheDeadlineIsRead(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	conn, err := net.ListenPacket("unixgram", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	peer, err := net.Dial("unixgram", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	out := make(chan heard, 9)
	if err := conn.SetReadDeadline(time.Unix(0, 1)); err != nil { // as endReading does
		t.Fatal(err)
	}
	for _, frame := range [][]byte{reply4(), []byte("no claim"), gatewayReply4()} {
		if _, err := peer.Write(frame); err != nil {
			t.Fatal(err)
		}
	}
	readPort(port{link: "net1"}, conn, out)
	close(out)
	var got []netip.Addr
	for h := range out {
		got = append(got, h.claim.addr)
	}
	if !slices.Equal(got, []netip.Addr{ours4, gateway4}) {
		t.Errorf("got claims of %v", got)
	}
}
