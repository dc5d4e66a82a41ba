// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// DEL must not free an address that is still up, whatever was done to the interface.
func TestDelTakesDownAnInterfaceThatWasChanged(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"alias":                       "link set dev net1 alias foo",
		"the form of a mark as alias": "link set dev net1 alias roce:other/net1",
		"alias and name":              "link set dev net1 alias foo\nlink set dev net1 down\nlink set dev net1 name vpn0\nlink set dev vpn0 up",
		"alias and MAC":               "link set dev net1 alias foo\nlink set dev net1 address 02:00:00:00:00:99",
		"a copy with another":         "link add link net1 name copy type macvlan mode bridge\naddr flush dev net1\nlink set dev copy up\naddr add ADDR/24 dev copy",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := w.pod(t)
			before := portable(p.snapshot(t))
			a := w.attach(w.rail(0), p, "net1")
			addr := addrOfResult(t, a.mustAdd(t)).String()
			p.IP(t, strings.ReplaceAll(script, "ADDR", addr))
			a.mustDel(t)
			if diff := cmp.Diff(before, portable(p.snapshot(t))); diff != "" {
				t.Errorf("after DEL (-before +after)\n%s", diff)
			}
			w.nothingLeased(t)
			w.noRecords(t)
		})
	}
}

// A link that was moved to a namespace that lives on, and has another alias there, is not
// found by DEL. It keeps its MAC, so that no other child can have it.
func TestAddTakesTheNextAddressWhenTheMACIsInUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p, other, next := w.podNamed(t, "trainer-0"), w.pod(t), w.podNamed(t, "trainer-0")
	first := w.attach(w.rail(0), p, "net1")
	taken := addrOfResult(t, first.mustAdd(t))
	p.IP(t, "link set dev net1 down\nlink set dev net1 netns "+other.Name+"\n")
	other.IP(t, "link set dev net1 alias vpn up")
	first.mustDel(t)
	got := addrOfResult(t, w.attach(w.rail(0), next, "net1").mustAdd(t))
	if got == taken {
		t.Errorf("ADD gave %s, the MAC of which another link has", got)
	}
}
