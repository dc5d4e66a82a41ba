// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// rocectl runs rocectl on the node, as root does.
func (n *node) rocectl(args ...string) (string, error) {
	return n.Run(filepath.Join(programs, "rocectl"), append([]string{"--state-dir", n.state}, args...)...)
}

// losses are what an attachment with an IPv4 and an IPv6 address may lose:
// ADDR4 and ADDR6.
var losses = []struct {
	name, script string
	says         string // what check must say
}{
	{"the link went down and up", "link set dev net1 down\nlink set dev net1 up", "check route"},
	{"the link is down", "link set dev net1 down", "want it up, got down"},
	{"the link is gone", "link del net1", "no such interface"},
	{"the IPv4 address is gone", "addr del ADDR4/24 dev net1", "check address"},
	{"the IPv6 address is gone", "addr del ADDR6/64 dev net1", "check address"},
	{"all addresses are gone", "addr flush dev net1", "check address"},
	{"the routes are gone", "route flush table 100", "check route"},
	{"the rules are gone", "rule del from ADDR4 lookup 100\nrule del from ADDR4 unreachable", "check rule"},
}

func TestRepairRestoresWhatThePodHasLost(t *testing.T) {
	t.Parallel()
	for _, l := range losses {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := w.pod(t)
			before := p.snapshot(t)
			a := w.attach(w.rail(0).With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)}), p, "net1")
			res := a.mustAdd(t)
			p.IP(t, "rule add from 192.0.2.1 lookup 100 priority 32000\nroute add 192.0.2.0/24 dev eth0 table 4711")
			whole := sorted(p.snapshot(t))
			if out, err := w.rocectl("check"); err != nil || out != "train/"+p.name+" net1: ok\n" {
				t.Fatalf("check of a whole attachment: %s, %v", out, err)
			}

			p.IP(t, strings.NewReplacer("ADDR4", addrs(res)[0].String(), "ADDR6", addrs(res)[1].String()).Replace(l.script))
			damaged := p.look(t)
			if !strings.HasSuffix(l.script, " down") { // such a link has no local routes to wait for
				damaged = p.snapshot(t)
			}
			out, err := w.rocectl("check", "--container", p.id)
			if err == nil || !strings.Contains(out, l.says) || !strings.Contains(out, "restore it: ip -n "+p.namespace.Name) {
				t.Errorf("check: %v, want status 1 and a line with %q and a command, got\n%s", err, l.says, out)
			}
			shown, err := w.rocectl("repair")
			if err != nil || !strings.HasPrefix(shown, "# train/"+p.name+" net1: lost; --yes restores it\n") {
				t.Errorf("repair: %v\n%s", err, shown)
			}
			if diff := cmp.Diff(damaged, p.look(t)); diff != "" {
				t.Errorf("looking changed the pod (-before +after)\n%s", diff)
			}

			done, err := w.rocectl("repair", "--yes")
			if err != nil {
				t.Fatalf("repair --yes: %v\n%s", err, done)
			}
			if diff := cmp.Diff(strings.Replace(shown, "lost; --yes restores it", "restored", 1), done); diff != "" {
				t.Errorf("repair --yes does something else than what was shown (-shown +done)\n%s", diff)
			}
			if diff := cmp.Diff(whole, sorted(p.snapshot(t))); diff != "" {
				t.Errorf("after the repair (-want +got)\n%s", diff)
			}
			w.leaf.MustRun(t, "ping", "-n", "-q", "-c", "1", "-w", "10", addrs(res)[0].String())
			if out, err := w.rocectl("repair", "--yes"); err != nil || out != "# train/"+p.name+" net1: intact\n" {
				t.Errorf("another repair: %s, %v", out, err)
			}
			p.IP(t, "rule del from 192.0.2.1\nroute del 192.0.2.0/24 table 4711")
			a.mustDel(t)
			p.unchanged(t, before)
		})
	}
}

// sorted returns a snapshot without what depends on the order of creation.
func sorted(snapshot string) []string {
	lines := portable(snapshot)
	slices.Sort(lines)
	return lines
}

// What repair shows can be pasted into a shell on the node.
func TestCommandsOfRepairRestoreThePod(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	w.attach(w.rail(0), p, "net1").mustAdd(t)
	whole := sorted(p.snapshot(t))
	p.IP(t, "link set dev net1 down\nlink set dev net1 up")
	shown, err := w.rocectl("repair")
	if err != nil {
		t.Fatalf("repair: %v\n%s", err, shown)
	}
	w.MustRun(t, "sh", "-e", "-c", shown)
	if diff := cmp.Diff(whole, sorted(p.snapshot(t))); diff != "" {
		t.Errorf("after the commands (-want +got)\n%s", diff)
	}
}
