// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// The commands of rocectl plan, typed into a shell of the node, make what ADD
// makes.
func TestCommandsOfThePlanDoWhatAddDoes(t *testing.T) {
	t.Parallel()
	tests := map[string]func(network) network{
		"both families": func(c network) network { return c },
		"the main table": func(c network) network {
			return c.With("routing", "main").With("ipam.routes", []any{map[string]any{"dst": "10.1.0.0/16", "mtu": 1400, "priority": 7}})
		},
		"everything else": func(c network) network {
			return c.With("mode", "private").With("mtu", 1400).With("bcqueuelen", 3000).
				With("sysctl", map[string]any{"net.ipv4.conf.IFNAME.arp_filter": "1"}).
				With("routing", map[string]any{"table": 300, "priority": 7, "defaultRoute": true, "metric": 50}).
				With("ipam.routes", []any{
					map[string]any{"dst": "10.1.0.0/16", "mtu": 1400, "advmss": 1300},
					map[string]any{"dst": "2001:db8:1::/48", "gw": "fd00:10::fe", "priority": 9},
					map[string]any{"dst": "10.3.0.0/16", "scope": 253, "table": 301},
				})
		},
	}
	for name, of := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := w.pod(t)
			before := p.snapshot(t)
			a := w.attach(of(w.rail(0).With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)})), p, "net1")
			script := w.plan(t, a, p)
			p.unchanged(t, before)
			if got := w.files(t); len(got) > 0 {
				t.Errorf("the plan made %q", got)
			}

			a.mustAdd(t)
			added := portable(p.snapshot(t))
			a.mustDel(t)
			p.unchanged(t, before)

			w.MustRun(t, "sh", "-e", "-c", script)
			typed := portable(strings.ReplaceAll(p.snapshot(t), "roce:plan/net1", "roce:"+a.id+"/net1"))
			if diff := cmp.Diff(added, typed); diff != "" {
				t.Errorf("ADD and these commands differ:\n%s\n(-ADD +typed)\n%s", script, diff)
			}
		})
	}
}

// plan returns what rocectl plan prints for an attachment.
func (n *node) plan(t *testing.T, a attachment, p *pod) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "net.conf")
	must(t, os.WriteFile(file, []byte(a.text(t)), 0o600))
	var args []string
	for _, pair := range a.args {
		args = append(args, pair[0]+"="+pair[1])
	}
	must(t, os.MkdirAll(n.state, 0o700)) // before the first ADD there is none
	return n.MustRun(t, filepath.Join(programs, "rocectl"), "plan", file,
		"--ifname", a.ifName, "--netns", p.namespace.Name, "--args", strings.Join(args, ";"), "--state-dir", n.state)
}
