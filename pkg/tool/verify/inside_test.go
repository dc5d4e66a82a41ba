// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// TestWhatProgramsInAPodNeed: rail 0 of the pod has a GID, rail 1 has none.
func TestWhatProgramsInAPodNeed(t *testing.T) {
	t.Parallel()
	rails := []Rail{{Number: 0, Link: "net1"}, {Number: 1, Link: "net2"}}
	have := []gids.Rail{{Link: "net1", Addr: netip.MustParseAddr("172.16.10.1"), Index: 5}}
	have[0].Port.Device.Name, have[0].Port.Number = "mlx5_0", 1
	lacking := cnierr.New(cnierr.NoRDMA, "open", "uverbs0", "request the resource", "no such file")
	gid := []string{
		"ok gid rail 0 of a: 172.16.10.1 of net1 has GID index 5 of mlx5_0:1",
		"problem gid rail 1 of a: no RoCE v2 GID has an address of net2 (rocectl doctor gid-table rdma-ports  # on the node)",
	}
	for name, c := range map[string]struct {
		err    error // of the GIDs
		usable func([]gids.Rail) error
		want   []string
	}{
		"in the container":     {nil, func([]gids.Rail) error { return nil }, append(gid[:2:2], "ok container a: it can open the RDMA devices and lock memory")},
		"without the resource": {nil, func([]gids.Rail) error { return lacking }, append(gid[:2:2], "problem container a: open \"uverbs0\": no such file (request the resource)")},
		"on the node":          {nil, nil, append(gid[:2:2], "cannot tell container a: this is not the container")},
		"no GID":               {cnierr.New(cnierr.NoGID, "look for", "GID", "", "none"), nil, []string{"problem gid all rails of a: look for \"GID\": none (rocectl doctor gid-table  # on the node)"}},
		"no answer":            {errors.New("denied"), nil, []string{"cannot tell gid all rails of a: denied"}},
	} {
		p := Pod{Name: "a", Usable: c.usable, RDMA: func(context.Context) ([]gids.Rail, error) { return have, c.err }}
		var got []string
		for _, a := range p.inside(t.Context(), rails) {
			line := fmt.Sprintf("%s %s %s: %s", a.Verdict, a.Check, a.Of, a.Found)
			if a.Fix != "" {
				line += " (" + a.Fix + ")"
			}
			got = append(got, line)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

// TestWhatCannotBeAskedIsNotAnswered: without NET_RAW, no question leaves the pod.
func TestWhatCannotBeAskedIsNotAnswered(t *testing.T) {
	t.Parallel()
	p := Pod{Name: "a", Enter: func(func() error) error { return unix.EPERM }}
	r := Rail{Link: "net1", Addr: netip.MustParseAddr("172.16.10.1"), Gateway: netip.MustParseAddr("172.16.10.254")}
	near, far := net.Pipe()
	defer near.Close()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := couple{Pod: p, r: r, peer: &Peer{Name: "b", wire: newWire(near)}, to: Rail{Addr: netip.MustParseAddr("172.16.10.2"), UDP: 9}, conn: conn}
	c.r.Subnet = netip.MustParsePrefix("172.16.10.0/24")
	c.r.Reaches, c.peer.Rails = []netip.Prefix{c.r.Subnet}, []Rail{c.to}
	source := c.source()
	go func() { // the other pod has got nothing of this couple
		other := netip.AddrPortFrom(r.Addr, source.Port())
		for w := newWire(far); w.Decode(&request{}) == nil; {
			_ = w.Encode(reply{Received: []arrival{{source, 9, smallest + 1}, {source, 8, smallest}, {other, 9, smallest}}})
		}
	}()
	for _, a := range []report.Answer{p.gateway(t.Context(), r), p.duplicate(t.Context(), r), c.lost(t.Context()), p.test(t.Context(), []Rail{c.r}, c.peer, 0, 0, false)[0]} {
		if a.Verdict != report.CannotTell || !strings.Contains(a.Missing, "NET_RAW") {
			t.Errorf("got %+v, want that it cannot tell without NET_RAW", a)
		}
	}
	_, failed := p.Local(t.Context())
	_, tested := p.Test(t.Context(), "127.0.0.1:1", testKey, Tests{})
	for _, err := range []error{failed, tested, (&Server{Pod: p}).Serve(t.Context(), nil)} {
		if cnierr.CodeOf(err) != cnierr.IO || !errors.Is(err, unix.EPERM) {
			t.Errorf("got %v, want code %d and EPERM", err, cnierr.IO)
		}
	}
}

// TestFramesThatCannotBeSentTellNoDirection, and for IPv6 no such frames are sent.
func TestFramesThatCannotBeSentTellNoDirection(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"127.0.0.1": "ARP is not answered, and no frame could be sent that tells which direction fails: operation not permitted",
		"::1":       "neighbor discovery is not answered",
	} {
		own := netip.MustParseAddr(addr)
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(own, 0)))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		c := couple{Pod: Pod{Name: "a", Enter: func(func() error) error { return unix.EPERM }}, r: Rail{Addr: own}, peer: &Peer{Name: "b"}, to: Rail{Addr: own}, conn: conn}
		if got := c.silent(); got.Verdict != report.Problem || got.Found != want {
			t.Errorf("%s: got %s: %s, want %s", addr, got.Verdict, got.Found, want)
		}
	}
}

