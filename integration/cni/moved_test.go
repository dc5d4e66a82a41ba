// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"strings"
	"testing"
)

// A program of the pod, such as a nested container runtime, or an operator moves the
// interface away.
func TestLinkThatWasMovedToAnotherNamespace(t *testing.T) {
	t.Parallel()
	for name, verb := range map[string]func(t *testing.T, w *world, a attachment){
		"DEL": func(t *testing.T, _ *world, a attachment) { a.mustDel(t) },
		"GC": func(t *testing.T, _ *world, a attachment) {
			if err := a.gc(t, "roce", valid()); err != nil {
				t.Errorf("GC: %v", err)
			}
		},
		"repair": func(t *testing.T, w *world, a attachment) {
			w.mustRocectl(t, "repair", "--yes")
			a.mustCheck(t)
			a.mustDel(t)
		},
		"a repeated ADD": func(t *testing.T, _ *world, a attachment) {
			a.mustAdd(t)
			a.mustCheck(t)
			a.mustDel(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p, other := w.pod(t), w.pod(t)
			pod, elsewhere := p.snapshot(t), other.snapshot(t)
			a := w.attach(w.rail(0), p, "net1")
			addr := addrs(a.mustAdd(t))[0].String()
			p.IP(t, "link set dev net1 netns "+other.namespace.Name)
			other.IP(t, "link set dev net1 name vpn0\naddr add "+addr+"/24 dev vpn0\nlink set dev vpn0 up")
			if err := a.check(t); err == nil || err.Code != 110 || !strings.Contains(err.Msg, other.namespace.Name) || !strings.Contains(err.Msg, `"vpn0"`) {
				t.Errorf("CHECK: %v, want an error that names the namespace and vpn0", err)
			}
			verb(t, w, a)
			p.unchanged(t, pod)
			other.unchanged(t, elsewhere)
			w.mustBeClean(t)
		})
	}
}

// A link can have as many alternative names as fit into 64 KiB. The kernel then tells all
// links of its namespace in messages that are larger than that.
func TestLargeLinksOfAPodStopNoDEL(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p, other := w.pod(t), w.pod(t)
	const each = 40
	for i := range 480 / each {
		names := "link property add dev eth0"
		for j := range each {
			names += fmt.Sprintf(" altname %s%d", strings.Repeat("x", 120), i*each+j)
		}
		other.IP(t, names)
	}
	theirs, own := w.attach(w.rail(0), other, "net1"), w.attach(w.rail(0), p, "net1")
	theirs.mustAdd(t)
	own.mustAdd(t)
	p.IP(t, "link del dev net1") // DEL looks for it everywhere
	own.mustDel(t)
	theirs.mustCheck(t)
	theirs.mustDel(t)
	w.mustBeClean(t)
}
