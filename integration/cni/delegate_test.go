// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/flock/flocktest"
)

// foreignIPAM is an IPAM plugin of another project. As host-local does, it refuses a
// second address for an interface that has one, and as dhcp does, it needs the
// interface, and looks at it before it releases.
const foreignIPAM = `#!/bin/sh
cd "${0%/*}"
cat >stdin
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $CNI_ARGS" >>calls
lease=lease-$CNI_CONTAINERID-$CNI_IFNAME
case $CNI_COMMAND in
ADD)
	if [ -e refuse ] || [ -e "$lease" ] || ! nsenter --net="$CNI_NETNS" ip link show dev "$CNI_IFNAME" >/dev/null; then
		echo '{"cniVersion": "1.0.0", "code": 11, "msg": "not now", "details": "ask again"}'
		exit 1
	fi
	: >"$lease"
	echo '{"cniVersion": "1.0.0", "ips": [{"address": "172.16.10.90/24", "gateway": "172.16.10.254"}, {"address": "fd00:10::90/64"}],
		"routes": [{"dst": "10.1.0.0/16"}, {"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["10.96.0.10"]}}' ;;
DEL)
	nsenter --net="$CNI_NETNS" ip -oneline -batch - >seen 2>&1 <<-.
		link show dev $CNI_IFNAME
		addr show dev $CNI_IFNAME
		rule show
	.
	rm -f "$lease" ;;
esac
`

// delegated returns an attachment with addresses from foreignIPAM, and the folder of
// that plugin.
func (w *world) delegated(t *testing.T, p *pod) (a attachment, dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "foreign"), []byte(foreignIPAM), 0o700); err != nil {
		t.Fatal(err)
	}
	a = w.attach(w.rail(0).With("ipam", map[string]any{"type": "foreign", "its": "own keys"}), p, "net1")
	a.path = append(a.path, dir)
	return a, dir
}

// verbs returns the verbs with which a plugin was called.
func verbs(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		verb, _, _ := strings.Cut(line, " ")
		out = append(out, verb)
	}
	return strings.Join(out, " ")
}

// leftBehind returns the leases that a plugin still has.
func leftBehind(t *testing.T, dir string) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, "lease-*"))
	if err != nil {
		t.Fatal(err)
	}
	return left
}

