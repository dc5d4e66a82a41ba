// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// parent returns the name of the link of parents that carries a macvlan.
func (ns *namespace) parent(t testing.TB, link string, parents *namespace) string {
	t.Helper()
	_, rest, ok := strings.Cut(ns.MustRun(t, "ip", "-oneline", "link", "show", "dev", link), link+"@if")
	index, _, _ := strings.Cut(rest, ":")
	if !ok {
		t.Fatalf("%s has no parent in another namespace", link)
	}
	for line := range strings.Lines(parents.MustRun(t, "ip", "-oneline", "link", "show")) {
		if rest, ok := strings.CutPrefix(line, index+": "); ok {
			name, _, _ := strings.Cut(rest, "@")
			return name
		}
	}
	t.Fatalf("no link has the index %s", index)
	return ""
}

func TestEveryModeReachesTheGateway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	p := w.pod(t)
	before, node := p.snapshot(t), w.snapshot(t)
	var made []attachment
	for i, mode := range []string{"bridge", "private", "vepa", "passthru"} {
		a := w.attach(w.rail(i).With("mode", mode), p, fmt.Sprintf("net%d", i))
		made = append(made, a)
		res, err := a.add(t)
		if err != nil {
			t.Errorf("%s: %v", mode, err)
			continue
		}
		if got := p.MustRun(t, "ip", "-details", "link", "show", "dev", a.ifName); !strings.Contains(got, "macvlan mode "+mode+" ") {
			t.Errorf("%s: got %s", mode, got)
		}
		if mac := w.mac(t, fmt.Sprintf("rail%d", i)); (res.Interfaces[0].Mac == mac) != (mode == "passthru") {
			t.Errorf("%s: the MAC is %s, that of the master is %s", mode, res.Interfaces[0].Mac, mac)
		}
		if got, want := p.mac(t, a.ifName), res.Interfaces[0].Mac; got != want {
			t.Errorf("%s: the MAC is %s, the result says %s", mode, got, want)
		}
		p.MustRun(t, "ping", "-n", "-q", "-c", "1", "-w", "10", "-I", addrOfResult(t, res).String(), fmt.Sprintf("172.16.%d.254", 10+i))
	}
	for _, a := range made {
		a.mustDel(t)
	}
	p.unchanged(t, before)
	w.unchanged(t, node)
}

func TestLinkHasTheMTUAndTheQueueAskedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	tests := []struct {
		ifName string
		mtu    any
		want   int
	}{
		{"net0", nil, 9000}, {"net1", 0, 9000}, {"net2", 1400, 1400}, {"net3", 9000, 9000},
	}
	for _, tt := range tests {
		res := w.attach(w.rail(0).With("mtu", tt.mtu), p, tt.ifName).mustAdd(t)
		got := p.MustRun(t, "ip", "-oneline", "link", "show", "dev", tt.ifName)
		if !strings.Contains(got, fmt.Sprintf(" mtu %d ", tt.want)) || res.Interfaces[0].Mtu != tt.want {
			t.Errorf("mtu %v: the result says %d, the link is %s, want %d", tt.mtu, res.Interfaces[0].Mtu, got, tt.want)
		}
	}
	before := p.snapshot(t)
	err := w.attach(w.rail(0).With("mtu", 9001), p, "net4").mustFail(t, 7)
	if !strings.Contains(err.Msg, "9001") || !strings.Contains(err.Msg, "9000") {
		t.Errorf("%v: want it to say what is wanted and what the master has", err)
	}
	p.unchanged(t, before)

	w.attach(w.rail(0).With("bcqueuelen", 3000), p, "net5").mustAdd(t)
	if got := p.MustRun(t, "ip", "-details", "link", "show", "dev", "net5"); !strings.Contains(got, " bcqueuelen 3000 ") {
		t.Errorf("got %s, want a queue of 3000", got)
	}
}

func TestInterfaceNamesMayHaveFifteenCharacters(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	before := p.snapshot(t)
	for _, ifName := range []string{"net-123456789ab", "net.1", "a"} {
		a := w.attach(w.rail(0).With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)}), p, ifName)
		res := a.mustAdd(t)
		if res.Interfaces[0].Name != ifName {
			t.Errorf("the result says %q, want %q", res.Interfaces[0].Name, ifName)
		}
		if got := p.setting(t, "net/ipv4/conf/"+ifName+"/arp_ignore"); got != "1" {
			t.Errorf("arp_ignore of %s is %s, want 1", ifName, got)
		}
		a.mustDel(t)
		p.unchanged(t, before)
	}
}
