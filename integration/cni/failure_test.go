// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// change is the spoil of a network that fails by itself.
func change(path string, value any) func(*testing.T, *world, *pod, network) network {
	return func(_ *testing.T, _ *world, _ *pod, c network) network { return c.With(path, value) }
}

// inPod is the spoil of a pod in which another program did something before.
func inPod(script string) func(*testing.T, *world, *pod, network) network {
	return func(t *testing.T, _ *world, p *pod, c network) network {
		t.Helper()
		p.IP(t, script)
		return c
	}
}

func TestFailedAddLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, f := range []struct { // by how far ADD gets
		name string
		code uint // 0: any
		// spoil prepares the world or the pod and returns the network to add.
		spoil func(t *testing.T, w *world, p *pod, c network) network
	}{
		{"a typo", 7, change("ipam.subnetz", 1)},
		{"a foreign link with the name as an altname", 4, inPod("link property add dev eth0 altname net1")},
		{"the pool is exhausted", 101, func(t *testing.T, w *world, _ *pod, c network) network {
			c = c.With("ipam.subnets", []any{map[string]any{"subnet": "10.9.0.0/32"}})
			w.attach(c, w.pod(t), "net1").mustAdd(t)
			return c
		}},
		{"a foreign rule wins", 105, inPod("rule add from 172.16.0.0/12 lookup 50 priority 100")},
		{"a setting that the kernel refuses", 0, change("sysctl", map[string]any{"net.ipv4.conf.IFNAME.arp_ignore": "many"})},
		{"IPv6 disabled on the link", 0, func(_ *testing.T, _ *world, _ *pod, c network) network {
			return c.With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)}).
				With("sysctl", map[string]any{"net.ipv6.conf.IFNAME.disable_ipv6": "1"})
		}},
		{"a route that the main table has", 0, func(t *testing.T, _ *world, p *pod, c network) network {
			p.IP(t, "route add 192.0.2.0/24 dev eth0")
			return c.With("ipam.routes", []any{map[string]any{"dst": "192.0.2.0/24", "table": 254}})
		}},
		{"the gateway is silent", 106, func(_ *testing.T, _ *world, _ *pod, c network) network {
			return c.With("ipam.subnets.0.gateway", "172.16.10.253").With("probe.gateway.timeout", "5ms")
		}},
		{"every address is taken on the wire", 100, func(t *testing.T, w *world, _ *pod, c network) network {
			w.leaf.listen(t, "leaf0", func(f frame) [][]byte {
				if !f.probe(f.to) {
					return nil
				}
				return [][]byte{reply(f, stranger)}
			})
			return c.Patient()
		}},
		{"the namespace is none", 8, nil},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := w.pod(t)
			c := w.rail(0).With("ipam.subnets", []any{cnitest.Subnet4(0)})
			good := w.attach(c, p, "net1")
			if f.spoil != nil {
				c = f.spoil(t, w, p, c)
			}
			a := w.attach(c, p, "net1")
			if f.spoil == nil {
				a.netns = filepath.Join(t.TempDir(), "none")
			}
			pod, node, leased := p.snapshot(t), w.snapshot(t), w.leases(t, "leased")
			if f.code != 0 {
				a.mustFail(t, f.code)
			} else if res, err := a.add(t); err == nil || err.Code == 199 {
				t.Fatalf("ADD: got %v, %v, want an error that is not 199", res, err)
			}
			p.unchanged(t, pod)
			w.unchanged(t, node)
			if got := w.leases(t, "leased"); len(got) != len(leased) {
				t.Errorf("leased: %q, before %q", got, leased)
			}
			if len(leased) == 0 {
				w.noRecords(t)
			}
			good.mustDel(t) // what a runtime does after a failed ADD
			p.unchanged(t, pod)
		})
	}
}

func TestAnAddLeavesNothingIfItsResultCannotBeWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	before := p.snapshot(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	must(t, err)
	defer full.Close()
	r, unread, err := os.Pipe() // of a runtime that has ended
	must(t, err)
	defer unread.Close()
	must(t, r.Close())
	for program, c := range map[string]network{"roce": w.rail(0), "roce-ipam": w.delegate("172.16.10.64")} {
		for _, stdout := range []*os.File{full, unread} {
			a := w.attach(c, p, "net1")
			cmd := exec.Command(filepath.Join(programs, program))
			cmd.Env, cmd.Stdin, cmd.Stdout = append(os.Environ(), a.environ("ADD")...), strings.NewReader(a.text(t)), stdout
			if err := w.enter(cmd.Run); err == nil {
				t.Errorf("%s to %s: ADD succeeds", program, stdout.Name())
			}
			p.unchanged(t, before)
			w.mustBeClean(t)
		}
	}
}
