// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
)

// TestEachCallIsNoted has an ADD that is refused before the settings are read, one that
// fails on the way, one that succeeds, and its DEL.
func TestEachCallIsNoted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	c := w.rail(0).With("probe.gateway.timeout", "5ms")
	w.attach(c, p, "net1").mustAdd(t) // makes the state folder
	w.attach(c.With("mtu", -1), p, "net2").mustFail(t, 7)
	w.leaf.IP(t, "addr del 172.16.10.254/24 dev leaf0")
	w.attach(c, p, "net2").mustFail(t, 106)
	w.leaf.IP(t, "addr add 172.16.10.254/24 dev leaf0")
	a := w.attach(c, p, "net2")
	a.mustAdd(t)
	a.mustDel(t)

	got, _, err := calls.File{Dir: w.state}.After("")
	if err != nil || len(got) != 5 {
		t.Fatalf("%d calls are noted, error %v: %v", len(got), err, got)
	}
	for i, want := range []struct {
		verb, ifName string
		code         int
	}{{"ADD", "net1", 0}, {"ADD", "net2", 7}, {"ADD", "net2", 106}, {"ADD", "net2", 0}, {"DEL", "net2", 0}} {
		is := got[i]
		if is.Verb != want.verb || string(is.IfName) != want.ifName || int(is.Code) != want.code || (is.Error == "") != (want.code == 0) || is.Took <= 0 || string(is.ContainerID) != a.id {
			t.Errorf("call %d is noted as %+v, want %+v", i, is, want)
		}
	}
	if got[3].Network == "" || got[4].Network != got[3].Network {
		t.Errorf("ADD is noted with network %q, and DEL with %q", got[3].Network, got[4].Network)
	}
	for _, i := range []int{0, 2, 3} {
		names := []string{}
		var took time.Duration
		for _, s := range got[i].Steps {
			names, took = append(names, s.Name), took+s.Took
		}
		if took <= 0 || took > got[i].Took {
			t.Errorf("the steps of call %d took %s, and the call %s", i, took, got[i].Took)
		}
		if want := []string{"lease", "macvlan", "sysctl", "up", "conflict", "address", "route", "rule", "gateway"}; len(names) < len(want) || !slices.Equal(names[:len(want)], want) {
			t.Errorf("call %d has the steps %v, want %v", i, names, want)
		}
	}
}

// TestTheTraceOfTheRuntimeIsKept: an ADD warns of a gateway, and a DEL of its
// record. What is behind a traceparent could control the terminal of who reads it.
func TestTheTraceOfTheRuntimeIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.log = filepath.Join(t.TempDir(), "roce.log")
	c := w.rail(0).With("ipam.subnets.0.gateway", "172.16.10.253").With("probe.gateway", map[string]any{"mode": "warn", "timeout": "5ms"})
	a := w.attach(c, w.pod(t), "net1")
	traced := func(command, trace string) {
		t.Helper()
		_, err := a.node.exec(a.stderr).ExecPlugin(t.Context(), filepath.Join(programs, "roce"), []byte(a.text(t)), append(a.environ(command), "TRACEPARENT="+trace))
		must(t, err)
	}
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0"
	traced("ADD", trace+"1\x1b[2J")
	file := filepath.Join(w.state, "attachments", a.id, "net1.json")
	if b, err := os.ReadFile(file); err != nil || !strings.Contains(string(b), `"trace":"`+trace+`1"`) {
		t.Errorf("the record is %s, %v", b, err)
	}
	must(t, os.WriteFile(file, []byte("{"), 0o600))
	traced("DEL", trace+"2")
	traced("ADD", "no trace")
	got, _, err := calls.File{Dir: w.state}.After("")
	if err != nil || len(got) != 3 || got[0].Trace != trace+"1" || got[1].Trace != trace+"2" || got[2].Trace != "" {
		t.Errorf("the calls are noted as %+v, %v", got, err)
	}
	b, err := os.ReadFile(w.log)
	lines := strings.SplitAfter(string(b), "\n")
	if err != nil || len(lines) != 4 || !strings.Contains(lines[0], " trace="+trace+"1 ") || !strings.Contains(lines[1], " trace="+trace+"2 ") || strings.Contains(lines[2], "trace") {
		t.Errorf("the log is %q, %v", lines, err)
	}
}

func TestLogGoesToTheFileAndNeverToStandardOutput(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	file := filepath.Join(t.TempDir(), "log", "roce.log")
	w.log = file
	c := w.rail(0).With("ipam.subnets.0.gateway", "172.16.10.253").With("probe.gateway", map[string]any{"mode": "warn", "timeout": "5ms"})
	a := w.attach(c, w.pod(t), "net1")
	a.mustAdd(t)
	b, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(b), "172.16.10.253") {
		t.Errorf("the log has %q, %v, want the silent gateway in it", b, err)
	}
	if a.stderr.Len() > 0 {
		t.Errorf("standard error has %q, want nothing", a.stderr)
	}
}
