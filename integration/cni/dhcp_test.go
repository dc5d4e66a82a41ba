// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

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
	must(t, w.enter(cmd.Start))
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

func TestDHCPLeasesAndReleasesThroughTheInterface(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	before := p.snapshot(t)
	server := w.dhcp(t, "172.16.10.200", "172.16.10.201")
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
	a.mustCheck(t)
	if diff := cmp.Diff(res, a.mustAdd(t)); diff != "" {
		t.Errorf("result (-first +second ADD)\n%s", diff)
	}
	if n := server.count(dhcpRelease); n > 0 {
		t.Errorf("the server heard %d messages of release, want none", n)
	}
	a.mustDel(t)
	cnitest.Await(t, "the lease is given back", func() bool { return server.count(dhcpRelease) == 1 && len(server.leases()) == 0 })
	p.unchanged(t, before)
	w.noRecords(t)
	a.mustDel(t)
	if got := addrOfResult(t, a.mustAdd(t)).String(); got != "172.16.10.201" {
		t.Errorf("got %s, want the next address", got)
	}
}
