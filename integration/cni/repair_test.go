// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rocectl runs rocectl on the node, as root does.
func (n *node) rocectl(args ...string) (string, error) {
	return n.Run(filepath.Join(programs, "rocectl"), append([]string{"--state-dir", n.state}, args...)...)
}

// mustRocectl is a command that must succeed.
func (n *node) mustRocectl(t testing.TB, args ...string) {
	t.Helper()
	if out, err := n.rocectl(args...); err != nil {
		t.Errorf("rocectl %v: %v\n%s", args, err, out)
	}
}

// losses are what an attachment with an IPv4 and an IPv6 address may lose:
// ADDR4 and ADDR6.
var losses = []struct {
	name, script string
}{
	{"the link went down and up", "link set dev net1 down\nlink set dev net1 up"},
	{"the link is down", "link set dev net1 down"},
	{"the link is gone", "link del net1"},
	{"the IPv4 address is gone", "addr del ADDR4/24 dev net1"},
	{"the IPv6 address is gone", "addr del ADDR6/64 dev net1"},
	{"all addresses are gone", "addr flush dev net1"},
	{"the routes are gone", "route flush table 100"},
	{"the rules are gone", "rule del from ADDR4 lookup 100\nrule del from ADDR4 unreachable"},
}

// sorted returns a snapshot without what depends on the order of creation.
func sorted(snapshot string) []string {
	lines := portable(snapshot)
	slices.Sort(lines)
	return lines
}

// What repair shows is what --yes does, and can be pasted into a shell on the node.
func TestRepairDoesWhatItShows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	name := "train/" + p.name + " net1: "
	w.attach(w.rail(0), p, "net1").mustAdd(t)
	whole := sorted(p.snapshot(t))
	if out, err := w.rocectl("check"); err != nil || out != name+"ok\n" {
		t.Errorf("check of a whole attachment: %s, %v", out, err)
	}
	for _, pasted := range []bool{true, false} {
		p.IP(t, "link set dev net1 down\nlink set dev net1 up")
		damaged := p.snapshot(t)
		out, err := w.rocectl("check", "--container", p.id)
		if err == nil || !strings.Contains(out, "check route") || !strings.Contains(out, "restore it: ip -n "+p.namespace.Name) {
			t.Errorf("check: %v, want status 1 and a line with a command, got\n%s", err, out)
		}
		shown, err := w.rocectl("repair")
		if err != nil || !strings.HasPrefix(shown, "# "+name+"lost; --yes restores it\n") {
			t.Fatalf("repair: %v\n%s", err, shown)
		}
		p.unchanged(t, damaged)
		if pasted {
			w.MustRun(t, "sh", "-e", "-c", shown)
		} else if done, err := w.rocectl("repair", "--yes"); err != nil || done != strings.Replace(shown, "lost; --yes restores it", "restored", 1) {
			t.Errorf("repair --yes: %v\n%s\nshown was\n%s", err, done, shown)
		}
		if diff := cmp.Diff(whole, sorted(p.snapshot(t))); diff != "" {
			t.Errorf("after the repair (-want +got)\n%s", diff)
		}
		if out, err := w.rocectl("repair", "--yes"); err != nil || out != "# "+name+"intact\n" {
			t.Errorf("another repair: %s, %v", out, err)
		}
	}
}
