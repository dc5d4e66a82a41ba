// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// viaDHCP returns an attachment with an address from the real dhcp plugin with its
// daemon, which runs on the node as a service would.
func (w *world) viaDHCP(t *testing.T, p *pod) attachment {
	t.Helper()
	dir, run := upstream(t), t.TempDir()
	socket := filepath.Join(run, "dhcp.sock")
	var log bytes.Buffer
	cmd := exec.Command(filepath.Join(dir, "dhcp"), "daemon", "-broadcast=true", "-socketpath", socket,
		"-pidfile", filepath.Join(run, "dhcp.pid"), "-timeout", "500ms", "-resendtimeout", "2s")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := w.enter(cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the daemon said:\n%s", log.String())
		}
	})
	cnitest.Await(t, "the daemon of dhcp listens", func() bool {
		_, err := os.Stat(socket)
		return err == nil
	})
	return w.from(p, dir, map[string]any{"type": "dhcp", "daemonSocketPath": socket})
}

// subnetOptions are those of rail 0.
func subnetOptions() []dhcpOption {
	return []dhcpOption{{optMask, []byte{255, 255, 255, 0}}, {optRouter, []byte{172, 16, 10, 254}}}
}

func TestDHCPLeasesAndReleasesThroughTheInterface(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	before := p.snapshot(t)
	server := w.dhcp(t, []string{"172.16.10.200", "172.16.10.201"}, subnetOptions()...)
	a := w.viaDHCP(t, p)
	res := a.mustAdd(t)
	if got := addrOfResult(t, res).String(); got != "172.16.10.200" || len(server.leases()) != 1 {
		t.Fatalf("got %s, the server has leased %v", got, server.leases())
	}
	if diff := cmp.Diff([]string{
		"default via 172.16.10.254 dev net1 proto 82 src 172.16.10.200",
		"172.16.10.0/24 dev net1 proto 82 scope link src 172.16.10.200",
	}, p.routes(t, "100")); diff != "" {
		t.Errorf("table 100 (-want +got)\n%s", diff)
	}
	w.leaf.MustRun(t, "ping", "-n", "-q", "-c", "1", "-W", "3", "172.16.10.200")
	if err := a.check(t); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if diff := cmp.Diff(res, a.mustAdd(t)); diff != "" {
		t.Errorf("result (-first +second ADD)\n%s", diff)
	}
	released(t, server, 0)
	a.mustDel(t)
	released(t, server, 1)
	p.unchanged(t, before)
	w.noRecords(t)
	a.mustDel(t)
	if got := addrOfResult(t, a.mustAdd(t)).String(); got != "172.16.10.201" {
		t.Errorf("got %s, want the next address", got)
	}
}

// released waits until the server was given back that many leases.
func released(t *testing.T, s *dhcpServer, want int) {
	t.Helper()
	if want == 0 {
		if n := s.count(dhcpRelease); n > 0 {
			t.Errorf("the server heard %d messages of release, want none", n)
		}
		return
	}
	cnitest.Await(t, fmt.Sprintf("%d leases are given back", want), func() bool {
		return s.count(dhcpRelease) == want && len(s.leases()) == 0
	})
}

func TestFailureOfALaterStepGivesTheAddressBackToTheDHCPServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	before := p.snapshot(t)
	server := w.dhcp(t, []string{"172.16.10.200"}, dhcpOption{optMask, []byte{255, 255, 255, 0}}, dhcpOption{optRouter, []byte{172, 16, 10, 253}})
	a := w.viaDHCP(t, p)
	a.network = a.network.With("probe.gateway.timeout", "5ms")
	for i := range 2 {
		a.mustFail(t, 106)
		released(t, server, i+1)
		p.unchanged(t, before)
		w.noRecords(t)
	}
	// The machine that has the address answers.
	w.leaf.IP(t, "addr add 172.16.10.200/24 dev leaf0")
	a.mustFail(t, 100)
	released(t, server, 3)
	p.unchanged(t, before)
}