func TestAddressesMayComeFromAnotherIPAMPlugin(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	before := p.snapshot(t)
	a, dir := w.delegated(t, p)
	res := a.mustAdd(t)
	want := []netip.Addr{netip.MustParseAddr("172.16.10.90"), netip.MustParseAddr("fd00:10::90")}
	if diff := cmp.Diff(want, addrs(res), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("addresses (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"10.96.0.10"}, res.DNS.Nameservers); diff != "" {
		t.Errorf("nameservers (-want +got)\n%s", diff)
	}
	if got := p.routes(t, "100"); len(got) != 4 {
		t.Errorf("table 100 has %q, want both subnets, the default route and the route of the plugin", got)
	}
	w.leaf.MustRun(t, "ping", "-n", "-q", "-c", "1", "-w", "10", "172.16.10.90")
	if stdin, err := os.ReadFile(filepath.Join(dir, "stdin")); err != nil || !strings.Contains(string(stdin), `"own keys"`) {
		t.Errorf("the plugin was given %s, %v, want the configuration with its own keys", stdin, err)
	}
	if err := a.check(t); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if diff := cmp.Diff(res, a.mustAdd(t)); diff != "" {
		t.Errorf("result (-first +second ADD)\n%s", diff)
	}

	// What is deleted is what was added, whatever the configuration says now.
	a.network = a.network.With("ipam", map[string]any{"type": "none-such"})
	a.mustDel(t)
	p.unchanged(t, before)
	if got := leftBehind(t, dir); len(got) > 0 {
		t.Errorf("the plugin still has %q", got)
	}
	w.noRecords(t)
	a.mustDel(t)
}

func TestRefusalOfAnotherIPAMPluginLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	before := p.snapshot(t)
	a, dir := w.delegated(t, p)
	if err := os.WriteFile(filepath.Join(dir, "refuse"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := a.mustFail(t, 11)
	if !strings.Contains(err.Msg, "not now") || !strings.Contains(err.Details, "ask again") || !strings.Contains(err.Msg, `"foreign"`) {
		t.Errorf("got %v, want what the plugin said, and its name", err)
	}
	p.unchanged(t, before)
	w.noRecords(t)
	if got := verbs(t, dir); got != "ADD DEL" {
		t.Errorf("the plugin was called with %q, want ADD and, as the specification says, DEL", got)
	}
	if err := os.Remove(filepath.Join(dir, "calls")); err != nil {
		t.Fatal(err)
	}
	for name, says := range map[string]string{
		"none-such":  dir, // and the other folders of CNI_PATH
		"../foreign": "is not the name of a plugin",
		"..":         dir,
		"roce":       "is not an IPAM plugin",
	} {
		a.network = a.network.With("ipam.type", name)
		if err := a.mustFail(t, 7); !strings.Contains(err.Msg, fmt.Sprintf("%q", name)) || !strings.Contains(err.Msg, says) {
			t.Errorf("got %v, want it to name %q and to say %q", err, name, says)
		}
		a.mustDel(t)
	}
	p.unchanged(t, before)
	w.noRecords(t)
	if got := verbs(t, dir); got != "" {
		t.Errorf("the plugin was called with %q, want no call", got)
	}
}

// dhcp gives its lease back through the interface, and an address that is given
// back may be another pod's at once.
func TestIPAMPluginIsCalledWhileTheInterfaceStandsWithoutTheAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	a, dir := w.delegated(t, p)
	for name, c := range map[string]network{
		"DEL":        a.network,
		"failed ADD": a.network.With("probe.gateway.timeout", "5ms"),
	} {
		a.network = c
		if name == "DEL" {
			a.mustAdd(t)
			a.mustDel(t)
		} else {
			w.leaf.IP(t, "addr del 172.16.10.254/24 dev leaf0")
			a.mustFail(t, 106)
			w.leaf.IP(t, "addr add 172.16.10.254/24 dev leaf0")
		}
		b, err := os.ReadFile(filepath.Join(dir, "seen"))
		if err != nil {
			t.Fatal(err)
		}
		if seen := string(b); !strings.Contains(seen, "net1") || !strings.Contains(seen, ",UP") || strings.Contains(seen, "172.16.10.90") {
			t.Errorf("%s: the plugin saw %s, want net1, up, and neither the address nor its rules", name, seen)
		}
	}
}

// What an IPAM plugin leases after DEL would be lost.
func TestDelWaitsForTheIPAMPluginOfAnAddThatWasKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	before := p.snapshot(t)
	a, dir := w.delegated(t, p)
	slow := strings.Replace(foreignIPAM, "\t: >\"$lease\"\n", "\techo >started; read go <go; : >\"$lease\"\n", 1)
	if err := os.WriteFile(filepath.Join(dir, "foreign"), []byte(slow), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"started", "go"} {
		if err := unix.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	add := a.start(t, "ADD")
	if _, err := os.ReadFile(filepath.Join(dir, "started")); err != nil {
		t.Fatal(err)
	}
	_ = add.Process.Kill()
	_ = add.Wait()

	del, done := a.start(t, "DEL"), make(chan error, 1)
	go func() { done <- del.Wait() }()
	flocktest.UntilBlocked(t, filepath.Join(w.state, "attachments", a.id, "lock"), done)
	select {
	case err := <-done:
		t.Fatalf("DEL did not wait: %v", err)
	default:
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte("\n"), 0); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("DEL: %v", err)
	}
	if got := leftBehind(t, dir); len(got) > 0 {
		t.Errorf("the plugin still has %q", got)
	}
	p.unchanged(t, before)
	w.noRecords(t)
}

func TestConflictOfAnAddressOfAnotherIPAMPluginGivesItBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	before := p.snapshot(t)
	w.leaf.IP(t, "addr add 172.16.10.90/24 dev leaf0")
	a, dir := w.delegated(t, p)
	a.mustFail(t, 100)
	p.unchanged(t, before)
	w.noRecords(t)
	if got := leftBehind(t, dir); len(got) > 0 {
		t.Errorf("the plugin still has %q", got)
	}
}

func TestKilledAddGivesTheAddressOfAnotherIPAMPluginBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	before := p.snapshot(t)
	a, dir := w.delegated(t, p)
	first := true
	eachKill(t, 20, a, "ADD", func(gone func()) {
		gone()
		if first = !first; first {
			a.mustAdd(t)
		}
		a.mustDel(t)
		p.unchanged(t, before)
		w.noRecords(t)
		if got := leftBehind(t, dir); len(got) > 0 {
			t.Errorf("the plugin still has %q", got)
		}
	})
}
