// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

func TestDelSucceedsWithAnyPartMissing(t *testing.T) {
	t.Parallel()
	plain := filepath.Join(t.TempDir(), "plain")
	must(t, os.WriteFile(plain, nil, 0o600))
	for name, tt := range map[string]struct {
		// spoil changes the world between ADD and DEL, or returns another DEL.
		spoil func(t *testing.T, w *world, p *pod, a attachment) attachment
		// kept says that the pod's namespace cannot be found, so that what is in it stays.
		kept bool
	}{
		"the namespace is gone": {kept: true, spoil: func(t *testing.T, _ *world, p *pod, a attachment) attachment {
			p.Remove(t)
			return a
		}},
		"the namespace's path is a plain file": {kept: true, spoil: func(_ *testing.T, _ *world, _ *pod, a attachment) attachment {
			a.netns = plain
			return a
		}},
		"the master and rules are gone": {spoil: func(t *testing.T, w *world, p *pod, a attachment) attachment {
			p.IP(t, "rule del priority 32000\nrule del priority 32001")
			w.IP(t, "link del rail0")
			return a
		}},
		"nothing of the call is as in ADD": {spoil: func(_ *testing.T, _ *world, _ *pod, a attachment) attachment {
			a.netns, a.args = "", [][2]string{{"What", "ever"}}
			a.network = a.network.With("routing.tabel", 7).With("mtu", "big").With("log", 1).With("stateDir", "/none").With("master", 7).With("rdma", nil)
			a.network = a.network.With("ipam", map[string]any{"type": "roce-ipam", "pool": "other", "subnetz": 1, "table": "/none", "subnets": []any{}})
			return a
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := w.pod(t)
			before := p.snapshot(t)
			a := w.attach(w.rail(0).With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)}), p, "net1")
			a.mustAdd(t)
			a = tt.spoil(t, w, p, a)
			for range 2 {
				if _, err := a.raw(t, "roce", "DEL", a.text(t)); err != nil {
					t.Fatalf("DEL: %v", err)
				}
			}
			w.mustBeClean(t)
			if !tt.kept {
				p.unchanged(t, before)
			}
		})
	}
}

func TestDelOfWhatWasNeverAddedSucceedsAndTouchesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	pod, node := p.snapshot(t), w.snapshot(t)
	for _, ifName := range []string{"net1", "eth0", "lo"} {
		a := w.attach(w.rail(0), p, ifName)
		a.mustDel(t)
		a.netns = ""
		a.mustDel(t)
		a.netns = w.Path // hostNetwork: true
		a.mustDel(t)
	}
	p.unchanged(t, pod)
	w.unchanged(t, node)
	w.noRecords(t)
}