// TestRailsThatThePlanDoesNotConnectAreNotTested: a rail has no route to each other one, and one pod
// may have fewer.
func TestRailsThatThePlanDoesNotConnectAreNotTested(t *testing.T) {
	t.Parallel()
	rail := func(number int, addr string, reaches ...string) Rail {
		r := Rail{Number: number, Addr: netip.MustParseAddr(addr)}
		for _, p := range reaches {
			r.Reaches = append(r.Reaches, netip.MustParsePrefix(p))
		}
		return r
	}
	own := []Rail{rail(0, "10.0.0.1", "10.0.0.0/24", "10.2.0.0/24"), rail(1, "10.1.0.1", "::/0"), rail(2, "fd00::1", "0.0.0.0/0", "::/0")}
	peer := &Peer{Name: "b", Rails: []Rail{rail(0, "10.9.0.2"), rail(1, "fd01::2"), rail(2, "10.2.0.2"), rail(3, "fd03::2")}}
	got := map[string]string{}
	for i := range 4 {
		for j := range 4 {
			p := Pod{Name: "a", Enter: func(func() error) error { return unix.EPERM }}
			for _, a := range p.test(t.Context(), own, peer, i, j, false) {
				got[a.Of] = fmt.Sprintf("%s %s: %s", a.Verdict, a.Check, a.Found)
			}
		}
	}
	want := map[string]string{
		"rail 0 of a to b":           "cannot tell reach: 10.0.0.1 has no route to 10.9.0.2",
		"rail 0 of a to rail 2 of b": "cannot tell reach: operation not permitted", // tested, as each that the plan connects
		"rail 1 of a to b":           "cannot tell reach: 10.1.0.1 has no route to fd01::2",
		"rail 2 of a to b":           "cannot tell reach: fd00::1 has no route to 10.2.0.2",
		"rail 2 of a to rail 1 of b": "cannot tell reach: operation not permitted",
		"rail 2 of a to rail 3 of b": "cannot tell reach: operation not permitted",
		"rail 3 of a to b":           "problem reach: a has 3 rails and b has 4",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestBothPodsRunThePrograms has shell scripts in place of the programs. That of ib_write_bw fails
// in both pods. Rail 1 has no GID.
func TestBothPodsRunThePrograms(t *testing.T) {
	w := newWorld(t, "a", "b")
	installed(t, map[string]string{
		"rping":       "case $1 in -s) exec sleep 60;; esac",
		"ib_write_bw": `case $* in *172.16.1?.2) exit 1;; esac; echo no memory >&2; exit 1`,
	})
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	for i, p := range w.pods {
		enter := p.Enter
		p.Enter = func(fn func() error) error { // the end of a thread kills what it has started
			done := make(chan error)
			go func() { _ = enter(func() error { done <- fn(); <-end; return nil }) }()
			return <-done
		}
		p.RDMA = func(context.Context) ([]gids.Rail, error) {
			link, v4 := conf.LinkName("net1"), netip.MustParseAddr(fmt.Sprint("172.16.10.", i+1))
			return []gids.Rail{{Link: link, Addr: netip.MustParseAddr("fd00::1"), Index: 1}, {Link: link, Addr: v4, Index: 5}}, nil
		}
	}
	w.serve()
	answers, err := w.pods[0].Test(t.Context(), w.pods[1].address, testKey, Tests{RDMA: true})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range answers {
		if a.Check == Handshake || a.Check == Bandwidth {
			got = append(got, fmt.Sprintf("%s %s: %s%s", a.Verdict, a.Of, a.Found, a.Missing))
		}
	}
	want := []string{
		"ok rail 0 of a to b: rping connects by rdma_cm and transfers",
		"problem rail 0 of a to b: ib_write_bw -d  -i 0 -x 5 -p PORT --size=65536 --iters=500 --report_gbits --CPU-freq 172.16.10.2: exit status 1: ; b says: no memory",
		"cannot tell rail 1 of a to b: not testeda GID for 172.16.11.1 of a: rocectl doctor on its node",
		"cannot tell rail 1 of a to b: not testeda GID for 172.16.11.1 of a: rocectl doctor on its node",
	}
	for i := range got {
		got[i] = regexp.MustCompile(`-p \d+`).ReplaceAllString(got[i], "-p PORT")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
