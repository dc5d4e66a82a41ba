// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"strings"
	"testing"
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

// Only an ADD knows the NIC that a network stands on.
func TestANICThatTheNodeDoesNotAllowIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.nics = "rail0"
	p := w.pod(t)
	before := p.snapshot(t)
	err := w.attach(w.rail(1), p, "net2").mustFail(t, 7)
	if !strings.Contains(err.Msg, "rail1") || !strings.Contains(err.Msg, "masters.ifNames") {
		t.Errorf("got %+v, want an error that names the NIC and the limit", err)
	}
	p.unchanged(t, before)
	w.mustBeClean(t)
	w.attach(w.rail(0), p, "net1").mustAdd(t)
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
