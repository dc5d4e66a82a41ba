// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// start starts a call as libcni does, and returns at once.
func (a attachment) start(t *testing.T, command string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(filepath.Join(programs, "roce"))
	cmd.Env, cmd.Stdin, cmd.Stdout = a.environ(command), strings.NewReader(a.text(t)), &bytes.Buffer{}
	must(t, a.node.enter(cmd.Start))
	return cmd
}

// durations returns how long the processes of an ADD and a DEL live: the
// medians of some.
func (a attachment) durations(t *testing.T) map[string]time.Duration {
	t.Helper()
	took := map[string][]time.Duration{}
	for range 5 {
		for _, command := range []string{"ADD", "DEL"} {
			start := time.Now()
			if err := a.start(t, command).Wait(); err != nil {
				t.Fatalf("%s: %v", command, err)
			}
			took[command] = append(took[command], time.Since(start))
		}
	}
	out := map[string]time.Duration{}
	for command, times := range took {
		slices.Sort(times)
		out[command] = times[len(times)/2]
	}
	return out
}

// eachKill starts a call and kills it, again and again, each time a bit later,
// and from the start again, until so many were killed. It calls then with what
// waits until the process is gone: it was killed before, but may be in a
// system call still.
func eachKill(t *testing.T, kills int, a attachment, command string, then func(gone func())) {
	t.Helper()
	whole := 11 * a.durations(t)[command] / 10
	killed := 0
	for i := 0; killed < kills; i++ {
		if i > 10*kills {
			t.Fatalf("%d of %d processes could be killed before they were done", killed, i)
		}
		if command == "DEL" {
			a.mustAdd(t)
		}
		cmd := a.start(t, command)
		after := whole * time.Duration(i%kills) / time.Duration(kills)
		<-time.After(after)
		_ = cmd.Process.Kill() // it may be done already
		then(sync.OnceFunc(func() { _ = cmd.Wait() }))
		if cmd.ProcessState.Exited() {
			whole -= whole / 50 // the machine is less busy than it was
		} else {
			killed++
		}
		if t.Failed() {
			t.Fatalf("that was after kill number %d, %v after the start of a call of %v", i, after, whole)
		}
	}
}

// killable returns an attachment that uses all that one rail can, or one of all rails.
func killable(t *testing.T, all bool) (*world, *pod, attachment) {
	t.Helper()
	if all {
		w := newWorld(t, rails)
		p := w.pod(t)
		return w, p, w.attach(w.listed(cnitest.Subnet4, cnitest.Subnet6), p, "net1")
	}
	w := newWorld(t, 1)
	p := w.pod(t)
	w.services(t, "10.96.0.0/12", "fd00:96::/108")
	return w, p, w.attach(w.rail(0).With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)}).
		With("hostLink", map[string]any{"routes": []any{"auto"}}).
		With("routing.metric", 50), p, "net1") // beside the default route of eth0
}

func TestDelRemovesAllOfACallThatWasKilled(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		command  string
		kills    int
		overtake bool // DEL does not wait until the killed process is gone
		all      bool // rails
	}{
		"ADD":                         {"ADD", 30, false, false},
		"ADD, overtaken":              {"ADD", 30, true, false},
		"DEL":                         {"DEL", 20, false, false},
		"ADD of all rails":            {"ADD", 15, false, true},
		"ADD of all rails, overtaken": {"ADD", 10, true, true},
		"DEL of all rails":            {"DEL", 8, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, p, a := killable(t, tt.all)
			pod, node := p.snapshot(t), w.snapshot(t)
			eachKill(t, tt.kills, a, tt.command, func(gone func()) {
				if !tt.overtake {
					gone()
				}
				a.mustDel(t)
				gone()
				p.unchanged(t, pod)
				w.mustBeClean(t)
			})
			w.unchanged(t, node)
		})
	}
}

func TestAddSucceedsAfterAnAddThatWasKilled(t *testing.T) {
	t.Parallel()
	w, p, a := killable(t, false)
	before := p.snapshot(t)
	first := a.mustAdd(t)
	whole := portable(p.snapshot(t))
	a.mustDel(t)
	eachKill(t, 30, a, "ADD", func(gone func()) {
		gone()
		res := a.mustAdd(t)
		if got, want := addrs(res), addrs(first); !slices.Equal(got, want) {
			t.Errorf("got the addresses %v, want %v", got, want)
		}
		if diff := cmp.Diff(whole, portable(p.snapshot(t))); diff != "" {
			t.Errorf("the pod (-want +got)\n%s", diff)
		}
		a.mustDel(t)
		p.unchanged(t, before)
		w.mustBeClean(t)
	})
}
