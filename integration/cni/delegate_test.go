// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/flock/flocktest"
)

// foreignIPAM is an IPAM plugin of another project. As host-local does, it refuses a
// second address for an interface that has one, and as dhcp does, it needs the
// interface.
const foreignIPAM = `#!/bin/sh
cd "${0%/*}"
cat >/dev/null
lease=lease-$CNI_CONTAINERID-$CNI_IFNAME
case $CNI_COMMAND in
ADD)
	if [ -e "$lease" ] || ! nsenter --net="$CNI_NETNS" ip link show dev "$CNI_IFNAME" >/dev/null; then
		echo '{"cniVersion": "1.0.0", "code": 11, "msg": "not now", "details": "ask again"}'
		exit 1
	fi
	: >"$lease"
	echo '{"cniVersion": "1.0.0", "ips": [{"address": "172.16.10.90/24", "gateway": "172.16.10.254"}, {"address": "fd00:10::90/64"}],
		"routes": [{"dst": "10.1.0.0/16"}, {"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["10.96.0.10"]}}' ;;
DEL) rm -f "$lease" ;;
esac
`

// delegated returns an attachment with addresses from foreignIPAM, and the folder of
// that plugin.
func (w *world) delegated(t *testing.T, p *pod) (a attachment, dir string) {
	t.Helper()
	dir = t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "foreign"), []byte(foreignIPAM), 0o700))
	a = w.attach(w.rail(0).With("ipam", map[string]any{"type": "foreign", "its": "own keys"}), p, "net1")
	a.path = append(a.path, dir)
	return a, dir
}

// leftBehind returns the leases that a plugin still has.
func leftBehind(t *testing.T, dir string) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, "lease-*"))
	must(t, err)
	return left
}

// What an IPAM plugin leases after DEL would be lost.
func TestDelWaitsForTheIPAMPluginOfAnAddThatWasKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	before := p.snapshot(t)
	a, dir := w.delegated(t, p)
	slow := strings.Replace(foreignIPAM, "\t: >\"$lease\"\n", "\techo >started; read go <go; : >\"$lease\"\n", 1)
	must(t, os.WriteFile(filepath.Join(dir, "foreign"), []byte(slow), 0o700))
	for _, name := range []string{"started", "go"} {
		must(t, unix.Mkfifo(filepath.Join(dir, name), 0o600))
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
	must(t, os.WriteFile(filepath.Join(dir, "go"), []byte("\n"), 0))
	if err := <-done; err != nil {
		t.Errorf("DEL: %v", err)
	}
	if got := leftBehind(t, dir); len(got) > 0 {
		t.Errorf("the plugin still has %q", got)
	}
	p.unchanged(t, before)
	w.noRecords(t)
}
