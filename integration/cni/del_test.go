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

func TestDelSucceedsWithAnyPartMissing(t *testing.T) {
	t.Parallel()
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		// spoil changes the world between ADD and DEL, or returns another DEL.
		spoil func(t *testing.T, w *world, p *pod, a attachment) attachment
		// kept says that the pod's namespace cannot be found, so that what is in it stays.
		kept bool
	}{
		{name: "nothing happened", spoil: func(_ *testing.T, _ *world, _ *pod, a attachment) attachment { return a }},
		{name: "the namespace is gone", kept: true, spoil: func(t *testing.T, _ *world, p *pod, a attachment) attachment {
			p.Remove(t)
			return a
		}},
		{name: "the namespace's path is a plain file", kept: true, spoil: func(_ *testing.T, _ *world, _ *pod, a attachment) attachment {
			a.netns = plain
			return a
		}},
		{name: "CNI_NETNS is empty", spoil: func(_ *testing.T, _ *world, _ *pod, a attachment) attachment {
			a.netns = ""
			return a
		}},
		{name: "the master is gone", spoil: func(t *testing.T, w *world, _ *pod, a attachment) attachment {
			w.IP(t, "link del rail0")
			return a
		}},
		{name: "the link is gone", spoil: func(t *testing.T, _ *world, p *pod, a attachment) attachment {
			p.IP(t, "link del net1")
			return a
		}},
		{name: "rules are gone", spoil: func(t *testing.T, _ *world, p *pod, a attachment) attachment {
			p.IP(t, "rule del priority 32000\nrule del priority 32001")
			return a
		}},
		{name: "the master's name is another", spoil: func(_ *testing.T, _ *world, _ *pod, a attachment) attachment {
			a.network = a.network.With("master", "eth9")
			return a
		}},
		{name: "a typo", spoil: func(_ *testing.T, _ *world, _ *pod, a attachment) attachment {
			a.network = a.network.With("routing.tabel", 7).With("ipam.subnetz", 1)
			return a
		}},
		{name: "wrong types", spoil: func(_ *testing.T, _ *world, _ *pod, a attachment) attachment {
			a.network = a.network.With("mtu", "big").With("routing", []any{1}).With("log", 1).With("stateDir", "/none").With("ipam.table", "/none").With("master", 7).With("rdma", nil)
			return a
		}},
		{name: "another pool and routing", spoil: func(_ *testing.T, _ *world, _ *pod, a attachment) attachment {
			a.network = a.network.With("ipam.pool", "other").With("routing", "none").With("ipam.subnets", []any{})
			return a
		}},
		{name: "unknown CNI_ARGS", spoil: func(_ *testing.T, _ *world, _ *pod, a attachment) attachment {
			a.args = [][2]string{{"What", "ever"}}
			return a
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
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
			w.nothingLeased(t)
			w.noRecords(t)
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

func TestForeignInterfaceOfTheSameNameIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	a := w.attach(w.rail(0), p, "net1")
	a.mustAdd(t)
	// Another program replaces our link by its own.
	p.IP(t, "link del net1")
	w.IP(t, "link add link rail0 name net1 netns "+p.namespace.Name+" type macvlan mode bridge")
	p.IP(t, "link set dev net1 addrgenmode none\nlink set dev net1 alias theirs\naddr add 192.0.2.7/24 dev net1\nlink set dev net1 up")
	links := p.MustRun(t, "ip", "-details", "addr", "show")
	a.mustDel(t)
	if diff := cmp.Diff(links, p.MustRun(t, "ip", "-details", "addr", "show")); diff != "" {
		t.Errorf("links (-before +after DEL)\n%s", diff)
	}
	if got := p.rules(t); len(got) > 0 {
		t.Errorf("rules %q are left", got)
	}
	w.nothingLeased(t)
	w.noRecords(t)

	before := p.snapshot(t)
	err := a.mustFail(t, 4)
	if !strings.Contains(err.Msg, `"net1"`) {
		t.Errorf("%v: want it to name net1", err)
	}
	p.unchanged(t, before)
	w.nothingLeased(t)
	w.noRecords(t)
}

func TestDelWithALostRecordRemovesLinkRulesAndLease(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(path string) error{
		"gone":       os.Remove,
		"unreadable": func(path string) error { return os.WriteFile(path, []byte(`{"version":`), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := w.pod(t)
			before := p.snapshot(t)
			a := w.attach(w.rail(0), p, "net1")
			a.mustAdd(t)
			if err := lose(filepath.Join(w.state, "attachments", a.id, "net1.json")); err != nil {
				t.Fatal(err)
			}
			a.mustDel(t)
			w.nothingLeased(t)
			w.noRecords(t)
			p.unchanged(t, before)
		})
	}
}