func TestDHCPServerThatIsSilentIsAnError(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	before := p.snapshot(t)
	server := w.dhcp(t, nil)
	server.hush()
	a := w.viaDHCP(t, p)
	if err := a.mustFail(t, 999); !strings.Contains(err.Msg, "no more tries") || !strings.Contains(err.Msg, `"dhcp"`) {
		t.Errorf("got %v, want what dhcp says, and its name", err)
	}
	if server.count(dhcpDiscover) == 0 {
		t.Error("the server heard nothing")
	}
	p.unchanged(t, before)
	w.noRecords(t)

	// Without the daemon, DEL fails too. It must not stay so when the
	// configuration is corrected.
	right, nowhere := a, filepath.Join(t.TempDir(), "dhcp.sock")
	a.network = a.network.With("ipam.daemonSocketPath", nowhere)
	for _, err := range []*types.Error{a.mustFail(t, 999), a.del(t)} {
		if err == nil || !strings.Contains(err.Msg, nowhere) {
			t.Errorf("got %v, want it to name the socket of the daemon", err)
		}
	}
	p.unchanged(t, before)
	w.noRecords(t)
	right.mustDel(t)
}

// Clouds give /32 addresses, a gateway that is in no subnet, and classless
// static routes that lead there (RFC 3442).
func TestDHCPWithClasslessRoutesToAGatewayBeyondTheSubnet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.leaf.IP(t, "addr add 169.254.1.1/32 dev leaf0\naddr add 198.51.100.1/32 dev lo")
	p := w.pod(t)
	before := p.snapshot(t)
	w.dhcp(t, []string{"172.16.10.200", "172.16.10.201"}, dhcpOption{optMask, []byte{255, 255, 255, 255}}, dhcpOption{optRouter, []byte{169, 254, 1, 1}},
		dhcpOption{optClassless, []byte{
			32, 169, 254, 1, 1, 0, 0, 0, 0, // 169.254.1.1/32 on the link
			0, 169, 254, 1, 1, // default
			16, 10, 9, 169, 254, 1, 1, // 10.9.0.0/16
		}})
	a := w.viaDHCP(t, p)
	for _, tt := range []struct {
		mode, table string
		want        []string
	}{
		{"policy", "100", []string{
			"default via 169.254.1.1 dev net1 proto 82 src 172.16.10.200 onlink",
			"10.9.0.0/16 via 169.254.1.1 dev net1 proto 82 src 172.16.10.200 onlink",
			"169.254.1.1 dev net1 proto 82 scope link src 172.16.10.200",
		}},
		{"main", "main", []string{
			"default via 169.254.1.1 dev net1 proto 82 metric 500 onlink",
			"10.9.0.0/16 via 169.254.1.1 dev net1 proto 82 metric 500 onlink",
			"169.254.1.1 dev net1 proto 82 scope link metric 500",
			"default via 10.244.1.1 dev eth0",
		}},
	} {
		a.network = a.network.With("routing", tt.mode)
		if tt.mode == "main" {
			a.network = a.network.With("ipam.priority", 500)
		}
		addr := addrOfResult(t, a.mustAdd(t))
		all(t, tt.mode, p.routes(t, tt.table), tt.want)
		if tt.mode == "policy" {
			w.leaf.MustRun(t, "ping", "-n", "-q", "-c", "1", "-W", "3", "-I", "198.51.100.1", addr.String())
		}
		if err := a.check(t); err != nil {
			t.Errorf("%s: CHECK: %v", tt.mode, err)
		}
		a.mustDel(t)
		p.unchanged(t, before)
	}
}

func TestDHCPGetsItsLeaseBackWhenTheNamespaceIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	server := w.dhcp(t, []string{"172.16.10.200"}, subnetOptions()...)
	a := w.viaDHCP(t, p)
	a.mustAdd(t)
	p.Remove(t)
	a.mustDel(t)
	released(t, server, 1) // the daemon is in the namespace still
	w.noRecords(t)
}
