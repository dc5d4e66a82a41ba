// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
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
