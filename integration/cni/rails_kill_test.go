// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"slices"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

func TestDelRemovesAllRailsOfACallThatWasKilled(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		command  string
		kills    int
		overtake bool // DEL does not wait until the killed process is gone
	}{
		"ADD":            {"ADD", 15, false},
		"ADD, overtaken": {"ADD", 10, true},
		"DEL":            {"DEL", 8, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, rails)
			p := w.pod(t)
			a := w.attach(w.listed(cnitest.Subnet4, cnitest.Subnet6), p, "net1")
			pod, node := p.snapshot(t), w.snapshot(t)
			eachKill(t, tt.kills, a, tt.command, func(gone func()) {
				if !tt.overtake {
					gone()
				}
				a.mustDel(t)
				gone()
				p.unchanged(t, pod)
				w.nothingLeased(t)
				w.noRecords(t)
			})
			w.unchanged(t, node)
		})
	}
}

func TestAddOfAllRailsSucceedsAfterOneThatWasKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rails)
	p := w.pod(t)
	a := w.attach(w.matched(cnitest.Subnet4, cnitest.Subnet6), p, "net1")
	before := p.snapshot(t)
	first := addrs(a.mustAdd(t))
	a.mustDel(t)
	eachKill(t, 10, a, "ADD", func(gone func()) {
		gone()
		if got := addrs(a.mustAdd(t)); !slices.Equal(got, first) {
			t.Errorf("got the addresses %v, want %v", got, first)
		}
		if err := a.check(t); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		a.mustDel(t)
	})
	p.unchanged(t, before)
	w.nothingLeased(t)
	w.noRecords(t)
}
